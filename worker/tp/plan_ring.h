/* plan_ring.h - tensor parallelism: rank 0 plans every step, and every rank runs the planned steps.
 *
 * Rank 0 is a complete worker: requests, scheduler, manifest and lagand's rings. Every other rank
 * has a share of the weights, its own KV memory of the same layout, and a plan ring
 * (ipc/channel.h). Over the plan ring rank 0 sends all input of a step: how the sequence in a slot
 * is sampled, tokens that no step carries, and the packed batch. All ranks run the same steps on
 * each lane in plan order and sample the same tokens, so ranks reply only during the start. When
 * rank 0 sees that a step has ended, every rank has written that step's KV: the step ends after its
 * last collective.
 *
 *     rank r                                rank 0
 *     weights -> JOIN: version, settings,   compares; refuses the start with the first difference
 *                checkpoint
 *     scratch, every kernel loaded          scratch, every kernel loaded
 *                                           ... a standby waits here, in all ranks ...
 *     host tier -> LEFT: ids of the         host tier; ignores the manifest if a rank lacks its KV,
 *               previous KV and host tier   and the manifest's host blocks if a rank lacks the tier
 *                                           KV and manifest -> KV: its id and size
 *     KV -> READY                           all ranks READY -> serves
 *                                           { SLOT, TOKENS, SEEN for a step's slots; PARTS if an
 *                                           operator changed the step's partition; MORE for each
 *                                           record that a long step needs; STEP } ...
 *
 * If one rank exits, hangs or fails, lagand ends all ranks and starts them again (daemon/group.h).
 * A rank exits when rank 0 has exited.
 */
#pragma once

#include "base/err.h"
#include "ipc/channel.h"
#include "worker/exec/exec.h"
#include "worker/sched/batch.h"
#include "worker/sched/seq.h"
#include "worker/worker.h"

/* Payloads. The reader bounds every field. */
struct plan_ring_join {
    uint64_t checkpoint[2]; /* followed by text: "version X", then one setting per line */
};
struct plan_ring_left {
    uint64_t kv_id[2], host_id[2]; /* 0: none */
};
struct plan_ring_kv {
    uint64_t id[2], bytes;
};
struct plan_ring_slot {
    uint32_t slot, n_bias; /* followed by struct logit_bias [n_bias] */
    struct sampling how;   /* prompt and bias NULL */
};
struct plan_ring_tokens {
    uint32_t slot, first, n, zero; /* followed by token_id [n]; SEEN: no tokens, first is 0 */
};

struct plan_ring_partition {
    uint32_t partition, zero;
    struct exec_part part[MAX_LANES];
};

/* Largest payloads in bytes: JOIN; part of a packed batch. PLAN_MOST_TOKENS: tokens of a record. */
enum { JOIN_BYTES = 16 << 10, PLAN_BYTES = 64 << 10, PLAN_MOST_TOKENS = PLAN_BYTES / 4 };

/* Rank 0's ends of the plan rings. */
struct plan_ring {
    uint32_t n; /* other ranks; 0: no rank group */
    struct channel channel[MAX_RANKS - 1];
    void *packed; /* [packed_bytes] a batch */
    size_t packed_bytes;
    struct exec_part part[MAX_PARTITIONS][MAX_LANES]; /* as last sent to the other ranks */
};

/* Attaches to the inherited plan ring of each other rank. -EBADMSG: a descriptor is missing. */
int plan_ring_open(struct worker *w, struct err *e) MUST_USE;
void plan_ring_close(struct plan_ring *p);

/* The start, on the loader thread. Each blocks until every rank has answered. */

/* Checks that version, settings and weights are equal; -EINVAL names the first difference. */
int plan_ring_join(struct worker *w, struct err *e) MUST_USE;

struct plan_ring_missing {
    uint32_t kv, host; /* a rank that lacks the previous KV or host tier that rank 0 has; 0: none */
};
/* Compares every rank's memory of the previous worker with rank 0's (*ours). */
int plan_ring_left(struct worker *w, const struct plan_ring_left *ours,
                   struct plan_ring_missing *ret, struct err *e) MUST_USE;
/* Sends rank 0's KV id and size; returns when every rank has such KV memory and can run steps. */
int plan_ring_ready(struct worker *w, const struct plan_ring_kv *kv, struct err *e) MUST_USE;

/* Engine thread: allocates memory for packed batches up to the size of `longest`. -ENOMEM. */
int plan_ring_alloc(struct plan_ring *p, const struct batch *longest, struct err *e) MUST_USE;
/* Engine thread, before plan_ring_step(), for the first chunk (`first`) of each sequence in the
 * step: sends how the sequence is sampled and the tokens that no step carries. Ranks collect later
 * tokens that sampling depends on (n-grams, frequencies) from the steps. For prompt
 * log-probabilities a rank also needs the token after the step's last one. Blocks like
 * plan_ring_step(). */
int plan_ring_sequence(struct worker *w, const struct batch_segment *first, const struct seq *seq,
                       const struct sampling *how, struct err *e) MUST_USE;
/* Engine thread, directly before exec_start(b): sends b to every rank. Blocks while a ring is full,
 * and updates the heartbeat meanwhile. Returns 0 at once if there are no other ranks. */
int plan_ring_step(struct worker *w, const struct batch *b, struct err *e) MUST_USE;

/* A rank above 0, on the loader thread. Negative errno: the plan ring is corrupt (-EBADMSG) or
 * closed. */

/* Sends version, settings and checkpoint; does not wait for a reply. */
int plan_ring_send_join(struct worker *w, struct err *e) MUST_USE;
/* Sends the ids of the previous worker's KV memory and host tier that this rank has; ids of 0:
 * none. Does not wait. */
int plan_ring_send_left(struct worker *w, const struct plan_ring_left *left,
                        struct err *e) MUST_USE;
/* Blocks until rank 0 has sent the id and size of its KV memory. */
int plan_ring_await_kv(struct worker *w, struct plan_ring_kv *kv, struct err *e) MUST_USE;
/* Reports that this rank can run steps. */
int plan_ring_send_ready(struct worker *w, struct err *e) MUST_USE;
