/* spawn.h - the only code that creates a worker process. */
#pragma once

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
    bool is_standby;
    struct heritage heritage;    /* lagand's numbers of the inherited descriptors, in order */
    const char *control, *token; /* its control channel; NULL: none */
};

/* Starts the process: *pid, and *log, the read end of its output. The process inherits no other
 * descriptor, gets a signal when lagand ends, and leads a process group of its own. */
int spawn_worker(const struct spawn *s, pid_t *pid, int *log, struct err *e) MUST_USE;

/* Adds a descriptor that the process inherits under that name, with the rank behind it if above 0. */
void spawn_pass(struct heritage *h, const char *name, uint32_t rank, int fd);

/* Path of lagan-worker: beside the running program, else the installed one. -ENOENT. */
int spawn_find(char *buf, size_t n, struct err *e) MUST_USE;
