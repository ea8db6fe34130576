/* host_tier.h - the host tier's memory: made before READY, in pieces that are mapped as they are
 * used.
 *
 * To map 32 GiB takes a GPU's driver a third of a second, which nobody's stream shall wait for, and
 * what is mapped costs a death 2 ms a GiB (docs/perf.md), for which its successor does. So of a new
 * tier the first piece is mapped, and the next one whenever half of the last is in use. A
 * predecessor's, where there is one of the right size, is handed up at once and mapped as far as it
 * was used, behind the resumed work: on the loader's thread, once the first step is over. Until
 * then the KV manager does without it (kv_host_tier_away()), what lies in it stays, and a paused stream
 * of the predecessor's that has something there waits for it. A group's ranks, which copy what rank
 * 0 plans, have all of it before they are ready.
 */
#ifndef WORKER_HANDOVER_HOST_TIER_H
#define WORKER_HANDOVER_HOST_TIER_H

#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "ipc/fd_channel.h"
#include "worker/worker.h"

#include <pthread.h>

/* The loader's until READY, then the engine thread's; the mapper thread uses host and err
 * between begun and done. */
struct host_tier {
    struct host_memory host;       /* base NULL: no host tier */
    struct arena old[HOST_PIECES]; /* the previous worker's, not mapped; fd -1: none */
    uint64_t old_id[2];            /* number of the KV memory that they belong to */
    bool map_later;                /* adopted, and nothing of it is mapped yet */
    bool mapper_runs;              /* the mapper thread runs */
    bool cannot_grow;              /* no more of it can be mapped */
    uint32_t want;                 /* pieces that are to be mapped */
    _Atomic int done;              /* release by the mapper thread */
    struct err err;
    pthread_t mapper;
};

void host_tier_init(struct worker *w); /* nothing was found yet */
/* Loader: a piece of the previous worker's; takes fd. false: the arena is something else, fd
 * stays the caller's. */
bool host_tier_take(struct worker *w, const struct fd_channel_note *note, int fd);
/* Loader, before kv_init(): makes the tier, adopts the previous worker's, or does nothing where
 * none is wanted. */
int host_tier_open(struct worker *w, struct err *e) MUST_USE;
/* Loader, once the KV memory has its number: sends the pieces to lagand, mapped or not. */
int host_tier_give(struct worker *w, struct err *e) MUST_USE;
/* The content that the previous worker left in the tier belongs to our KV memory and will be
 * mapped. */
bool host_tier_keeps(const struct worker *w);
/* Engine, before a loop iteration's steps are planned: starts to map some of the tier, or uses
 * what was mapped. */
void host_tier_update(struct worker *w, nsec now);
/* Engine: how long to sleep, `most` at most; less while requests may wait for the tier. */
nsec host_tier_sleep(const struct worker *w, nsec now, nsec most);
void host_tier_close(struct worker *w); /* waits for the mapper thread */

#endif
