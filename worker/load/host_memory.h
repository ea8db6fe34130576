/* host_memory.h - counts the memory that a worker on the CPU needs, and compares it with the memory
 * of the host and the limits of the cgroups of the process (base/cgroup.h).
 *
 * Counted: the weights arena, KV memory with the KV manager, the host tier, the scratch of steps,
 * and the process itself. Weights that are used in place are pages of the checkpoint's files: file
 * cache, which the kernel drops and reads again, so that they need not be free. */
#pragma once
#include "base/err.h"
#include "worker/worker.h"

struct host_memory_need { /* bytes of one process */
    uint64_t weights, kv, tier, steps, process;
    uint64_t mapped;    /* weights used in place; not part of the sum */
    uint32_t processes; /* of all workers and ranks of this model; each needs the sum */
};

/* Sets *ret. Call after sizes_set(); w->model must be open, its weights need not be loaded.
 * arena_bytes: size of the weights arena. kv.memory auto counts with its smallest size. */
void host_memory_need(const struct worker *w, uint64_t arena_bytes, struct host_memory_need *ret);

/* Returns the bytes of one process. */
uint64_t host_memory_sum(const struct host_memory_need *n);

/* Checks that the memory suffices. resident: bytes of *need that are in memory already, inherited
 * from the previous worker. -EINVAL: all processes together never fit the limit. -ENOMEM: this
 * process does not fit the memory that is free now. e names sum, parts, limit and remedy. */
int host_memory_check(const struct worker *w, const struct host_memory_need *need,
                      uint64_t resident, struct err *e) MUST_USE;

/* Computes kv.memory auto. The weights must be loaded, step buffers may be untouched. Returns the
 * size of the previous worker's arena if this size fits and is at least half of the computed one.
 * -ENOMEM: the smallest KV memory does not fit. */
int host_memory_auto_kv(const struct worker *w, uint64_t *ret, struct err *e) MUST_USE;

/* Returns the bytes of a memfd that are in memory; 0: fd is negative. */
uint64_t host_memory_resident(int fd);
/* Returns the KV bytes of all slots if every sequence has the model's maximum length. */
uint64_t host_memory_longest_kv(const struct kv_config *c);
