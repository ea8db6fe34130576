/* heritage.h - descriptors that a worker inherits at exec, with their names in the environment.
 *
 *   LAGAN_FDNAMES=d:w:doorbell:fd_channel[:group[:plan1:reply1:ring1...]]   names of fd 3, 4, ...
 *   LAGAN_EPOCH=17                                                          incarnation, from 1
 *   LAGAN_CACHE_KEY=<64 hex digits>   seed of the names of KV blocks (base/block_name.h)
 *
 * In a rank group all ranks have "group", a memfd that they share, and rank 0 has plan ring, reply
 * ring and doorbell of each other rank. All other descriptors are close-on-exec. The worker sets
 * close-on-exec on the inherited ones as soon as it has read the variables: a process forked by a
 * library would otherwise keep the doorbell open and hide the worker's death. */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum { HERITAGE_FIRST = 3, HERITAGE_MAX = 32, HERITAGE_ENV_MAX = 16 + HERITAGE_MAX * 16 };

struct heritage {
    uint64_t epoch;
    uint64_t cache_key[4]; /* all 0: lagand gave none */
    uint32_t n;
    struct heritage_fd {
        char name[16];
        int fd;
    } at[HERITAGE_MAX];
};

/* Reads the variables, checks that each named descriptor is open, and sets close-on-exec.
 * -EBADMSG: malformed. -ENOENT: the first two are not set: lagand has not started this process. */
int heritage_take(struct heritage *h, struct err *e) MUST_USE;
int heritage_fd(const struct heritage *h, const char *name); /* -1: not inherited */
/* Writes "LAGAN_FDNAMES=..." into buf, for a child that gets the descriptors of h->at as 3, 4, ...
 * Returns 0, or -EMSGSIZE if n is too small; HERITAGE_ENV_MAX suffices. */
int heritage_env(const struct heritage *h, char *buf, size_t n) MUST_USE;
