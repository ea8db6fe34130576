/* plan_ring.h - one model on several workers: rank 0 plans, and every rank does what was planned.
 *
 * Rank 0 is a worker like any, with all requests, the scheduler, the manifest and lagand's rings. Each other rank has
 * a part of the model, its own KV memory of the same form, and a plan ring (ipc/link.h) by which rank 0 tells it
 * whatever a step needs: who has taken a seat, with the tokens that no step will carry, and the batch itself, packed. All run the
 * same steps on each lane in the order of the plan and draw the same tokens, so nothing but answers to the start comes
 * back. When rank 0 sees a step done, every rank has written what that step writes: the last sum over ranks comes
 * behind it.
 *
 *     rank r                                rank 0
 *     weights -> JOIN: version, settings,   the same everywhere, or refused with the difference
 *                checkpoint
 *     scratch, every kernel met             scratch, every kernel met
 *                                           ... a standby waits here, in all ranks ...
 *     host tier -> LEFT: the KV of before,  host tier
 *     and the host tier, if all of it is    a manifest that speaks of KV which a rank lacks is not used,
 *     there                                 nor what it says of the host tier
 *                                           KV and manifest -> KV: its number and size
 *     KV -> READY                           all are READY -> serves
 *                                           { SEAT, TOKENS, SEEN of a step's seats, PARTS if an operator has
 *                                           changed its rung's, MORE as often as a step is longer than a record,
 *                                           STEP } ...
 *
 * One of them dead, stopped or failed: lagand ends them all and starts all again (daemon/group.h). A rank that finds
 * rank 0 gone leaves.
 */
#ifndef WORKER_TP_PLAN_RING_H
#define WORKER_TP_PLAN_RING_H

#include "worker/worker.h"

/* Payloads. What is read of a plan is bounded by the reader. */
struct plan_ring_join {
    uint64_t checkpoint[2]; /* behind it text: "version X", then each setting, one a line */
};
struct plan_ring_left {
    uint64_t kv_id[2], host_id[2]; /* 0: none */
};
struct plan_ring_kv {
    uint64_t id[2], bytes;
};
struct plan_ring_seat {
    uint32_t seat, n_bias; /* struct nudge [n_bias] behind it */
    struct sampling how;   /* prompt and bias NULL */
};
struct plan_ring_tokens {
    uint32_t seat, first, n, zero; /* token_id [n] behind it; SEEN: none, and first 0 */
};

struct plan_ring_parts {
    uint32_t rung, zero;
    struct exec_part part[MAX_LANES];
};

/* Of one record, at most: a JOIN; of a packed batch; tokens. */
enum { JOIN_BYTES = 16 << 10, PLAN_BYTES = 64 << 10, PLAN_MOST_TOKENS = PLAN_BYTES / 4 };

/* main.c: what was inherited of each other rank. */
int plan_ring_open(struct worker *w, struct err *e) MUST_USE;
void plan_ring_close(struct plan_ring *p);
/* Loader. All ranks have the same settings, weights and program. Blocks until they have said so. */
int plan_ring_join(struct worker *w, struct err *e) MUST_USE;
/* Loader. Where KV memory of before is not of one time in all of them it is memory alone. Blocks as well. */
int plan_ring_left(struct worker *w, struct err *e) MUST_USE;
/* Loader, once rank 0 has its KV: until all have theirs. */
int plan_ring_ready(struct worker *w, struct err *e) MUST_USE;
/* Right before exec_start(b). Waits for room where a rank is far behind. */
int plan_ring_step(struct worker *w, const struct batch *b, struct err *e) MUST_USE;

/* rank_loop.c: a rank that is not the first, from its load to its end: as loop_run(). */
int rank_loop_run(struct worker *w, struct err *e);
/* rank_loop.c: its part of plan_ring_join(), plan_ring_left() and plan_ring_ready(); *kv is what rank 0 says. */
int rank_start_join(struct worker *w, struct err *e) MUST_USE;
int rank_start_left(struct worker *w, struct err *e) MUST_USE;
int rank_start_kv(struct worker *w, struct plan_ring_kv *kv, struct err *e) MUST_USE;
int rank_start_ready(struct worker *w, struct err *e) MUST_USE;
/* plan_ring.c: what JOIN says of us, into room of n bytes; its length. */
size_t plan_ring_identity(const struct worker *w, void *room, size_t n);

#endif
