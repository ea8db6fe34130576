/* host_tier.h - memory of the host tier: made before READY, in pieces that are mapped when they are
 * needed.
 *
 * A GPU driver needs 0.3 s to map 32 GiB, which would delay clients, and every mapped GiB makes the
 * exit of a killed worker 2 ms longer (docs/lab/serving.md), for which the replacement must wait.
 * So only the first piece of a new tier is mapped, and the next piece when half of the last one is
 * in use.
 *
 * A previous worker's tier of the right size is passed to lagand at once. The mapper thread maps
 * it, as far as it was used, after the first step of the resumed requests. Until then the KV
 * manager does without the tier (kv_host_tier_away()): the content stays, and a resumed request
 * with blocks in the tier waits. Ranks of a group map the whole tier before READY, because they
 * copy what rank 0 plans.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "ipc/fd_channel.h"
#include "worker/worker.h"

#include <pthread.h>

/* Used by the loader thread until READY, then by the engine thread. The mapper thread uses host and
 * err while mapper_runs is set and done is not. */
struct host_tier {
    struct host_memory host;       /* base NULL: no host tier */
    struct arena old[HOST_PIECES]; /* of the previous worker, not mapped; fd -1: none */
    uint64_t old_id[2];            /* id of the KV memory that old[] belongs to */
    bool map_later;                /* adopted, and no piece of it is mapped yet */
    bool mapper_runs;              /* the mapper thread runs */
    bool cannot_grow;              /* mapping has failed: map no further piece */
    uint32_t want;                 /* pieces to map */
    _Atomic int done;              /* release by the mapper thread */
    struct err err;
    pthread_t mapper;
};

void host_tier_init(struct worker *w); /* initial state: no inherited piece */
/* Loader: offers an inherited arena. Returns true and owns fd if it is a piece of a host tier;
 * false: the caller keeps fd. */
bool host_tier_take(struct worker *w, const struct fd_channel_note *note, int fd);
/* Loader, before kv_init(): makes the tier, if configured, or adopts the previous worker's. */
int host_tier_open(struct worker *w, struct err *e) MUST_USE;
/* Loader, after the KV memory has its id: sends the pieces to lagand, mapped or not. */
int host_tier_give(struct worker *w, struct err *e) MUST_USE;
/* True if the adopted tier's content belongs to our KV memory. */
bool host_tier_keeps(const struct worker *w);
/* Engine, before an iteration plans its steps: starts to map pieces, or uses mapped ones. */
void host_tier_update(struct worker *w, nsec now);
/* Engine: returns how long to sleep, at most `most`; less while requests may wait for the tier. */
nsec host_tier_sleep(const struct worker *w, nsec now, nsec most);
void host_tier_close(struct worker *w); /* waits for the mapper thread */
