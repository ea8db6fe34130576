/* heritage.h - what a worker inherits at exec: descriptors by number, named in its environment.
 *
 *   LAGAN_FDNAMES=d:w:bell:hand[:group[:plan1:answer1:ring1...]]   numbers from 3 on
 *   LAGAN_EPOCH=17
 *
 * Everything else is close-on-exec; the worker sets it again on these as soon as it has read them,
 * because a helper forked by some library would otherwise keep the bell open and hide our death.
 */
#ifndef IPC_HERITAGE_H
#define IPC_HERITAGE_H

#include "base/base.h"
#include "base/err.h"

enum { HERITAGE_FIRST = 3, HERITAGE_MAX = 32, HERITAGE_ENV_MAX = 16 + HERITAGE_MAX * 16 };

struct heritage {
    uint64_t epoch;
    uint32_t n;
    struct heritage_fd {
        char name[16];
        int fd;
    } at[HERITAGE_MAX];
};

/* Read both variables, check each fd is open, set close-on-exec. -EBADMSG with the sentence; started
 * by hand (no variables) is -ENOENT. */
int heritage_take(struct heritage *h, struct err *e) MUST_USE;
int heritage_fd(const struct heritage *h, const char *name); /* -1: not passed */
/* "LAGAN_FDNAMES=..." into buf for the child's environment; fds go to 3, 4, ... in this order. 0, or
 * -EMSGSIZE when n is too small; HERITAGE_ENV_MAX never is. */
int heritage_env(const struct heritage *h, char *buf, size_t n) MUST_USE;

#endif
