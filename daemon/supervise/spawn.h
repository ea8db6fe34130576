/* spawn.h - creates the process of a worker, a rank or a standby; no other code does. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "ipc/heritage.h"
#include "ipc/model_options.h"

#include <sys/types.h>

struct spawn {             /* arguments of spawn_worker() */
    const char *path;      /* lagan-worker */
    const char *name;      /* "w0", which the process uses in its log lines */
    const char *log_level; /* "info" */
    const struct model_options *keys;
    uint32_t rank;
    const char *cgroup_root;
    uint64_t max_kv; /* limit of its KV memory, in bytes; 0: none */
    bool is_standby;
    bool inspect;                /* spawn_inspect() sets it */
    uint64_t held;               /* for spawn_inspect(): lagan-worker --held */
    struct heritage heritage;    /* inherited descriptors, with their numbers in lagand */
    const char *control, *token; /* endpoint and token of the control channel; NULL: none */
};

/* Starts the process; sets *pid, and *log to the non-blocking read end of its output pipe. The
 * process inherits only s->heritage, gets SIGKILL when lagand ends, and leads a process group. */
int spawn_worker(const struct spawn *s, pid_t *pid, int *log, struct err *e) MUST_USE;

struct inspection {
    char error[400];       /* first line that lagan-worker logged at level err; "": none */
    char report[16 << 10]; /* the JSON that it printed; "": none, or longer */
};
/* Runs lagan-worker --inspect with s->path, keys and held until it ends. Returns its exit status,
 * or 256 + the signal that ended it. */
int spawn_inspect(struct spawn *s, struct inspection *ret, struct err *e) MUST_USE;

/* Adds descriptor fd to h as `name`; if rank is above 0, the rank is appended ("plan1"). */
void spawn_pass(struct heritage *h, const char *name, uint32_t rank, int fd);

/* Writes the path of lagan-worker, beside the running program or installed. -ENOENT: neither;
 * -EACCES: the file may not be executed. */
int spawn_find(char *buf, size_t n, struct err *e) MUST_USE;
