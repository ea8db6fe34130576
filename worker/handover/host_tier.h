/* host_tier.h - allocates the memory of the host tier before READY, and maps it piece by piece.
 *
 * The memory of the tier is divided into HOST_PIECES pieces or fewer. A piece is an arena of its
 * own; lagand passes the pieces to the replacement, which adopts the tier.
 *
 * A GPU driver needs 0.3 s to map 32 GiB, which would delay clients, and every mapped GiB makes the
 * exit of a killed worker 2 ms longer (docs/lab/serving.md), for which the replacement must wait.
 * So only the first piece of a new tier is mapped at the start, and each further piece when half of
 * the last mapped piece is in use.
 *
 * A previous worker's tier of the right size is passed to lagand at once. The mapper thread maps
 * the pieces that were used, after the first step of the resumed requests. Until these pieces are
 * mapped the tier is away (kv_host_tier_away()): its contents stay, and a resumed request with
 * blocks in the tier waits. Ranks of a group map the whole tier before READY: each rank runs the
 * copies that rank 0 plans, and rank 0 does not learn which pieces another rank has mapped.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "ipc/fd_channel.h"
#include "worker/worker.h"

#include <pthread.h>

/* State of the tier. Used by the loader thread until READY, then by the engine thread. While
 * mapper_runs is true and done is MAPPING (0), the mapper thread uses host and err. */
struct host_tier {
    struct host_memory host;       /* base NULL: there is no host tier */
    struct arena old[HOST_PIECES]; /* the previous worker's pieces, not mapped; fd -1: none */
    uint64_t old_id[2];            /* KV id (adopt.h) of the KV arena that old[] was used with */
    bool map_later;                /* the tier is adopted, and no piece of it is mapped yet */
    bool mapper_runs;              /* the mapper thread runs */
    bool cannot_grow;              /* mapping has failed, so no further piece is mapped */
    uint64_t bandwidth;            /* measured bytes per second; 0: unknown */
    double token_ns;               /* running mean of the prefill time of a token; 0: unknown */
    uint32_t want;                 /* number of pieces that the mapper thread is to have mapped */
    _Atomic int done;              /* result of the mapper thread, stored with release */
    struct err err;
    pthread_t mapper;
};

void host_tier_init(struct worker *w); /* sets the initial state: no piece is inherited */
/* Takes the inherited arena fd and returns true if *note names a piece. Loader thread. */
bool host_tier_take(struct worker *w, const struct fd_channel_note *note, int fd);
/* Makes the configured tier, or adopts the previous worker's. Loader thread, before kv_init(). */
int host_tier_open(struct worker *w, struct err *e) MUST_USE;
/* Sends all pieces, mapped or not, to lagand. Loader thread, after the KV arena has its KV id. */
int host_tier_give(struct worker *w, struct err *e) MUST_USE;
/* Measures the copy speed of a new tier. Loader thread, before the first step. An adopted tier is
 * not mapped yet: its blocks are always onboarded. */
void host_tier_measure(struct worker *w);
/* Learns that a token of a prefill step took ns, and decides whether onboarding a block takes less
 * time than computing it. kv.host_bandwidth and kv.prefill_rate replace the measured values. */
void host_tier_learn(struct worker *w, double ns);
/* Returns true if the contents of the adopted tier belong to our KV arena: the KV ids are equal. */
bool host_tier_keeps(const struct worker *w);
/* Starts to map pieces if due, and uses mapped ones. Engine thread, before steps are planned. */
void host_tier_update(struct worker *w, nsec now);
/* Returns how long the engine thread may sleep: `most`, or less while mapping is due or runs. */
nsec host_tier_sleep(const struct worker *w, nsec now, nsec most);
void host_tier_close(struct worker *w); /* waits for the mapper thread */
