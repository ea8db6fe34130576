/* scheduler.h - which sequences run in the next step, and on which blocks.
 *
 * Pure: no clock, no I/O, no device, no thread, no allocation after scheduler_new(). Time and results
 * come in as arguments, decisions go out as a struct batch; the same calls in the same order give the
 * same batches.
 *
 *     scheduler_add     a request arrived                    -> waiting
 *     scheduler_plan    a lane's next step                   waiting -> running
 *     scheduler_commit  the tokens that step sampled         running -> running, ended
 *                       blocks ran out (max_utilization)    running -> waiting, what it has is prompt
 *     scheduler_cancel  client gone, or a stop string seen   any     -> ended
 *     scheduler_suspend    its reader stands still: no step carries it until it goes on
 *     scheduler_reap    what has ended, one at a time        ended   -> gone, blocks given back
 *
 * Two steps of a lane may be out at once: plan n + 1 is asked for before commit n (TOKEN_FROM_LAST).
 * A sequence that turns out to have ended at step n has its row of step n + 1 computed all the same;
 * commit throws that token away. Progress: when something waits and nothing runs, plan returns a
 * step, or the head of the queue ends with LAGAN_E_TOO_LONG. It never returns "nothing" for ever, but
 * for those that are suspended: they keep their slot and blocks until somebody finds no room.
 */
#ifndef SCHED_SCHEDULER_H
#define SCHED_SCHEDULER_H

#include "base/base.h"
#include "base/err.h"
#include "worker/kv/kv.h"
#include "worker/sched/batch.h"
#include "worker/sched/seq.h"

struct scheduler;
/* Who is admitted. no_evict: whoever surely has blocks to its end, nobody is ever preempted
 * but who is suspended. max_utilization: whoever
 * has blocks for its prompt; who later finds none takes them from the last in the list. static: a batch of all that
 * fit, the next when it is over. max_requests: as many as there are slots, where blocks cannot run out. */
enum policy { POLICY_NO_EVICT, POLICY_MAX_UTILIZATION, POLICY_STATIC, POLICY_MAX_REQUESTS };
/* Rows for prompts: the first takes what it can, or each a unit in turn. */
enum chunks { CHUNK_POLICY_FCFS, CHUNK_POLICY_EQUAL_PROGRESS };
struct scheduler_limits {
    enum policy policy;
    enum chunks chunks;
    uint32_t max_seqs;   /* slots in one step, all lanes */
    uint32_t max_tokens; /* decoder rows in one step: the chunk budget; sources are not counted */
    uint32_t max_len,
        max_enc_tokens; /* max_enc_tokens: rows of enc_state, all sources there at once */
    uint32_t max_chunk; /* rows of one prompt in a step; 0: as many as there are */
    uint32_t
        chunk_unit; /* non-final chunks are multiples of it; 0: block if <= max_tokens, else 1 */
    uint8_t n_lanes, lane_work[MAX_LANES];
    uint32_t lane_tokens[MAX_LANES],
        lane_seqs[MAX_LANES]; /* of prompts in a step of that lane; 0: no other bound */
    uint32_t bucket[64], n_buckets;
    uint16_t enc_layers;   /* encoder layers a step, 0 = all */
    uint16_t n_enc_layers; /* of the model; 0: decoder-only */
    uint64_t
        enc_work; /* rows times layers of sources in a step that also generates, but a layer at least; 0:
                              no bound */
    /* A turn is so many tokens for each client; requests of equal priority go by turns. 0: by arrival alone. */
    uint32_t quantum;
    /* Guesses that a step of who generates carries at most: seq.n_draft, as far as there are rows and blocks that
     * are paid for. Guess i, from 1, continues the row of its run that is 1 + draft_back[i - 1] before it: with
     * 0 everywhere they are a chain. */
    uint8_t n_draft, draft_back[MAX_DRAFT];
    uint32_t pages; /* of what is on the device for some requests only: LoRA adapters */
    /* Where nobody else generates, searches of up to so many beams in all go on in one step, for which they wait; 0: nobody
     * waits. */
    uint32_t beam_tokens;
    /* While somebody generates: sources wait until one of these numbers of them can start, prompts until they are
     * that many tokens; neither longer than its time. n_enc_batches 0, prompt_batch 0: nobody waits. */
    uint32_t enc_batch[8], n_enc_batches, prompt_batch;
    nsec enc_wait, prompt_wait;
};

/* -EINVAL: limits that could never work, with the sentence. kv is kept, not owned. */
int scheduler_new(struct scheduler **ret, const struct scheduler_limits *l, struct kv *kv,
                  struct err *e) MUST_USE;
struct scheduler *scheduler_free(struct scheduler *s);
CLEAN_FUNC(struct scheduler, scheduler_free)

/* What its plans need at most, as capacities: every batch given to scheduler_plan() has them. */
struct batch *scheduler_batch(const struct scheduler *s) MUST_USE;
/* Table edits and copies of blocks among them, which are known before there is memory for KV. */
uint32_t scheduler_edits(const struct scheduler_limits *l, const struct kv_config *c);
uint32_t scheduler_copies(const struct scheduler_limits *l, const struct kv_config *c);

/* Keeps seq until scheduler_reap(). -EMSGSIZE: never fits (length, source, pools), -EINVAL: no prompt,
 * or a source where none belongs, -EEXIST: the id is here already, -ENOTSUP: the model's cache cannot be forked;
 * each with the sentence; -EAGAIN: a search with n_adopted has no room for what it had, and no slot is kept for it. Of
 * a family with n_adopted a search goes on whole; samples go on alone if they had forked, and else the first does with
 * what all share. */
int scheduler_add(struct scheduler *s, struct seq *seq, nsec now, struct err *e) MUST_USE;
/* Seats that kv_adopt() filled are kept for the requests that had them: scheduler_add() with n_adopted. From
 * then on one is given up whenever anything else finds no room; before, what finds none waits. */
void scheduler_keep(struct scheduler *s, nsec until);
void scheduler_unkeep(struct scheduler *s, uint32_t slot); /* not kept: nothing happens */
/* Before anybody is added: whose slot that is was within a prompt of so many positions. The blocks that were reserved_blocks to
 * it and are not filled stay its, so that nobody who goes on has grown into them when it comes. A number that cannot be, or for
 * which there is no room, changes nothing. */
void scheduler_keep_prompt(struct scheduler *s, uint32_t slot, uint32_t n_prompt,
                           uint32_t n_source);
/* Positions of its prompt that the cache has, the host tier counted whether it is there yet or not. It has been
 * added, and is its family's first or has none. */
uint32_t scheduler_cached(const struct scheduler *s, const struct seq *q);
void scheduler_unkeep_all(struct scheduler *s);
/* All that have the id. reason: enum lagan_reason. Unknown and already ended ids are no error. */
void scheduler_cancel(struct scheduler *s, req_id id, uint16_t reason);
/* One output of its request alone, where it has several; all beams of a search. */
void scheduler_end(struct scheduler *s, struct seq *q, uint16_t reason);
/* Not planned from the next plan on, or planned again. What is launched is committed all the same, deadlines
 * pass. Unknown ids are no error. */
void scheduler_suspend(struct scheduler *s, req_id id, bool suspended);
/* 1: *b is the lane's next step. 0: nothing until an add, commit, cancel or scheduler_wake().
 * At most two steps of a lane are out at once. */
int scheduler_plan(struct scheduler *s, unsigned lane, nsec now, struct batch *b) MUST_USE;
/* Next deadline or batching wait; 0: at once, what one lane gave up is of use to another; NSEC_NEVER: none. */
nsec scheduler_wake(const struct scheduler *s);
/* A lane found done may hide another that was done before it. The lane whose oldest step is to be
 * committed before b, a step that waited for it; b->lane: it is b's turn. */
unsigned scheduler_commit_lane(const struct scheduler *s, const struct batch *b);
/* b: as planned, the oldest of its lane, when it is its turn.
 * Appends each sampled token to its seq->token[] (n_tokens grows) unless the sequence had ended. Of 1 + n_draft
 * rows n_tokens were taken, the last of which sampled; what was refused is planned again. After
 * it, seq->n_tokens tells the caller what is new. status -EIO: all of the step's sequences end with
 * LAGAN_E_INTERNAL, and those that were forked from them in it or in a step behind it, or for whom it copied. */
void scheduler_commit(struct scheduler *s, const struct batch *b, const struct batch_result *r,
                      nsec now);
/* From the next plan on each lane does its own work (limits.lane_work) on that partition; a step says it, or 0, the whole
 * device, while no other lane has anything to do. Rung 0: the lane of prompts generates too, as soon as none of its steps is
 * out that somebody who generates would wait for. rows: of a step with prompts while somebody generates, those who generate in
 * it included, but a unit of prompts at least, in parts of one; 0: as many as the lane has. */
void scheduler_set_partition(struct scheduler *s, unsigned partition, uint32_t rows);
/* What there is to do: sequences that generate, that do or will as far as slots go, and rows of prompts that could be
 * computed, up to `most` of them. */
struct scheduler_load {
    uint32_t n_generating, n_there, prompt_tokens;
};
struct scheduler_load scheduler_load(const struct scheduler *s, uint32_t most);
struct seq *scheduler_reap(struct scheduler *s); /* reason set; NULL: none */
struct seq *scheduler_seq_at(const struct scheduler *s,
                             uint32_t slot); /* who sits there, or NULL */
uint32_t scheduler_n_running(const struct scheduler *s);
uint32_t scheduler_n_waiting(const struct scheduler *s);
uint64_t scheduler_n_preemptions(const struct scheduler *s); /* since the start */
void scheduler_check(
    const struct scheduler *s); /* every invariant, from scratch; stops the program */

#endif
