/* runtime_dir.h - the runtime directory: one lagand holds it, and leaves nothing in it.
 *
 *   DIR/lagand.lock   flock'ed as long as we live; holds our pid for people
 *   DIR/api.sock      clients        DIR/ctl.sock   operators
 *   DIR/w/N.E         control channel of worker N, incarnation E
 */
#ifndef DAEMON_CONFIG_RUNTIME_DIR_H
#define DAEMON_CONFIG_RUNTIME_DIR_H

#include "base/base.h"
#include "base/err.h"

enum { SOCKET_PATH_MAX = 107 }; /* sun_path less its NUL */

struct runtime_dir {
    char dir[256];
    int lock;
    bool made_dir; /* ours to remove */
};

/* -EBUSY: another lagand runs there (its pid is in the sentence). -EACCES, -EROFS, -ENOSPC, -ENAMETOOLONG: nothing
 * of ours is left there. What a killed predecessor left is removed. */
int runtime_dir_open(struct runtime_dir *r, const char *dir, struct err *e) MUST_USE;
void runtime_dir_close(struct runtime_dir *r);
/* May a socket be bound at DIR/name? A dead socket is removed; a live one, or any other file, is not:
 * -EADDRINUSE, -EEXIST. */
int runtime_dir_vacate(const struct runtime_dir *r, const char *name, struct err *e) MUST_USE;

#endif
