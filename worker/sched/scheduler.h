/* scheduler.h - decides which sequences run in the next step, and on which KV blocks.
 *
 * Pure: no clock, I/O, device or thread; no allocation after scheduler_new(). Times and results are
 * arguments, decisions are returned as struct batch. Equal calls give equal batches. The functions:
 *
 *     scheduler_add      takes a new request's sequences         -> waiting
 *     scheduler_plan     makes a lane's next step                waiting -> running
 *                        policy max_utilization, no free block:  running -> waiting (preempted)
 *     scheduler_commit   applies the step's sampled tokens       running -> running or ended
 *     scheduler_cancel   client gone, or stop string found       any state -> ended
 *     scheduler_suspend  the client reads slowly: the sequence is not planned until it is resumed
 *     scheduler_reap     returns ended sequences to their owner; their blocks are free
 *
 * Two steps of a lane may be in flight: step n + 1 is planned before step n is committed, so its
 * input token is TOKEN_FROM_LAST. If a sequence ends in step n, its token of step n + 1 is computed
 * and discarded. Progress: if sequences wait and none runs, scheduler_plan() returns a step or ends
 * the first waiting sequence with LAGAN_E_TOO_LONG. A suspended sequence makes no progress: it
 * keeps its slot and blocks until another sequence needs them.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "worker/kv/kv.h"
#include "worker/sched/batch.h"
#include "worker/sched/seq.h"

struct scheduler;
/* When the scheduler admits a waiting sequence. NO_EVICT: if its worst-case number of blocks is
 * free; preempts only suspended sequences. MAX_UTILIZATION: if blocks for its prompt are free; when
 * blocks run out later, the last sequence in list order is preempted. STATIC: as many as fit, then
 * none until all of them have ended. MAX_REQUESTS: if a slot is free; scheduler_new() requires a
 * cache for max_seqs sequences of max_len tokens. */
enum policy { POLICY_NO_EVICT, POLICY_MAX_UTILIZATION, POLICY_STATIC, POLICY_MAX_REQUESTS };
/* How several prompts divide the tokens of a step. FCFS: the first prompt in list order takes all
 * that it can use. EQUAL_PROGRESS: each prompt gets one chunk_unit of tokens, in rotation. */
enum chunks { CHUNK_POLICY_FCFS, CHUNK_POLICY_EQUAL_PROGRESS };
struct scheduler_limits {
    enum policy policy;
    enum chunks chunks;
    uint32_t max_seqs;       /* maximum number of sequences with a slot, all lanes together */
    uint32_t max_tokens;     /* decoder tokens in one step; encoder tokens are not counted */
    uint32_t max_len;        /* prompt and output tokens of one sequence */
    uint32_t max_enc_tokens; /* rows of the device buffer enc_state: encoder tokens held at once */
    uint32_t max_chunk;      /* tokens of one prompt in a step; 0: no limit */
    /* The length of a chunk is a multiple of this number of tokens, except a prompt's last chunk.
     * 0: tokens_per_block if that is at most max_tokens, else 1. */
    uint32_t chunk_unit;
    uint8_t n_lanes, lane_work[MAX_LANES]; /* lane_work[l]: mask of enum work that lane l does */
    uint32_t lane_tokens[MAX_LANES];       /* prompt tokens in a step of the lane; 0: max_tokens */
    uint32_t lane_seqs[MAX_LANES];         /* prompts in a step of the lane; 0: no limit */
    uint32_t bucket[64], n_buckets;
    uint16_t enc_layers;   /* encoder layers computed in a step; 0: all */
    uint16_t n_enc_layers; /* of the model; 0: decoder-only */
    /* Maximum encoder tokens * layers of a step that also decodes, >= 1 layer; 0: no limit. */
    uint64_t enc_work;
    /* Tokens that each client may add per round of the deficit round robin, which orders requests
     * of equal priority. 0: these requests keep their order of arrival. */
    uint32_t quantum;
    /* n_draft: maximum drafts of a sequence in a decode step; fewer are planned if seq.n_draft is
     * lower, or batched tokens or reserved blocks are short. draft_back: the draft tree; draft i,
     * from 1, continues token i - 1 - draft_back[i - 1] of its segment. All 0: a chain. */
    uint8_t n_draft, draft_back[MAX_DRAFT];
    uint32_t pages; /* number of device pages for LoRA adapters */
    /* While only beams decode, and at most this number of them, all searches share each step: a
     * search that is ready waits until the others are committed. 0: searches do not wait. */
    uint32_t beam_tokens;
    /* Batching while sequences decode: encoder inputs wait until enc_batch[i] of them (the largest
     * value that fits) can start, or for enc_wait; prompts wait until they have
     * prefill_batch_tokens tokens together, or for prompt_wait. n_enc_batches 0,
     * prefill_batch_tokens 0: no such wait. */
    uint32_t enc_batch[8], n_enc_batches, prefill_batch_tokens;
    nsec enc_wait, prompt_wait;
};

/* Creates a scheduler; kv must outlive it. -EINVAL: a limit excludes every request; e names it. */
int scheduler_new(struct scheduler **ret, const struct scheduler_limits *l, struct kv *kv,
                  struct err *e) MUST_USE;
struct scheduler *scheduler_free(struct scheduler *s);
CLEAN_FUNC(struct scheduler, scheduler_free)

/* Returns a new batch with capacity for every step of s; scheduler_plan() requires such a batch. */
struct batch *scheduler_batch(const struct scheduler *s) MUST_USE;
/* Returns the most tokens, up to q->max_new, that q, alone or the first member of a group of equal
 * sequences, can generate in an empty cache; 0: not one. q->first_member of a group is q. */
uint32_t scheduler_most_new(const struct scheduler *s, const struct seq *q);
/* Return the maximum table edits and block copies of a step, even before the KV memory exists. */
uint32_t scheduler_edits(const struct scheduler_limits *l, const struct kv_config *c);
uint32_t scheduler_copies(const struct scheduler_limits *l, const struct kv_config *c);

/* Adds a request: one sequence, or the first member of a sequence group. The scheduler owns seq
 * until scheduler_reap() returns it, but not after an error. -EMSGSIZE: the request can never fit
 * (length, encoder input, adapter pages, blocks). -EINVAL: the prompt is empty, or an encoder input
 * is missing or unexpected. -EEXIST: the id is in use. -EAGAIN: an adopted beam search does not
 * fit; its kept slots are freed.
 * How an adopted group (n_adopted > 0) resumes: a beam search with all beams; forked samples one by
 * one; samples that had not forked, as a group, from the shared positions of the first member. */
int scheduler_add(struct scheduler *s, struct seq *seq, nsec now, struct err *e) MUST_USE;
/* Until this time, slots that kv_adopt() has filled are kept for scheduler_add() with n_adopted >
 * 0, and while some are kept no other sequence is admitted. Later a sequence that finds no free
 * slot or blocks reclaims a kept slot. */
void scheduler_keep(struct scheduler *s, nsec until);
void scheduler_unkeep(struct scheduler *s, uint32_t slot); /* frees a kept slot */
/* Reserves blocks for the rest of a prompt of n_prompt tokens, which the previous worker had
 * prefilled in part in this slot. Call it before the first scheduler_add(), so that no resumed
 * sequence takes these blocks. No effect if n_prompt exceeds max_len or the blocks do not fit. */
void scheduler_keep_prompt(struct scheduler *s, uint32_t slot, uint32_t n_prompt,
                           uint32_t n_source);
/* Returns how many positions of q's prompt are cached, those of a host tier that is not attached
 * yet included. q has been added, and is the first member if it has a group. */
uint32_t scheduler_cached(const struct scheduler *s, const struct seq *q);
void scheduler_unkeep_all(struct scheduler *s);
/* Ends all sequences of this request id; reason: enum lagan_reason. An unknown id is no error. */
void scheduler_cancel(struct scheduler *s, req_id id, uint16_t reason);
/* Ends q and the members of its group that have not separated from it. No effect if q has ended. */
void scheduler_end(struct scheduler *s, struct seq *q, uint16_t reason);
/* Excludes the request's sequences from all later plans (suspended true) or includes them again.
 * Steps in flight are still committed and deadlines still apply. No effect if the id is unknown. */
void scheduler_suspend(struct scheduler *s, req_id id, bool suspended);
/* Plans the lane's next step into *b; at most two steps of a lane are in flight. Returns 1. 0: no
 * step before the next scheduler_add(), _commit(), _cancel() or the time of scheduler_wake(). */
int scheduler_plan(struct scheduler *s, unsigned lane, nsec now, struct batch *b) MUST_USE;
/* Returns when to plan again if no function is called until then: the next deadline or end of a
 * batching wait. 0: now, because a lane freed resources that another can use. NSEC_NEVER: never. */
nsec scheduler_wake(const struct scheduler *s);
/* Returns the lane whose oldest step must be committed next: b->lane if b itself may be committed,
 * else the lane of a step that b waited for on the device. The caller may see the end of b before
 * the end of that step, but the tokens of a sequence must be appended in order of position. */
unsigned scheduler_commit_lane(const struct scheduler *s, const struct batch *b);
/* Applies the results r of b, the oldest step of its lane, which scheduler_commit_lane() permits.
 * Appends sampled and accepted tokens to seq->token[] unless the sequence has ended; the caller
 * sees the new number in seq->n_tokens. Positions of rejected drafts are planned again. With
 * r->status -EIO these sequences end with LAGAN_E_INTERNAL: all of the step, those forked from them
 * in this step or later, and those for which the step copied blocks. */
void scheduler_commit(struct scheduler *s, const struct batch *b, const struct batch_result *r,
                      nsec now);
/* Sets the partition of the steps planned from now on. Above 0 each lane does its limits.lane_work,
 * and a step gets partition 0 (the whole device) while the other lanes are idle. With partition 0
 * decode moves to the prefill lane as soon as no prefill step is in flight. max_tokens limits a
 * step with prefill while sequences decode, its decode tokens included; at least one chunk_unit of
 * prompt tokens is planned anyway. max_tokens 0: no such limit. */
void scheduler_set_partition(struct scheduler *s, unsigned partition, uint32_t max_tokens);
/* The load that the partition controller sees. n_generating: decoding sequences. n_there: sequences
 * that decode or could decode at the same time, as slots and KV allow. prompt_tokens: prompt tokens
 * that could be computed now, counted up to `most`. */
struct scheduler_load {
    uint32_t n_generating, n_there, prompt_tokens;
};
struct scheduler_load scheduler_load(const struct scheduler *s, uint32_t most);
/* Returns an ended sequence, with its reason, to the owner. NULL: there is none. */
struct seq *scheduler_reap(struct scheduler *s);
struct seq *scheduler_seq_at(const struct scheduler *s, uint32_t slot); /* NULL: free slot */
/* Blocks that q has used in all its slots until now. q may have a step in flight. */
struct kv_use scheduler_kv_use(const struct scheduler *s, const struct seq *q);
struct scheduler_counts {
    uint32_t running, waiting;
    uint64_t preemptions;      /* since scheduler_new() */
    uint64_t looked_up, found; /* prompt tokens, at first admissions: in the prefix cache */
};
struct scheduler_counts scheduler_counts(const struct scheduler *s);
/* Returns the blocks of the longest request with an encoder input of n_source tokens. With
 * POLICY_MAX_REQUESTS those of max_running such requests, because it admits without counting. */
struct kv_need scheduler_longest(const struct scheduler *s, uint32_t n_source);
/* Recomputes every counter and list of s and aborts the process if an invariant does not hold. */
void scheduler_check(const struct scheduler *s);
