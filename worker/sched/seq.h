/* seq.h - one sequence as the scheduler sees it: tokens, position, limits, state.
 *
 * Intake fills in the struct and passes it to scheduler_add(); scheduler_reap() returns it with the
 * reason. Preemption adds generated tokens to the prompt: n_prompt grows, max_new and min_new
 * shrink by the same number. The scheduler never uses `owner`.
 *
 * A sequence group is the sequences of one request that share a prompt: beams or samples. Only the
 * first member is added; it links the others. They are admitted all or none. The first computes the
 * shared prompt, the others fork from it. Beams stay together to the end; samples are independent
 * after the fork. Members that are together are preempted together; n_shared then grows to their
 * common prefix. scheduler_reap() returns every member. An adopted group is added in the same way,
 * each member with its remaining tokens: all beams of a search, with their tokens so far as prompt,
 * or none of them.
 */
#pragma once

#include "worker/kv/kv_reuse.h"
#include "worker/sched/beam_search.h"

enum seq_state {
    SEQ_NEW,     /* not in the scheduler */
    SEQ_WAITING, /* no slot */
    SEQ_ENCODER, /* has a slot; encoder layers are planned or in flight */
    SEQ_PREFILL, /* has a slot; its prompt is computed */
    SEQ_DECODE,
    SEQ_LAST,      /* the step that reaches max_new is in flight; no more are planned */
    SEQ_PREEMPTED, /* waits for steps in flight, then gives slot and blocks and waits again */
    SEQ_ENDED      /* waits for steps in flight, then for scheduler_reap() */
};

/* The fields of every step come first, in two cache lines, because a step visits about 1,000
 * sequences. */
struct seq {
    /* Written by the scheduler, except fields marked "intake": intake sets them, and only
     * preemption changes them. */
    struct seq *next;
    token_id *token;    /* intake. [cap]: prompt, then generated tokens */
    uint64_t lane_step; /* last step that carries the sequence */
    uint8_t lane;       /* lane of lane_step */
    /* Intake. The next token depends on all tokens before it (penalties, masks), so the next step
     * is planned after this one is committed. */
    bool plan_after_commit;
    bool is_suspended; /* excluded from planning */
    bool has_forked;   /* group member that has its copy of the shared prompt */
    enum seq_state state;
    uint32_t slot;      /* valid in the list of running sequences */
    uint32_t in_flight; /* uncommitted steps that carry the sequence */
    uint32_t n_prompt;  /* intake. Tokens given, outputs delivered earlier included */
    uint32_t max_new;   /* intake. Tokens still to generate, at least 1 */
    uint32_t n_tokens;  /* known tokens in token[], prompt included */
    uint32_t n_planned; /* positions in planned or committed steps */
    uint32_t n_done;    /* positions in committed steps */
    uint32_t n_out;     /* generated tokens, those in flight included */

    uint32_t n_draft_in_flight; /* drafts in n_planned and n_out, counted as accepted */
    /* Intake from here to from_previous_worker. */
    uint32_t n_draft; /* drafts in a step at most; scheduler_add() may set 0 */
    uint32_t n_source;
    uint32_t cap;            /* >= n_prompt + max_new */
    uint32_t n_end;          /* end ids: the first n_eos are end-of-sequence, the rest stop ids */
    uint32_t n_eos, min_new; /* end ids are ignored before min_new generated tokens */
    uint32_t n_shared; /* first member: common prompt positions, below each member's n_prompt */
    nsec deadline;     /* NSEC_NEVER: none */
    /* Group links; NULL without a group. The scheduler clears them when samples have forked. */
    struct seq *first_member, *next_member;
    struct beam *beam; /* the search; members are in the order of its slots; NULL: no beam */

    uint32_t n_members; /* first member: all members, itself included */
    token_id end_id[48];
    req_id id;
    const token_id *source; /* encoder input [n_source], owned by the caller; NULL: decoder-only */
    float priority;         /* 0 .. 1 */
    uint32_t client;        /* for fairness between clients */
    uint64_t lora;          /* adapter; 0: none */
    uint32_t pages;         /* pages of the adapter, shared by its users */
    uint32_t n_keep;
    const struct kv_keep *keep; /* [n_keep] retention of its blocks */
    uint64_t salt;              /* KV is shared only between requests of equal salt */
    /* Positions with adopted K and V in the blocks of adopted_slot, below n_prompt; 0: none.
     * scheduler_add() sets 0 if they cannot be used. */
    uint32_t n_adopted, adopted_slot;
    bool prompt_logprobs;
    bool wants_states; /* the encoder runs even if the cross KV is cached */
    /* Started in the previous worker: waits until its blocks in the host tier are available. */
    bool from_previous_worker;

    /* Scheduler from here to behind. */
    uint16_t reason; /* enum lagan_reason, once ended */
    struct seq *prev;
    nsec arrived;
    uint64_t fair_tag, arrival_number; /* order within a priority */
    uint32_t n_preemptions;
    uint32_t n_same;   /* first beam: positions whose full blocks all beams share */
    uint32_t n_passed; /* overtaking requests with adapter pages while it waited for pages */
    uint32_t n_cached; /* prompt positions that were cached at its first admission */
    uint32_t enc_token;
    uint32_t n_enc_layers; /* encoder layers planned so far */
    uint64_t fork_step;    /* step in which it forked from the first member; 0: none */
    uint8_t fork_lane;
    bool cross_kv_cached; /* the cross KV is cached: the encoder is skipped */
    bool must_encode;     /* the encoder runs even if the cross KV is cached */
    struct kv_namespace cache_namespace;
    struct {                   /* last known prefix in flight: the sequence that computes it */
        uint32_t slot, n_done; /* slot + 1; 0: none */
        req_id id;
    } behind;

    void *owner; /* not used by the scheduler */
};

/* The only function that changes a sequence's state; aborts on a change that is not allowed. */
void seq_move(struct seq *q, enum seq_state to);

/* Ordered by descending priority, then fairness tag, then arrival number. */
struct seq_list {
    struct seq *first, *last;
    uint32_t n;
};
bool seq_before(const struct seq *a, const struct seq *b);
/* True for a member that has not forked: its state is the first member's. */
static inline bool
seq_follows(const struct seq *q)
{
    return q->first_member && q->first_member != q && !q->has_forked;
}
void seq_insert(struct seq_list *l, struct seq *q);
void seq_append(struct seq_list *l, struct seq *q); /* at the end, ignoring the order */
void seq_remove(struct seq_list *l, struct seq *q);
