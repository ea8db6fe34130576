/* runtime_dir.h - locks, cleans and removes the runtime directory, which one lagand owns.
 *
 *   DIR/lagand.lock   locked with flock() while lagand runs; contains its pid
 *   DIR/api.sock      socket for clients
 *   DIR/ctl.sock      socket for operators
 *   DIR/w/N.E         control channel of worker N, incarnation E */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum { RUNTIME_PATH = 320, SOCKET_PATH_MAX = 107 }; /* SOCKET_PATH_MAX: sun_path less its NUL */
/* A control socket has the longest path in the directory. */
enum { RUNTIME_DIR_MAX = SOCKET_PATH_MAX - (int)sizeof "/w/63.4294967295" + 1 };

struct runtime_dir {
    char dir[256];
    int lock;      /* descriptor of the locked file; -1: closed */
    bool made_dir; /* this lagand created the directory and removes it at exit */
};

/* Creates the directory if necessary, locks it and removes sockets of a killed lagand. -EBUSY:
 * another lagand, whose pid is in *e, has the lock. If DIR is not writable, no new file is left. */
int runtime_dir_open(struct runtime_dir *r, const char *dir, struct err *e) MUST_USE;
/* Returns the pid of the lagand that runs on the directory; 0: none. Does not take the lock. */
int runtime_dir_owner(const char *dir);
void runtime_dir_close(struct runtime_dir *r);
void runtime_dir_path(const struct runtime_dir *r, const char *name, char path[RUNTIME_PATH]);
/* Prepares DIR/name for bind(): removes a socket file on which no process listens. -EADDRINUSE: a
 * process listens on the socket. -EEXIST: the file is not a socket. */
int runtime_dir_vacate(const struct runtime_dir *r, const char *name, struct err *e) MUST_USE;
