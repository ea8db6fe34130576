/* scheduler.h - decides which sequences run in the next step, and on which KV blocks.
 *
 * Pure: no clock, I/O, device or thread; no allocation after scheduler_new(). Times and results are
 * arguments, decisions are returned as struct batch. The same calls give the same batches.
 *
 *     scheduler_add      a request arrived                  -> waiting
 *     scheduler_plan     a lane's next step                 waiting -> running
 *     scheduler_commit   applies the step's sampled tokens  running -> running, ended
 *                        max_utilization without blocks     running -> waiting, as a prompt
 *     scheduler_cancel   client gone, or stop string found  any     -> ended
 *     scheduler_suspend  slow reader: not planned until it is resumed
 *     scheduler_reap     returns ended sequences            ended   -> owner; blocks are free
 *
 * Two steps of a lane may be in flight: step n + 1 is planned before step n is committed
 * (TOKEN_FROM_LAST). If a sequence ends in step n, its token of step n + 1 is computed and
 * discarded. Progress: if sequences wait and none runs, plan returns a step or ends the first
 * waiting sequence with LAGAN_E_TOO_LONG. Suspended sequences are exempt: they keep slot and blocks
 * until another sequence needs them.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "worker/kv/kv.h"
#include "worker/sched/batch.h"
#include "worker/sched/seq.h"

struct scheduler;
/* NO_EVICT: admits a sequence if its worst-case KV fits; preempts only suspended sequences.
 * MAX_UTILIZATION: admits if the prompt fits; if blocks run out, preempts the last sequence in list
 * order. STATIC: admits as many as fit, then none until all have ended. MAX_REQUESTS: admits by
 * slots alone; the cache must be large enough for max_seqs sequences of max_len. */
enum policy { POLICY_NO_EVICT, POLICY_MAX_UTILIZATION, POLICY_STATIC, POLICY_MAX_REQUESTS };
/* Prompts share a step first come, first served, or by one chunk_unit each in rotation. */
enum chunks { CHUNK_POLICY_FCFS, CHUNK_POLICY_EQUAL_PROGRESS };
struct scheduler_limits {
    enum policy policy;
    enum chunks chunks;
    uint32_t max_seqs;       /* sequences with a slot, all lanes together */
    uint32_t max_tokens;     /* decoder tokens in one step; encoder tokens are not counted */
    uint32_t max_len;        /* prompt and output tokens of one sequence */
    uint32_t max_enc_tokens; /* rows of enc_state: encoder input tokens held at the same time */
    uint32_t max_chunk;      /* tokens of one prompt in a step; 0: no limit */
    /* Chunks other than a prompt's last are multiples of it; 0: tokens_per_block if that is at most
     * max_tokens, else 1. */
    uint32_t chunk_unit;
    uint8_t n_lanes, lane_work[MAX_LANES]; /* lane_work: mask of enum work */
    uint32_t lane_tokens[MAX_LANES];       /* prompt tokens in a step of the lane; 0: max_tokens */
    uint32_t lane_seqs[MAX_LANES];         /* prompts in a step of the lane; 0: no limit */
    uint32_t bucket[64], n_buckets;
    uint16_t enc_layers;   /* encoder layers computed in a step; 0: all */
    uint16_t n_enc_layers; /* of the model; 0: decoder-only */
    /* Encoder tokens times layers in a step that also decodes, at least one layer; 0: no limit. */
    uint64_t enc_work;
    /* Deficit round robin: tokens per client and round; orders requests of equal priority. 0: order
     * of arrival. */
    uint32_t quantum;
    /* Draft tokens of a sequence in a decode step at most; seq.n_draft may be lower. Fewer are
     * planned if tokens or reserved blocks are short. Draft i, from 1, continues token
     * i - 1 - draft_back[i - 1] of its segment: with 0 everywhere the drafts are a chain. */
    uint8_t n_draft, draft_back[MAX_DRAFT];
    uint32_t pages; /* device pages for LoRA adapters */
    /* If only beam searches decode, and they have at most this many beams together, they share one
     * step: each waits for the others' step. 0: they do not wait. */
    uint32_t beam_tokens;
    /* While sequences decode, encoder inputs wait until enc_batch[i] of them (the largest that
     * fits) can start, or for enc_wait. Prompts wait until they have prefill_batch_tokens tokens
     * together, or for prompt_wait. n_enc_batches 0, prefill_batch_tokens 0: no wait. */
    uint32_t enc_batch[8], n_enc_batches, prefill_batch_tokens;
    nsec enc_wait, prompt_wait;
};

/* -EINVAL: the limits exclude every request; the message says why. kv must outlive s. */
int scheduler_new(struct scheduler **ret, const struct scheduler_limits *l, struct kv *kv,
                  struct err *e) MUST_USE;
struct scheduler *scheduler_free(struct scheduler *s);
CLEAN_FUNC(struct scheduler, scheduler_free)

/* A batch that is large enough for every step of s; scheduler_plan() requires it. */
struct batch *scheduler_batch(const struct scheduler *s) MUST_USE;
/* Upper bounds of a step's table edits and block copies; usable before the KV memory exists. */
uint32_t scheduler_edits(const struct scheduler_limits *l, const struct kv_config *c);
uint32_t scheduler_copies(const struct scheduler_limits *l, const struct kv_config *c);

/* Owns seq until scheduler_reap() returns it; not after an error. -EMSGSIZE: never fits (length,
 * encoder input, pages, blocks). -EINVAL: the prompt is empty, or an encoder input is missing or
 * unexpected. -EEXIST: the id is in use. -ENOTSUP: this cache cannot fork. -EAGAIN: an adopted beam
 * search does not fit; its kept slots are freed. Adopted groups (n_adopted > 0): a beam search
 * resumes with all beams. Forked samples resume one by one; otherwise the first member resumes with
 * the shared prefix. */
int scheduler_add(struct scheduler *s, struct seq *seq, nsec now, struct err *e) MUST_USE;
/* Slots filled by kv_adopt() are kept for scheduler_add() with n_adopted. After `until` a sequence
 * that finds no free slot or blocks reclaims a kept slot; before, the sequence waits. */
void scheduler_keep(struct scheduler *s, nsec until);
void scheduler_unkeep(struct scheduler *s, uint32_t slot); /* no effect if the slot is not kept */
/* Call before the first scheduler_add(). The previous worker had prefilled the slot's prompt of
 * n_prompt tokens in part: reserves blocks for the rest, so that resumed sequences do not take
 * them. No effect if n_prompt is above max_len or the blocks do not fit. */
void scheduler_keep_prompt(struct scheduler *s, uint32_t slot, uint32_t n_prompt,
                           uint32_t n_source);
/* Cached positions of q's prompt, host tier included even while it is not attached. q has been
 * added and is not a later member of a group. */
uint32_t scheduler_cached(const struct scheduler *s, const struct seq *q);
void scheduler_unkeep_all(struct scheduler *s);
/* Ends all sequences with the id. reason: enum lagan_reason. Unknown and ended ids are no error. */
void scheduler_cancel(struct scheduler *s, req_id id, uint16_t reason);
/* Ends q with the members that it is together with; no effect if q has ended. */
void scheduler_end(struct scheduler *s, struct seq *q, uint16_t reason);
/* Excludes the sequences from the following plans, or includes them again. Steps in flight are
 * committed and deadlines still apply. Unknown ids are no error. */
void scheduler_suspend(struct scheduler *s, req_id id, bool suspended);
/* 1: *b is the lane's next step. 0: no step before the next add, commit, cancel or
 * scheduler_wake(). At most two steps of a lane are in flight. */
int scheduler_plan(struct scheduler *s, unsigned lane, nsec now, struct batch *b) MUST_USE;
/* When to plan again: the next deadline or end of a batching wait. 0: now, because one lane freed
 * what another can use. NSEC_NEVER: no event is due. */
nsec scheduler_wake(const struct scheduler *s);
/* The lane whose oldest step must be committed before b, because b waited for that step; b->lane if
 * b is next. Needed because the device may report b before the caller has seen the other lane's
 * step. */
unsigned scheduler_commit_lane(const struct scheduler *s, const struct batch *b);
/* Applies the results of b, the oldest step of its lane; scheduler_commit_lane() must be b->lane.
 * Appends sampled and accepted tokens to seq->token[] unless the sequence has ended; seq->n_tokens
 * tells the caller how many are new. Positions of rejected drafts are planned again. status -EIO:
 * all sequences of the step end with LAGAN_E_INTERNAL, and those that were forked from them in this
 * step or a later one, and those for which the step copied blocks. */
void scheduler_commit(struct scheduler *s, const struct batch *b, const struct batch_result *r,
                      nsec now);
/* From the next plan on each lane does limits.lane_work on that partition. A step names the
 * partition, or 0 (the whole device) while the other lanes are idle. Partition 0 also moves decode
 * to the prefill lane, as soon as the prefill steps in flight are committed. max_tokens: of a step
 * with prefill while sequences decode, decode tokens included. Such a step has at least one
 * chunk_unit of prompt tokens; 0: as many tokens as the lane allows. */
void scheduler_set_partition(struct scheduler *s, unsigned partition, uint32_t max_tokens);
/* The current load: decoding sequences; sequences that decode or could, limited by slots and KV;
 * prompt tokens that could be computed, at most `most`. */
struct scheduler_load {
    uint32_t n_generating, n_there, prompt_tokens;
};
struct scheduler_load scheduler_load(const struct scheduler *s, uint32_t most);
/* The next ended sequence, with its reason; NULL: none. */
struct seq *scheduler_reap(struct scheduler *s);
/* The sequence in that slot, or NULL. */
struct seq *scheduler_seq_at(const struct scheduler *s, uint32_t slot);
uint32_t scheduler_n_running(const struct scheduler *s);
uint32_t scheduler_n_waiting(const struct scheduler *s);
uint64_t scheduler_n_preemptions(const struct scheduler *s); /* since scheduler_new() */
/* Checks every invariant from scratch; aborts on a failure. */
void scheduler_check(const struct scheduler *s);
