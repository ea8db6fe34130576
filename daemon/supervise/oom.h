/* oom.h - OOM kills: recognises that the kernel has killed a process of lagand because memory ran
 * out, and lowers the KV memory of a worker whose KV arena was dropped for that reason.
 *
 * The kernel counts OOM kills for each cgroup before the process ends. lagand and its workers are
 * in one cgroup, so a SIGKILL that lagand did not send is an OOM kill if that number has risen.
 *
 * The lowered limit of a worker outlives lagand: while it holds, a memfd with the limit is in
 * systemd's fd store, and a re-exec passes it on (persist/fdstore.h). */
#pragma once
#include "base/cgroup.h"
#include "daemon/supervise/worker.h"

struct oom_watch {
    struct cgroup cgroup;
    uint64_t n_kills; /* OOM kills before lagand started, and those that a death has explained */
};

/* Returns a new watch of lagand's cgroup below root; NULL: out of memory. */
struct oom_watch *oom_watch_new(const char *root);
/* Returns true if a process that ended by `code` and `status` (as super_died()) was an OOM kill;
 * each kill explains one death. */
bool oom_killed(struct oom_watch *o, int code, int status);

/* Handles the OOM kill of w, whose KV arena had kv_bytes (0: none): writes info.low_memory. If
 * arenas_after_death() has dropped the arena and the limit is a cgroup's, the next processes of w
 * get at most 1/2 of kv_bytes. Returns true in this case: a standby must be stopped. */
bool oom_worker_died(struct worker *w, uint64_t kv_bytes);
/* Ends the limit of the KV memory and info.low_memory: an operator stops w or starts it again, or w
 * has served for 60 s without such a limit. */
void oom_worker_recovered(struct worker *w);

/* Returns a descriptor with the limit of w for the next lagand, which the caller owns; -1: w has no
 * limit, or memory ran out. name: its name in the fd store, "w0.kv_limit". */
int oom_limit_save(const struct worker *w, char *name, size_t n);
/* Restores the limit of w from that descriptor of the previous lagand, unless w now serves another
 * model. Closes fd. */
void oom_limit_restore(struct worker *w, int fd);
/* Writes the name of the descriptor of worker `index`. */
void oom_limit_name(uint32_t index, char *name, size_t n);
