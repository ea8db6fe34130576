/* seq.h - one request as the scheduler sees it: tokens, position, limits, state.
 *
 * Intake fills in its fields and hands the struct to scheduler_add(); it comes back from
 * scheduler_reap() with the reason. A preempt makes a prompt of what it has generated: n_prompt grows, max_new
 * and min_new shrink by as much. owner is for whoever owns the struct (text state, ledger row) and is never
 * looked at here.
 *
 * A family is sequences of one request that begin alike: beams of a search, samples of a prompt. Its first member
 * alone is added, with the others behind it. They are admitted together or not at all; the first computes what
 * they share, the others fork from it. Beams stay together to their end; samples are then each for itself. A preempt is of all
 * who are together: n_shared grows then to what all have alike.
 * Every member comes back from scheduler_reap(). One that a predecessor had is added the same way, each member with
 * what is left of it: of a search all beams, with what they are by then as prompt, or none.
 */
#ifndef SCHED_SEQ_H
#define SCHED_SEQ_H

#include "worker/kv/kv_reuse.h"
#include "worker/sched/beam_search.h"

enum seq_state {
    SEQ_NEW,     /* not the scheduler's */
    SEQ_WAITING, /* no slot */
    SEQ_ENCODER, /* slot; encoder steps planned or running */
    SEQ_PREFILL, /* slot; decoder prompt being computed */
    SEQ_DECODE,
    SEQ_LAST,      /* its last step by length is launched: plan no more */
    SEQ_PREEMPTED, /* gives its slot and blocks up with the last step in flight, then waits again */
    SEQ_ENDED      /* waits for steps in flight, then for scheduler_reap() */
};

/* What a step looks at stands first, in two cache lines: it looks at a thousand of them. */
struct seq {
    /* Both lines are the scheduler's, but for what is marked: that is intake's, and constant but for a preempt. */
    struct seq *next;
    token_id *token;    /* intake's. [cap]: prompt, then generated */
    uint64_t lane_step; /* its last, */
    uint8_t lane;       /* and of which lane */
    /* Intake's. The next token depends on all tokens before it, so that the next step is planned
     * when this one is committed. */
    bool plan_after_commit;
    bool is_suspended; /* no step is planned with it for now */
    bool has_forked;   /* a group's member: it has what the members share */
    enum seq_state state;
    uint32_t slot;      /* while it has one */
    uint32_t in_flight; /* steps launched and not committed that carry it */
    uint32_t n_prompt;  /* intake's. token[]: given, delivered ones included */
    uint32_t max_new;   /* intake's: tokens still to generate, at least 1 */
    uint32_t n_tokens;  /* token[]: known, prompt included */
    uint32_t n_planned; /* positions in launched or finished steps */
    uint32_t n_done;    /* positions in finished steps */
    uint32_t n_out;     /* generated tokens, including those in flight */

    uint32_t n_draft_in_flight; /* of n_planned and n_out, drafts in flight: they count as taken */
    /* Intake's from here on: constant while the scheduler has it, but for a preempt. */
    uint32_t n_draft; /* drafts a step may carry for it; scheduler_add() may make it 0 */
    uint32_t n_source;
    uint32_t cap;            /* >= n_prompt + max_new */
    uint32_t n_end;          /* end ids: the first n_eos are end-of-sequence, the rest stop ids */
    uint32_t n_eos, min_new; /* before min_new generated tokens no end id counts */
    uint32_t
        n_shared; /* of a family's first: positions of the prompt that are alike in all, fewer than any has */
    nsec deadline; /* NSEC_NEVER: none */
    /* Of a family, or NULL. The scheduler makes them NULL when samples have forked. */
    struct seq *first_member, *next_member;
    struct beam *beam; /* the search of which it is a beam, in the order of slots; NULL: none */

    uint32_t n_members; /* the first's: with itself */
    token_id end_id[48];
    req_id id;
    const token_id *source; /* encoder-decoder: [n_source], kept by the owner; NULL: decoder-only */
    float priority;         /* 0 .. 1 */
    uint32_t client;        /* whose turn it takes */
    uint64_t lora;          /* 0: none */
    uint32_t pages;         /* that lora takes, once for all who use it */
    uint32_t n_keep;        /* how long its blocks are of use to others: */
    const struct kv_keep *keep; /* [n_keep] */
    uint64_t salt;              /* shares K and V with requests of the same salt alone */
    /* Positions whose K and V a predecessor left in the blocks of that slot, fewer than n_prompt; 0: none.
     * scheduler_add() makes it 0 where they are of no use. */
    uint32_t n_adopted, adopted_slot;
    bool prompt_logprobs;
    bool wants_states; /* its source is encoded whatever is there */
    /* A previous worker computed part of it, so that it waits for its blocks from the host tier. */
    bool from_previous_worker;

    /* The scheduler's. */
    uint16_t reason; /* enum lagan_reason, once ended */
    struct seq *prev;
    nsec arrived;
    uint64_t turn, arrival_number; /* order among equal priorities: turn, then arrival */
    uint32_t n_preemptions;
    uint32_t n_same;   /* a search's first: positions whose full blocks all beams share */
    uint32_t n_passed; /* that took an adapter's pages before it while there were none for it */
    uint32_t n_cached; /* positions of its prompt that were there when it first got its blocks */
    uint32_t enc_token;
    uint32_t n_enc_layers; /* encoder layers planned so far */
    uint64_t fork_step;    /* that made it hold what the first of its family held; 0: none */
    uint8_t fork_lane;
    bool cross_kv_cached; /* the encoder input's K and V are in the cache: no encoder */
    bool must_encode;     /* the encoder runs whatever the cache has */
    struct kv_namespace space;
    struct { /* whose prompt begins alike and is being computed, when last looked at */
        uint32_t slot, n_done; /* slot + 1; 0: nobody's */
        req_id id;
    } behind;

    /* The owner's. */
    void *owner;
};

/* The only function that changes a sequence's state; stops the program at a step that no life has. */
void seq_move(struct seq *q, enum seq_state to);

/* Lists are in the scheduler's order: priority first, then turn, then arrival. */
struct seq_list {
    struct seq *first, *last;
    uint32_t n;
};
bool seq_before(const struct seq *a, const struct seq *b);
/* A member that has not forked yet: it does what the first does. */
static inline bool
seq_follows(const struct seq *q)
{
    return q->first_member && q->first_member != q && !q->has_forked;
}
void seq_insert(struct seq_list *l, struct seq *q);
void seq_append(struct seq_list *l, struct seq *q); /* at the end, whatever the order */
void seq_remove(struct seq_list *l, struct seq *q);

#endif
