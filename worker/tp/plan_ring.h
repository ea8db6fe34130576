/* plan_ring.h - tensor parallelism: rank 0 plans every step, and every rank runs the planned steps.
 *
 * Rank 0 is a complete worker, with requests, scheduler, manifest and lagand's rings. Each rank has
 * a share of the weights and KV memory of the same layout. Each rank above 0 has a plan ring
 * (ipc/channel.h), over which rank 0 sends all input of a step: how the sequence in a slot is
 * sampled, the tokens that are not in the batch of a step, and the packed batch. All ranks run the
 * same steps on each lane in plan order and sample the same tokens, so ranks reply only during the
 * start. When rank 0 sees that a step has ended, every rank has written the KV of the step, because
 * a step ends after its last collective.
 *
 *     rank r                                rank 0
 *     loads weights; sends JOIN: version,   compares; refuses the start with the first difference
 *       settings, checkpoint
 *     opens its steps                       opens its steps
 *                                           ... a standby waits here, in all ranks ...
 *     opens the host tier; sends LEFT: ids  ignores the manifest if a rank lacks the KV, and its
 *       of the previous KV and host tier    host blocks if a rank lacks the host tier
 *                                           opens KV and manifest; sends KV: its id and size
 *     opens KV with this id and size;       serves when all ranks are READY, and sends:
 *       sends READY                         { SLOT, TOKENS, SEEN for a step's slots; PARTS if an
 *                                           operator changed the step's partition; MORE for each
 *                                           record that a long step needs; STEP } ...
 *
 * If one rank exits, hangs or fails, lagand ends all ranks and starts them again
 * (daemon/supervise/rank_group.h).
 * A rank exits when rank 0 has exited.
 */
#pragma once
#include "base/err.h"
#include "ipc/channel.h"
#include "worker/exec/exec.h"
#include "worker/sched/batch.h"
#include "worker/sched/seq.h"
#include "worker/worker.h"

/* Payloads of the records. The reader checks the limits of every field. */
struct plan_ring_join {
    uint64_t checkpoint[2]; /* hash; followed by text: "version X", then one setting per line */
};
struct plan_ring_left {
    uint64_t kv_id[2], host_id[2]; /* KV ids (adopt.h) of the KV arena and host tier; 0: none */
};
struct plan_ring_kv {
    uint64_t id[2], bytes;
};
struct plan_ring_slot {
    uint32_t slot, n_bias; /* followed by struct logit_bias [n_bias] */
    struct sampling how;   /* its pointers prompt and bias are NULL */
};
/* Record TOKENS: followed by token_id [n], the slot's tokens from position `first` on. Record SEEN
 * has no tokens: the slot's first n tokens are its history (penalties, no_repeat_ngram). */
struct plan_ring_tokens {
    uint32_t slot, first, n, zero;
};
struct plan_ring_partition {
    uint32_t partition, zero;
    struct exec_part part[MAX_LANES];
};

/* Largest payload of JOIN, and of MORE and STEP; most tokens of a TOKENS record. */
enum { JOIN_BYTES = 16 << 10, PLAN_BYTES = 64 << 10, PLAN_MOST_TOKENS = PLAN_BYTES / 4 };

/* Rank 0's ends of the plan rings. */
struct plan_ring {
    uint32_t n; /* number of other ranks; 0: the model has one rank */
    struct channel channel[MAX_RANKS - 1];
    void *packed; /* [packed_bytes] the packed batch that is being sent */
    size_t packed_bytes;
    struct exec_part part[MAX_PARTITIONS][MAX_LANES]; /* the parts that other ranks have now */
};

/* Attaches to the inherited plan ring of each other rank. -EBADMSG: a descriptor is missing. */
int plan_ring_open(struct worker *w, struct err *e) MUST_USE;
void plan_ring_close(struct plan_ring *p);

/* ---- rank 0, loader thread: each call blocks until every other rank has replied */

/* Checks that version, settings and weights equal rank 0's. -EINVAL: e has the first difference. */
int plan_ring_join(struct worker *w, struct err *e) MUST_USE;
struct plan_ring_missing {
    uint32_t kv, host; /* a rank without the previous KV or host tier that rank 0 has; 0: none */
};
/* Compares every rank's ids of the previous worker's KV and host tier with rank 0's (*ours). */
int plan_ring_left(struct worker *w, const struct plan_ring_left *ours,
                   struct plan_ring_missing *ret, struct err *e) MUST_USE;
/* Sends rank 0's KV id and size; returns when every rank has such KV memory and can run steps. */
int plan_ring_ready(struct worker *w, const struct plan_ring_kv *kv, struct err *e) MUST_USE;

/* ---- rank 0, engine thread */

/* Allocates memory for packed batches up to the size of `longest`. -ENOMEM. */
int plan_ring_alloc(struct plan_ring *p, const struct batch *longest, struct err *e) MUST_USE;
/* Sends how a sequence is sampled, and the tokens before its first chunk, because no step contains
 * these tokens. Call before plan_ring_step() for each sequence whose first chunk is in the step.
 * For prompt log-probabilities all prompt tokens are sent, because a rank needs the token that
 * follows the last token of a step. Blocks like plan_ring_step(). */
int plan_ring_sequence(struct worker *w, const struct batch_segment *first, const struct seq *seq,
                       const struct sampling *how, struct err *e) MUST_USE;
/* Sends b to every other rank; call directly before exec_start(b). Blocks while a ring is full, and
 * updates the heartbeat meanwhile. Returns 0 at once if there are no other ranks. */
int plan_ring_step(struct worker *w, const struct batch *b, struct err *e) MUST_USE;

/* ---- a rank above 0, loader thread. -EBADMSG: the plan ring is corrupt, or a record is invalid */

/* Sends version, settings and checkpoint; does not wait for a reply. */
int plan_ring_send_join(struct worker *w, struct err *e) MUST_USE;
/* Sends the ids of the previous worker's KV and host tier that this rank has; does not wait. */
int plan_ring_send_left(struct worker *w, const struct plan_ring_left *left,
                        struct err *e) MUST_USE;
/* Blocks until rank 0 has sent the id and size of its KV memory. */
int plan_ring_await_kv(struct worker *w, struct plan_ring_kv *kv, struct err *e) MUST_USE;
/* Reports to rank 0 that this rank can run steps. */
int plan_ring_send_ready(struct worker *w, struct err *e) MUST_USE;
