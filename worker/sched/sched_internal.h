/* sched_internal.h - struct scheduler and the functions between the files of worker/sched/.
 *
 * A file calls only files that are above it in this list, so the folder has no call cycle:
 *
 *     seq.c, batch.c, beam_search.c, batch_check.c   independent of the others
 *     limits.c         worst-case needs of a configuration and of a request
 *     sharing.c        adapter pages, prefix cache, prefixes in flight
 *     lane_work.c      the work of each lane, and its partition
 *     retire.c         sequences leave their slots: ended, expired, preempted
 *     step_build.c     adds one sequence to a step
 *     admit.c          slots, KV blocks and encoder rows for a sequence
 *     admit_adopted.c  resumes a sequence whose KV a previous worker left
 *     seq_group.c      sequence groups: beams, samples
 *     preempt.c        policy max_utilization: reserves blocks per step, selects victims
 *     encoder.c        encoder inputs of a step
 *     prefill.c        prompts of a step
 *     plan.c           the next step of a lane
 *     commit.c         applies the results of a step
 *     scheduler.c      new, add, cancel, reap, check
 */
#pragma once
#include "base/fair_queue.h"
#include "worker/kv/kv_reuse.h"
#include "worker/sched/scheduler.h"

/* UNREPORTED_STEPS: committed steps (one of each lane) whose tokens may not have reached lagand at
 * a crash; the replacement computes them again. STEPS_OUT: maximum steps of a lane in flight. */
enum { UNREPORTED_STEPS = 2, STEPS_OUT = 2 };

struct slot {
    struct seq *seq; /* NULL: free */
    uint32_t len;    /* positions with reserved blocks; 0: no reservation */
    uint32_t chunk;  /* maximum decoder tokens of the slot in a step */
    /* A step that ends at position quiet_end or before, and whose first_recomputed() is below
     * quiet_first, changes no block of the slot: kv_quiet(). Then add_segment() skips the blocks.
     * near_end, near_first: one lower; beyond them it prefetches the blocks for the next step. */
    uint32_t quiet_end, quiet_first, near_end, near_first;
    bool chunk_planned;     /* the first chunk of the sequence was planned */
    bool reserve_lowered;   /* the reservation was lowered to what decode needs */
    bool one_step_window;   /* window blocks suffice for 1 prefill step in flight, not 2 */
    bool kept_for_adoption; /* free of a sequence; its blocks have a previous worker's KV */
    bool has_enc_rows;      /* owns rows of enc_state */
    bool cross_kv_cached;   /* cross KV was in the cache when the blocks were reserved */
    uint32_t pages;         /* index + 1 in holder[] of the sequence's adapter; 0: none */
    /* making: name (kv_event.h) of the block that the prompt fills next if n_done is making_at. */
    uint32_t making_at;
    uint64_t making[2];
};

_Static_assert(sizeof(struct slot) == CACHE_LINE, "a step touches one cache line per slot");

struct enc_tokens { /* the rows of enc_state that one encoder input occupies */
    uint32_t first, n, slot;
};

struct page_holder { /* a LoRA adapter on the device */
    uint64_t lora;
    uint32_t pages, n_users; /* n_users: sequences; 0: the entry is free */
};

struct chunk { /* the tokens that one prompt gets in the step being planned */
    struct seq *seq;
    uint32_t n_tokens;
};

struct scheduler {
    struct scheduler_limits l;
    struct kv *kv;
    bool reuse;           /* the prefix cache is on */
    uint32_t max_running; /* maximum number of sequences with a slot */
    uint32_t unit;        /* chunk lengths are multiples of it, except a prompt's last */
    bool unit_strict;     /* chunk_unit was configured: fewer free tokens plan no chunk */
    uint64_t planned[MAX_LANES], done[MAX_LANES];

    struct seq_list waiting, running, ended; /* running: with a slot; also ended ones in flight */
    uint32_t n_in[SEQ_ENDED + 1];            /* sequences in each state except SEQ_NEW */
    struct slot *slot;                       /* [n_slots] */
    uint32_t n_slots, *free_slot, first_free, n_free; /* free_slot: ring, longest free first */
    uint32_t n_kept;
    /* A sequence found no slot or blocks, and reclaim_slot() may be able to free some for it. */
    bool reclaim_wanted;
    bool any_suspended;       /* a sequence was suspended since scheduler_new() */
    bool no_pages;            /* a sequence waits for adapter pages */
    bool overtaken_too_often; /* a sequence was overtaken max_running times for its pages */
    /* Mask of lanes to plan again, because another lane's plan or a deadline freed resources. */
    unsigned replan_lanes;
    bool cross_kv_changed;    /* a sequence's cross_kv_cached changed: plan again */
    bool static_batch_closed; /* policy static: the batch decodes, so none is admitted */
    nsec keep_until;          /* kept slots are not reclaimed before this time */
    bool waits_for_kept;      /* some slots are kept, and keep_until has not passed: admit none */
    struct enc_tokens *enc;   /* [n_enc] in order of the first row */
    uint32_t n_enc;
    struct chunk *chunk;  /* [n_slots] */
    struct kv_soon *soon; /* [2 * n_slots] slots whose blocks change in their next step */
    uint32_t n_soon;
    struct fair_queue fair_queue;
    struct page_holder *holder; /* [n_slots] */
    uint32_t n_holders, pages_used;
    nsec next_deadline; /* no sequence expires before this time */
    /* Time until which the lane delays new sequences to batch them; NSEC_NEVER: no delay. */
    nsec waited_for[MAX_LANES];
    uint64_t arrival_number, n_preemptions;
    uint64_t n_looked_up, n_found;      /* prompt tokens: scheduler_counts() */
    unsigned partition, next_partition; /* of steps planned now; as requested last */
    uint8_t work[MAX_LANES];            /* mask of enum work that each lane does now */
    bool lanes_merged;                  /* the prefill lane also decodes */
    /* Lanes merge once the last prefill step in flight is committed; none is planned until then. */
    bool prefill_draining;
    uint32_t step_tokens;          /* max_tokens of scheduler_set_partition() */
    bool found_no_work[MAX_LANES]; /* the lane's last plan was empty */
    bool drafts_branch;            /* drafts form a tree, not a chain */
    uint8_t depth[1 + MAX_DRAFT];  /* depth in the draft tree, by token of the segment */
    uint32_t sees[1 + MAX_DRAFT];  /* by token of the segment: mask of tokens that it attends to */
};

static inline void
move_seq(struct scheduler *s, struct seq *q, enum seq_state to)
{
    s->n_in[q->state]--;
    seq_move(q, to);
    s->n_in[to]++;
}

struct step_plan {
    struct scheduler *s;
    struct batch *b;
    unsigned lane;
    nsec now;
    struct kv_out out;
    uint32_t tokens_left; /* decoder tokens */
    uint32_t begins;      /* table edits left for slots whose first step this is */
};

/* How to compute a prompt so that its sequence fits an empty cache until its last token. chunk:
 * tokens in a step at most. rows: positions in flight for which window groups keep blocks. */
struct admission {
    uint32_t chunk, rows;
};

/* Checks the limits. -EINVAL: a limit excludes every request; e names it. */
int limits_check(const struct scheduler_limits *l, const struct kv_config *kv,
                 struct err *e) MUST_USE;
/* Checks the cache for policy max_requests, which admits without counting blocks. -EINVAL:
 * max_running requests of maximal length do not fit the cache. */
int limits_check_uncounted(const struct scheduler *s, struct err *e) MUST_USE;
/* Checks that q (with its group if q is the first member) can run when no other sequence runs.
 * Errors as scheduler_add(), except -EEXIST. */
int limits_check_seq(const struct scheduler *s, const struct seq *q, struct err *e) MUST_USE;
/* Returns the maximum number of sequences with a slot: at most max_tokens, because each decoding
 * sequence needs a token in a step. */
uint32_t max_running(const struct scheduler_limits *l);
/* Returns the number of slots that q and its group take; 1 without a group. */
uint32_t seq_group_size(const struct seq *q);
/* Returns the number of positions whose blocks must be reserved before q starts. */
uint32_t admission_len(const struct scheduler *s, const struct seq *q);
/* Returns in *ret the largest chunk with which a prompt of n_prompt tokens of q fits an empty
 * cache. -EMSGSIZE: none fits; e says why. */
int admission(const struct scheduler *s, const struct seq *q, uint32_t n_prompt,
              struct admission *ret, struct err *e) MUST_USE;
/* Returns the number of table edits that give q's members its blocks at the fork. 0: no fork. */
uint32_t fork_edits(const struct scheduler *s, const struct seq *q);
/* Returns how many starting slots a step has table edits for, if each needs all its entries. */
uint32_t seq_group_edits(const struct scheduler_limits *l);
/* Returns the positions for which a window group keeps blocks so that two steps may be in flight.
 * chunk: prompt tokens of q in a step, or 0. */
uint32_t tokens_in_flight(const struct seq *q, uint32_t chunk);

/* Returns how many committed positions a replacement worker may compute again. */
static inline uint32_t
tokens_unreported(const struct seq *q)
{
    return UNREPORTED_STEPS * (1 + q->n_draft);
}
/* Returns the position whose window a beam keeps: the end of its last full block, because the
 * prefix cache gets the full blocks of an ended hypothesis, and a hit needs the window before their
 * end. */
static inline uint32_t
beam_window(const struct scheduler *s, const struct seq *q)
{
    return q->n_planned - q->n_planned % kv_config(s->kv)->tokens_per_block;
}
/* Returns the first position that a replacement worker may compute again; it also needs the window
 * of positions before this one. A beam that is not in flight resumes at its current position,
 * because a search has one step in flight and reports each decision at once. */
static inline uint32_t
first_recomputed(const struct scheduler *s, const struct seq *q)
{
    if (q->beam && q->in_flight == 0) return beam_window(s, q);
    return q->n_done - MIN(q->n_done, tokens_unreported(q));
}
/* Returns the first member of q's sequence group; q itself if it has no group. */
static inline struct seq *
group_first(struct seq *q)
{
    return q->first_member ? q->first_member : q;
}
/* True if the block for q's next token is reserved. Called about 1,000 times per step. */
static inline bool
has_block_for_next(const struct scheduler *s, const struct seq *q)
{
    return q->n_planned < s->slot[q->slot].len;
}
/* True if has_block_for_next() is true for q and all members after it. */
static inline bool
have_blocks_for_next(const struct scheduler *s, const struct seq *q)
{
    for (; q; q = q->next_member)
        if (!has_block_for_next(s, q)) return false;
    return true;
}
/* True if q is a first member whose next step computes the first position that is not shared: the
 * other members fork in that step. */
static inline bool
forks_now(const struct seq *q)
{
    return q->first_member == q && !q->has_forked && q->n_planned == q->n_shared;
}
/* Returns the next position after pos at which a step of q must end for a snapshot of its recurrent
 * state. UINT32_MAX: none. A beam that has forked takes no snapshots, because a later step may give
 * its slot to another beam: a search restarts from its prompt. */
static inline uint32_t
next_snapshot(const struct scheduler *s, const struct seq *q, uint32_t pos)
{
    return q->beam && q->has_forked ? UINT32_MAX : kv_border(s->kv, pos, q->n_prompt);
}
/* True if a step of another lane that has q is in flight, so the planned step must wait for it. */
static inline bool
must_wait(const struct step_plan *p, const struct seq *q)
{
    return q->lane != p->lane && q->lane_step > p->s->done[q->lane];
}
/* True if q cannot be planned now: a prefill step of q is in flight and the window group has no
 * blocks for a second one, which would evict positions that a replacement worker needs. */
static inline bool
window_is_full(const struct scheduler *s, const struct seq *q)
{
    return s->slot[q->slot].one_step_window && q->in_flight > 0 && q->n_done < q->n_prompt;
}

/* ---- sharing.c */

bool has_pages(const struct scheduler *s, const struct seq *q);
/* True if the waiting q may take adapter pages now: has_pages() is true, and no earlier sequence
 * that waits for pages was overtaken max_running times. */
bool may_take_pages(struct scheduler *s, const struct seq *q);
void take_pages(struct scheduler *s, const struct seq *q);
/* Call when q got a slot: counts in n_passed that q overtook sequences that wait for pages. */
void pass_over(struct scheduler *s, struct seq *q);
void give_pages(struct scheduler *s, uint32_t slot);
struct kv_text text_of(const struct seq *q, uint32_t n);
/* True if another sequence computes the next block of q's prompt now; q waits for that block. */
bool prefix_in_flight(struct scheduler *s, struct seq *q);
/* True if the cross KV of q's encoder input is in the prefix cache now; sets q->cross_kv_cached. */
bool find_cross(struct scheduler *s, struct seq *q);
/* True if the host tier, which is not attached yet, has more of q's prompt than the device. */
bool waits_for_host(const struct scheduler *s, const struct seq *q);

/* Returns for which enum work q may be in the lane's next step; 0: q may not. No other function
 * decides this. Expired sequences have been ended before, by expire_deadlines(). */
static inline unsigned
runnable(const struct scheduler *s, const struct seq *q, unsigned lane)
{
    unsigned work = 0;

    if (q->is_suspended || seq_follows(q)) return 0;
    if (q->state == SEQ_DECODE) {
        if (q->plan_after_commit && q->in_flight > 0) return 0;
        if (q->n_out == q->max_new) return 0; /* max_new tokens are generated or in flight */
        /* with drafts in flight q keeps its lane: only there the device can correct positions */
        if (q->lane != lane && q->n_draft_in_flight > 0) return 0;
        work = WORK_DECODE;
    } else if (q->state == SEQ_PREFILL) {
        work = WORK_PREFILL; /* all its encoder layers are launched or done */
    } else if (q->state == SEQ_WAITING) {
        if (q->from_previous_worker && waits_for_host(s, q)) return 0;
        work = q->n_source > 0 && !q->cross_kv_cached ? WORK_ENCODER : WORK_PREFILL;
    } else if (q->state == SEQ_ENCODER) {
        work = WORK_ENCODER;
    }
    return work & s->work[lane];
}

/* ---- lane_work.c */

bool any_decoding(const struct scheduler *s); /* true if a sequence decodes that is not suspended */
/* True if a sequence decodes, or the step being planned has decode tokens. */
static inline bool
decode_active(const struct step_plan *p)
{
    return p->b->work & WORK_DECODE || any_decoding(p->s);
}
/* True if no other lane has work or a step in flight: this lane's step gets the whole device. */
bool lane_is_alone(const struct scheduler *s, unsigned lane);
void apply_partition(struct scheduler *s);

/* ---- retire.c */

void leave_slot(struct scheduler *s, struct seq *q);  /* q: ended or preempted, not in flight */
bool expire_deadlines(struct scheduler *s, nsec now); /* true: it ended a sequence */
void free_enc_tokens(struct scheduler *s, uint32_t slot);
/* Returns the length of the common prefix of all members, at most each member's n_tokens - 1. */
uint32_t n_alike(const struct seq *first);
/* True if preempting q frees blocks for another sequence, and q can be recomputed. */
bool may_preempt(const struct scheduler *s, struct seq *q);
void preempt_one(struct scheduler *s, struct seq *q); /* with its group */
/* Frees the slots of the preempted q and its group together; no effect if one is in flight. */
void leave_preempted(struct scheduler *s, struct seq *q);
/* Returns the last suspended sequence in list order that can be preempted now (with `pages`: that
 * also holds adapter pages). NULL: there is none. */
struct seq *suspended_seq(const struct scheduler *s, bool pages);
/* Frees a kept slot, or a suspended sequence's slot, for a sequence that found no slot or blocks;
 * false: none. Call only between two plans, because the next step's edits must clear its tables. */
bool reclaim_slot(struct scheduler *s, nsec now);

/* ---- step_build.c */

/* Marks q as in flight in this step; the step waits for q's previous step on another lane. */
void put_in_step(struct step_plan *p, struct seq *q);
void add_segment(struct step_plan *p, struct seq *q, unsigned work, uint32_t n_tokens);

/* ---- admit.c */

bool admit_kv(struct scheduler *s, struct seq *q);  /* gives q blocks, and a slot if it has none */
bool admit_enc(struct scheduler *s, struct seq *q); /* takes a slot and rows of enc_state */
bool has_slot(struct scheduler *s, const struct seq *q); /* true if q has a slot, or one is free */
/* Reserves blocks up to position end, for policy max_utilization. False: too few are free. */
bool reserve_up_to(struct scheduler *s, struct seq *q, uint32_t end);
/* Reserves blocks of len positions for every member after the first. False: none is reserved. */
bool reserve_members(struct scheduler *s, struct seq *first, uint32_t len,
                     const struct admission *way);
/* Returns the slot that has been free longest and marks it as taken; one must be free. */
uint32_t take_free_slot(struct scheduler *s);
/* Puts q, which is in no list, into the slot in state `to`, and takes the pages of q's adapter. */
void occupy_slot(struct scheduler *s, struct seq *q, uint32_t slot, enum seq_state to);

/* ---- admit_adopted.c */

/* Resumes q in its kept slot (a first member with its group). False: it does not fit. */
bool admit_adopted(struct scheduler *s, struct seq *q);
/* Resumes an adopted group as far as it fits. *first becomes the first member that must wait; NULL:
 * none must. -EAGAIN: the beam search does not fit; its kept slots are freed. */
int adopt_seq_group(struct scheduler *s, struct seq **first) MUST_USE;

/* ---- seq_group.c */

bool is_resumed_beam(const struct seq *q); /* true for a beam that was adopted with its search */
/* Plans the first step of an adopted search: one token of each beam. */
void resume_search(struct step_plan *p, struct seq *first);
uint32_t prompt_goal(const struct seq *q); /* the position that q's next chunk may not cross */
/* True if the next token of beam q is the last of its prompt: it is computed in one step with the
 * last prompt tokens of the other beams. */
static inline bool
is_last_prompt_token(const struct seq *q)
{
    return q->beam && q->n_planned + 1 == q->n_prompt;
}
/* True if q is a first member and every beam of its search is at its last prompt token. */
bool beams_ready(const struct scheduler *s, const struct seq *q);
/* Subtracts the table edits of the search's next step from p->begins; false: they do not fit. */
bool may_step_beams(struct step_plan *p, const struct seq *q);
void step_beams(struct step_plan *p, struct seq *q);
/* Commits a search's step, for all beams. segment: the first beam's; the others' follow it. */
void commit_beams(struct scheduler *s, struct seq *first, const struct batch_segment *segment,
                  const struct batch_result *r);

/* ---- preempt.c */

/* Policy max_utilization: reserves, in list order, the blocks that the sequences need in the lane's
 * next step. A sequence without blocks preempts a running one (preempt.c). Call only between two
 * plans. Returns true if a slot was freed. */
bool reserve_steps(struct scheduler *s, unsigned lane, nsec now);

/* ---- encoder.c */

void plan_encoder(struct step_plan *p);

/* ---- prefill.c */

void plan_adopted(struct step_plan *p);
void plan_prefill(struct step_plan *p);
/* Policy static: admits all waiting prompts that fit; plan_prefill() plans their tokens. */
void plan_static_batch(struct step_plan *p);
