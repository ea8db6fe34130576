/* plan_ring.h - one model on several workers: rank 0 plans, and every rank does what was planned.
 *
 * Rank 0 is a worker like any, with all requests, the scheduler, the manifest and lagand's rings.
 * Each other rank has a part of the model, its own KV memory of the same form, and a plan ring
 * (ipc/channel.h) by which rank 0 tells it whatever a step needs: who has taken a slot, with the
 * tokens that no step will carry, and the batch itself, packed. All run the same steps on each lane
 * in the order of the plan and draw the same tokens, so nothing but answers to the start comes
 * back. When rank 0 sees a step done, every rank has written what that step writes: the last sum
 * over ranks comes behind it.
 *
 *     rank r                                rank 0
 *     weights -> JOIN: version, settings,   the same everywhere, or refused with the difference
 *                checkpoint
 *     scratch, every kernel met             scratch, every kernel met
 *                                           ... a standby waits here, in all ranks ...
 *     host tier -> LEFT: the KV of before,  host tier
 *     and the host tier, if all of it is    a manifest that speaks of KV which a rank lacks is not
 *     there                                 used, nor what it says of the host tier
 *                                           KV and manifest -> KV: its number and size
 *     KV -> READY                           all are READY -> serves
 *                                           { SLOT, TOKENS, SEEN of a step's slots, PARTS if an
 *                                           operator has changed its partition's, MORE as often as a
 *                                           step is longer than a record, STEP } ...
 *
 * One of them dead, stopped or failed: lagand ends them all and starts all again (daemon/group.h).
 * A rank that finds rank 0 gone leaves.
 */
#ifndef WORKER_TP_PLAN_RING_H
#define WORKER_TP_PLAN_RING_H

#include "base/err.h"
#include "ipc/channel.h"
#include "worker/exec/exec.h"
#include "worker/sched/batch.h"
#include "worker/sched/seq.h"
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
struct plan_ring_slot {
    uint32_t slot, n_bias; /* struct logit_bias [n_bias] behind it */
    struct sampling how;   /* prompt and bias NULL */
};
struct plan_ring_tokens {
    uint32_t slot, first, n, zero; /* token_id [n] behind it; SEEN: none, and first 0 */
};

struct plan_ring_partition {
    uint32_t partition, zero;
    struct exec_part part[MAX_LANES];
};

/* Of one record, at most: a JOIN; of a packed batch; tokens. */
enum { JOIN_BYTES = 16 << 10, PLAN_BYTES = 64 << 10, PLAN_MOST_TOKENS = PLAN_BYTES / 4 };

/* Rank 0's ends of the plan rings. */
struct plan_ring {
    uint32_t n; /* other ranks; 0: there is no group */
    struct channel channel[MAX_RANKS - 1];
    void *packed; /* [packed_bytes] a batch */
    size_t packed_bytes;
    struct exec_part part[MAX_PARTITIONS][MAX_LANES]; /* as the others know them */
};

/* Attaches to the inherited ring of each other rank; none where tensor_parallel is 1. -EBADMSG:
 * a descriptor is missing. */
int plan_ring_open(struct worker *w, struct err *e) MUST_USE;
void plan_ring_close(struct plan_ring *p);

/* The start, on the loader thread. Each blocks until every rank has answered. */

/* All ranks have the same version, settings and weights; -EINVAL with the first difference. */
int plan_ring_join(struct worker *w, struct err *e) MUST_USE;

struct plan_ring_missing {
    uint32_t kv, host; /* a rank that did not find what rank 0 has found; 0: none */
};
/* Compares what every rank has found of a previous worker with ours. */
int plan_ring_left(struct worker *w, const struct plan_ring_left *ours,
                   struct plan_ring_missing *ret, struct err *e) MUST_USE;
/* Reports rank 0's KV memory; every rank has its own of that size afterwards and can run steps. */
int plan_ring_ready(struct worker *w, const struct plan_ring_kv *kv, struct err *e) MUST_USE;
/* What JOIN reports of this process, written to buf of n bytes, n at least JOIN_BYTES. Returns
 * its length. */
size_t plan_ring_identity(const struct worker *w, void *buf, size_t n);

/* Engine thread: memory for packed batches as long as the longest. -ENOMEM. */
int plan_ring_alloc(struct plan_ring *p, const struct batch *longest, struct err *e) MUST_USE;
/* Engine thread, for the first chunk of each sequence of a step, before plan_ring_step(): sends
 * how its tokens are sampled, and the tokens that no step will carry. Later tokens that sampling
 * depends on (n-grams, frequencies) every rank collects from the steps; for prompt
 * log-probabilities a rank also needs the token behind a step's last one. first: the run of the
 * chunk. Blocks as plan_ring_step(). */
int plan_ring_sequence(struct worker *w, const struct batch_segment *first, const struct seq *seq,
                       const struct sampling *how, struct err *e) MUST_USE;
/* Engine thread, right before exec_start(b): sends b to every rank. Blocks while a ring is full,
 * and beats meanwhile. Does nothing without other ranks. */
int plan_ring_step(struct worker *w, const struct batch *b, struct err *e) MUST_USE;

#endif
