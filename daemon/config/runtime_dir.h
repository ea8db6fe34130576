/* runtime_dir.h - the runtime directory: one lagand owns it and removes its files at exit.
 *
 *   DIR/lagand.lock   locked with flock() while lagand runs; contains its pid
 *   DIR/api.sock      clients
 *   DIR/ctl.sock      operators
 *   DIR/w/N.E         control channel of worker N, incarnation E */
#pragma once

#include "base/base.h"
#include "base/err.h"

enum { RUNTIME_PATH = 320, SOCKET_PATH_MAX = 107 }; /* SOCKET_PATH_MAX: sun_path less its NUL */

struct runtime_dir {
    char dir[256];
    int lock;
    bool made_dir; /* created by this lagand, which removes it */
};

/* Locks the directory and removes files of a killed lagand. -EBUSY: another lagand has it; the
 * error names its pid. On -EACCES, -EROFS, -ENOSPC, -ENAMETOOLONG no file is left. */
int runtime_dir_open(struct runtime_dir *r, const char *dir, struct err *e) MUST_USE;
void runtime_dir_close(struct runtime_dir *r);
void runtime_dir_path(const struct runtime_dir *r, const char *name, char path[RUNTIME_PATH]);
/* Prepares DIR/name for bind(): removes a socket that no process listens on. -EADDRINUSE: a process
 * listens on it. -EEXIST: another file. */
int runtime_dir_vacate(const struct runtime_dir *r, const char *name, struct err *e) MUST_USE;
