/* cgroup.h - the memory that this process may still use, and the OOM kills of its cgroup.
 *
 * A process may use what the host has available (MemAvailable), and no more than the limit of its
 * memory cgroup and of each ancestor permits. A systemd unit with MemoryMax= and a container have
 * such a limit. Reads files of /proc and of the cgroup file systems, version 2 (memory.max) or
 * version 1 (memory.limit_in_bytes). Swap is not counted, because weights and KV in swap are slower
 * than computing again. */
#pragma once
#include "base/base.h"
#include "base/err.h"

#define CGROUP_ROOT "/sys/fs/cgroup" /* where the cgroup file systems are mounted */
/* Memory of lagand, which is in the cgroup of its workers: 17 MiB when it starts. */
#define CGROUP_DAEMON_BYTES ((uint64_t)20 << 20)
enum { CGROUP_PATH = 1024, CGROUP_OWNER = 120 };

struct cgroup {
    char dir[CGROUP_PATH]; /* directory of the memory cgroup; "": the process is in none */
    size_t n_root;         /* bytes of dir that are the mount point, above which no cgroup is */
    bool v2;
};

struct memory_free {
    uint64_t free;              /* bytes that can still be allocated; file cache counts as free */
    uint64_t limit;             /* bytes that all processes below the smallest limit may use */
    char owner[CGROUP_OWNER];   /* whose free bytes these are: "the host" or "cgroup /lagan" */
    char limiter[CGROUP_OWNER]; /* whose limit `limit` is */
};

/* Finds the memory cgroup of this process below root, the directory of the mounted file systems.
 * A container may see only its own part of the hierarchy: leading components of the cgroup's path
 * that do not exist below root are left out. */
void cgroup_find(struct cgroup *c, const char *root);
/* cgroup_find() with the text of /proc/self/cgroup. */
void cgroup_find_in(struct cgroup *c, const char *root, const char *membership);

/* Reads the limits of the host, of c and of its ancestors. -EBADMSG: a file has no number. */
int cgroup_memory(const struct cgroup *c, struct memory_free *ret, struct err *e) MUST_USE;
/* Reads MemAvailable and MemTotal of the host, in bytes. -EBADMSG, or an error of open(). */
int cgroup_host_memory(uint64_t *available, uint64_t *total, struct err *e) MUST_USE;
/* Returns how many processes of c the kernel has killed because memory ran out; 0: unknown. */
uint64_t cgroup_oom_kills(const struct cgroup *c);
