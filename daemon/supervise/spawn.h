/* spawn.h - the one place where a worker process is made. */
#ifndef DAEMON_SUPERVISE_SPAWN_H
#define DAEMON_SUPERVISE_SPAWN_H

#include "base/base.h"
#include "base/err.h"
#include "ipc/heritage.h"
#include "ipc/model_options.h"

#include <sys/types.h>

struct spawn {
    const char *path;      /* the program */
    const char *name;      /* "w0" */
    const char *log_level; /* "info" */
    const struct model_options *keys;
    uint32_t rank;
    bool waits;                  /* a standby */
    struct heritage heritage;    /* our numbers of what it inherits, in order */
    const char *control, *token; /* its control channel; NULL: none */
};

/* Start it: *pid, and *log the end to read what it prints. Everything else is closed in it, it dies
 * with us, and it is the leader of its own process group. */
int spawn_worker(const struct spawn *s, pid_t *pid, int *log, struct err *e) MUST_USE;

/* lagan-worker beside our own program, or where it is installed. -ENOENT. */
int spawn_find(char *buf, size_t n, struct err *e) MUST_USE;

#endif
