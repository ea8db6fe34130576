/* seq.h - struct seq: one sequence as the scheduler sees it (tokens, position, limits, state).
 *
 * The intake (worker/io/intake.h) makes the struct from a SUBMIT and passes it to scheduler_add();
 * scheduler_reap() returns it with the reason of its end. Preemption makes the generated tokens
 * part of the prompt: n_prompt grows, and max_new and min_new shrink by the same number. The
 * scheduler never uses `owner`.
 *
 * A sequence group is the sequences (members) of one request that share a prompt: beams or samples.
 * scheduler_add() gets only the first member, which links the others; scheduler_reap() returns
 * every member. All members are admitted together, or none is. The first member computes the shared
 * prompt, then the others fork from it: they get block-table rows that refer to its blocks. Beams
 * form a group until the search ends. Samples separate at the fork and are then scheduled
 * independently. Members of a group are preempted together; n_shared then grows to their common
 * prefix. An adopted group is added in the same way; each member's prompt includes the tokens that
 * it has generated. A search is adopted with all beams or not at all.
 */
#pragma once
#include "worker/kv/kv_reuse.h"
#include "worker/sched/beam_search.h"

enum seq_state {
    SEQ_NEW,     /* not in the scheduler */
    SEQ_WAITING, /* no slot */
    SEQ_ENCODER, /* has a slot; encoder layers are planned or in flight */
    SEQ_PREFILL, /* has a slot; its prompt is being computed */
    SEQ_DECODE,
    SEQ_LAST,      /* its step that reaches max_new is in flight, so no further step is planned */
    SEQ_PREEMPTED, /* ends its steps in flight, then loses slot and blocks and is waiting again */
    SEQ_ENDED      /* ends its steps in flight, then is returned by scheduler_reap() */
};

/* One sequence. The fields that every step uses come first, in two cache lines, because a step
 * visits about 1,000 sequences. */
struct seq {
    /* The scheduler writes all fields, except those marked "intake": the intake sets them before
     * scheduler_add(), and then only preemption changes them. */
    struct seq *next;
    token_id *token;    /* intake. [cap] prompt, then generated tokens */
    uint64_t lane_step; /* number of the last planned step that has the sequence */
    uint8_t lane;       /* lane of lane_step */
    /* Intake. The next step is planned after the sequence's last step is committed, because its
     * tokens are decided on the host (beam search). */
    bool plan_after_commit;
    bool is_suspended; /* excluded from planning */
    bool has_forked;   /* member whose own block-table row refers to the prompt's blocks */
    enum seq_state state;
    uint32_t slot;      /* valid while the sequence is in the list of running sequences */
    uint32_t in_flight; /* number of uncommitted steps that have the sequence */
    uint32_t n_prompt;  /* intake. Prompt tokens; includes outputs delivered before a restart */
    uint32_t max_new;   /* intake. Tokens still to generate, at least 1 */
    uint32_t n_tokens;  /* known tokens in token[], prompt included */
    uint32_t n_planned; /* positions in planned or committed steps */
    uint32_t n_done;    /* positions in committed steps */
    uint32_t n_out;     /* generated tokens, those in flight included */

    uint32_t n_draft_in_flight; /* uncommitted drafts; n_planned and n_out count them as accepted */
    /* Intake from here to from_previous_worker. */
    uint32_t n_draft; /* maximum drafts in a step; scheduler_add() may set 0 */
    uint32_t n_source;
    uint32_t cap;   /* >= n_prompt + max_new */
    uint32_t n_end; /* length of end_id[]: first n_eos end-of-sequence ids, then stop ids */
    uint32_t n_eos, min_new; /* end ids are ignored before min_new generated tokens */
    uint32_t n_shared; /* first member: positions that all members share, below each n_prompt */
    nsec deadline;     /* NSEC_NEVER: none */
    /* Links of the group; NULL: no group. The scheduler clears them when samples have forked. */
    struct seq *first_member, *next_member;
    struct beam *beam; /* the beam search; its arrays by slot have member i at i. NULL: no beam */

    uint32_t n_members; /* first member: number of members, itself included */
    token_id end_id[48];
    req_id id;
    const token_id *source; /* encoder input [n_source], owned by the caller; NULL: decoder-only */
    float priority;         /* 0 .. 1 */
    uint32_t client;        /* for fairness between clients */
    uint64_t lora;          /* adapter; 0: none */
    uint32_t pages; /* device pages of the adapter; all sequences with this adapter share them */
    uint32_t n_keep;
    const struct kv_keep *keep; /* [n_keep] retention of the sequence's blocks */
    uint64_t salt;              /* KV is shared only between requests of equal salt */
    /* Positions whose K and V a previous worker left in the blocks of adopted_slot; below n_prompt.
     * 0: no such positions. scheduler_add() sets 0 if they cannot be used. */
    uint32_t n_adopted, adopted_slot;
    bool prompt_logprobs;
    bool wants_states; /* the encoder runs even if the cross KV is cached */
    /* Started in the previous worker: waits if its blocks are in a host tier not attached yet. */
    bool from_previous_worker;

    /* Written by the scheduler, from here to `behind`. */
    uint16_t reason; /* enum lagan_reason, once ended */
    struct seq *prev;
    nsec arrived;
    uint64_t fair_tag, arrival_number; /* order within a priority */
    uint32_t n_preemptions;
    uint32_t n_same;   /* first member: positions whose full blocks all beams share */
    uint32_t n_passed; /* requests with an adapter that started while this one waited for pages */
    uint32_t n_cached; /* prompt positions found in the cache at the first admission */
    struct kv_use kv_use; /* of all its slots */
    uint32_t enc_token;
    uint32_t n_enc_layers; /* encoder layers planned so far */
    uint64_t fork_step;    /* step of fork_lane in which the member forked; 0: none */
    uint8_t fork_lane;
    bool cross_kv_cached; /* the cross KV is in the prefix cache, so the encoder is skipped */
    bool must_encode;     /* as wants_states, but set by the scheduler */
    struct kv_namespace cache_namespace;
    struct {                   /* the sequence that computes a prefix of this prompt now */
        uint32_t slot, n_done; /* its slot + 1 (0: none), and its n_done when it was found */
        req_id id;
    } behind;

    void *owner; /* not used by the scheduler */
};

/* Changes the state of q; the only function that does. Aborts if the change is not allowed. */
void seq_move(struct seq *q, enum seq_state to);

/* A list of sequences, ordered by descending priority, then fairness tag, then arrival number. */
struct seq_list {
    struct seq *first, *last;
    uint32_t n;
};
bool seq_before(const struct seq *a, const struct seq *b);
/* True if q is a later member that has not forked: it is not planned, the first member is. */
static inline bool
seq_follows(const struct seq *q)
{
    return q->first_member && q->first_member != q && !q->has_forked;
}
void seq_insert(struct seq_list *l, struct seq *q);
void seq_append(struct seq_list *l, struct seq *q); /* adds q at the end, whatever its priority */
void seq_remove(struct seq_list *l, struct seq *q);
