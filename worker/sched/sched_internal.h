/* sched_internal.h - the inside of struct scheduler; included by worker/sched/ only.
 *
 * A file calls only files of lower levels, so the folder has no call cycle:
 *
 *     seq.c, batch.c, beam_search.c, batch_check.c   independent of the others
 *     limits.c         worst-case needs of a configuration and of a request
 *     sharing.c        adapter pages, prefix cache, prefixes in flight
 *     lane_work.c      the work of each lane, and its partition
 *     retire.c         sequences leave their slots: ended, expired, preempted
 *     step_build.c     adds one sequence to a step
 *     admit.c          slots, KV blocks and encoder rows for a sequence
 *     admit_adopted.c  the same for a sequence whose KV a previous worker left
 *     seq_group.c      sequence groups: beams, samples
 *     preempt.c        max_utilization: blocks step by step, and the victims
 *     encoder.c        encoder inputs of a step
 *     prefill.c        prompts of a step
 *     plan.c           the next step of a lane
 *     commit.c         results of a step
 *     scheduler.c      new, add, cancel, reap, check
 */
#pragma once

#include "base/fair_queue.h"
#include "worker/kv/kv_reuse.h"
#include "worker/sched/scheduler.h"

/* UNREPORTED_STEPS: steps whose tokens may not have reached lagand, one of each lane; a replacement
 * worker computes them again. STEPS_OUT: steps of a lane in flight. */
enum { UNREPORTED_STEPS = 2, STEPS_OUT = 2 };

struct slot {
    struct seq *seq; /* NULL: free */
    uint32_t len;    /* positions with reserved blocks; 0: no reservation */
    uint32_t chunk;  /* decoder tokens in a step at most */
    /* Bounds of kv_quiet(): inside them a step changes no block of the slot and skips it. near_* is
     * one position earlier: there the cache lines for the change are prefetched. */
    uint32_t quiet_end, quiet_first, near_end, near_first;
    bool chunk_planned;     /* a decoder chunk of its sequence was planned */
    bool reserve_lowered;   /* the reservation was reduced to the needs of decode */
    bool one_step_window;   /* window blocks suffice for one prefill step in flight, not two */
    bool kept_for_adoption; /* no sequence; the blocks hold KV of a previous worker */
    bool has_enc_rows;      /* owns rows of enc_state */
    bool cross_kv_cached;   /* cross KV was in the cache when the blocks were reserved */
    uint32_t pages;         /* index in holder[] + 1 of its adapter; 0: none */
    /* Name of the first full block that the prompt fills next, valid when making_at positions are
     * done. */
    uint32_t making_at;
    uint64_t making[2];
};

_Static_assert(sizeof(struct slot) == CACHE_LINE, "a step touches one cache line per slot");

struct enc_tokens { /* rows of enc_state that one encoder input has */
    uint32_t first, n, slot;
};

struct page_holder { /* an adapter on the device */
    uint64_t lora;
    uint32_t pages, n_users; /* 0 users: a free entry */
};

struct chunk { /* prompt tokens of a sequence in the step that is planned */
    struct seq *seq;
    uint32_t n_tokens;
};

struct scheduler {
    struct scheduler_limits l;
    struct kv *kv;
    bool reuse;           /* the prefix cache is on */
    uint32_t max_running; /* sequences with a slot; each may need a token in a step */
    uint32_t unit;        /* chunks other than a prompt's last are multiples of it */
    bool unit_strict;     /* chunk_unit was configured: a smaller budget plans no chunk */
    uint64_t planned[MAX_LANES], done[MAX_LANES];

    struct seq_list waiting, running,
        ended;                    /* running: has a slot, ended ones in flight included */
    uint32_t n_in[SEQ_ENDED + 1]; /* sequences in each state except SEQ_NEW */
    struct slot *slot;            /* [n_slots] */
    uint32_t n_slots, *free_slot, first_free, n_free; /* ring: the slot free longest is next */
    uint32_t n_kept;
    /* A sequence found no slot or blocks, and a kept slot or a suspended sequence has some. */
    bool reclaim_wanted;
    bool any_suspended;       /* a sequence was suspended since scheduler_new() */
    bool no_pages;            /* a sequence waits for adapter pages */
    bool overtaken_too_often; /* a sequence was overtaken max_running times for its pages */
    /* Mask of lanes to plan again: another lane's plan, or time, has changed their options. */
    unsigned replan_lanes;
    bool cross_kv_changed;    /* an encoder input appeared in the cache or left it: plan again */
    bool static_batch_closed; /* static: the batch decodes, no sequence is admitted */
    nsec keep_until;          /* kept slots are not reclaimed before */
    struct enc_tokens *enc;   /* [n_enc] by first row */
    uint32_t n_enc;
    struct chunk *chunk;  /* [n_slots] */
    struct kv_soon *soon; /* [2 * n_slots] slots whose blocks change in their next step */
    uint32_t n_soon;
    struct fair_queue fair_queue;
    struct page_holder *holder; /* [n_slots] */
    uint32_t n_holders, pages_used;
    nsec next_deadline; /* no sequence expires before */
    /* The lane delays sequences to batch them until then; NSEC_NEVER: no delay. */
    nsec waited_for[MAX_LANES];
    uint64_t arrival_number, n_preemptions;
    unsigned partition, next_partition; /* of steps planned now; as last requested */
    uint8_t work[MAX_LANES]; /* current work of each lane; partition 0 changes lane_work */
    bool lanes_merged;       /* the prefill lane also decodes */
    /* The lanes merge when the last prefill step in flight is committed; until then no other
     * prefill step is planned. */
    bool prefill_draining;
    uint32_t step_tokens; /* limit of a step with prefill while sequences decode; 0: the lane's */
    bool found_no_work[MAX_LANES]; /* the lane's last plan was empty */
    bool drafts_branch;            /* drafts form a tree, not a chain */
    uint8_t depth[1 + MAX_DRAFT];  /* in the tree, by token of the segment */
    uint32_t sees[1 + MAX_DRAFT];  /* mask of tokens of the segment that each one attends to */
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
    uint32_t begins;      /* edits left for slots whose blocks the device does not know yet */
};

/* ---- limits.c: changes no state */

/* A way to compute a prompt so that the sequence fits an empty cache to its end: chunk size, and
 * positions in flight for which a window keeps blocks. */
struct admission {
    uint32_t chunk, rows;
};

/* -EINVAL: the limits exclude every request; the message says which. */
int limits_check(const struct scheduler_limits *l, const struct kv_config *kv,
                 struct err *e) MUST_USE;
/* Policy max_requests counts no blocks. -EINVAL: max_running requests of maximal length do not fit
 * the cache. */
int limits_check_uncounted(const struct scheduler *s, struct err *e) MUST_USE;
/* Checks that q, with its group if q is the first member, can run alone. Errors as scheduler_add(),
 * except -EEXIST. */
int limits_check_seq(const struct scheduler *s, const struct seq *q, struct err *e) MUST_USE;
/* Upper bound of sequences with a slot: each decoding sequence needs a token in a step. */
uint32_t max_running(const struct scheduler_limits *l);
/* Slots that q takes with its group; 1 without a group. */
uint32_t seq_group_size(const struct seq *q);
/* Positions that q must have blocks for before it starts. */
uint32_t admission_len(const struct scheduler *s, const struct seq *q);
/* -EMSGSIZE: a prompt of n_prompt tokens never fits; the message says why. */
int admission(const struct scheduler *s, const struct seq *q, uint32_t n_prompt,
              struct admission *ret, struct err *e) MUST_USE;
/* Table edits that give the members the first member's blocks at the fork; 0: q does not fork. */
uint32_t fork_edits(const struct scheduler *s, const struct seq *q);
/* A step's budget of table edits for starting slots, as a multiple of one slot's entries. */
uint32_t seq_group_edits(const struct scheduler_limits *l);
/* Positions for which a window keeps blocks so that two steps may be in flight. chunk: prompt
 * tokens in a step, or 0. */
uint32_t tokens_in_flight(const struct seq *q, uint32_t chunk);

/* Committed positions that a replacement worker may compute again. */
static inline uint32_t
tokens_unreported(const struct seq *q)
{
    return UNREPORTED_STEPS * (1 + q->n_draft);
}
/* First position that a replacement worker may compute again; it also needs the window before that.
 * Beams: the current position, because a search has one step in flight and reports each decision at
 * once, unless a prefill step is in flight. */
static inline uint32_t
first_recomputed(const struct seq *q)
{
    if (q->beam && q->in_flight == 0) return q->n_planned;
    return q->n_done - MIN(q->n_done, tokens_unreported(q));
}
/* The first of q's sequence group; q itself if it has none. */
static inline struct seq *
group_first(struct seq *q)
{
    return q->first_member ? q->first_member : q;
}
/* True if blocks for its next token are reserved. Called about 1,000 times a step. */
static inline bool
has_block_for_next(const struct scheduler *s, const struct seq *q)
{
    return q->n_planned < s->slot[q->slot].len;
}
/* The same for q and the members after it. */
static inline bool
have_blocks_for_next(const struct scheduler *s, const struct seq *q)
{
    for (; q; q = q->next_member)
        if (!has_block_for_next(s, q)) return false;
    return true;
}
/* The next tokens of the first member are the first that are not shared. */
static inline bool
forks_now(const struct seq *q)
{
    return q->first_member == q && !q->has_forked && q->n_planned == q->n_shared;
}
/* A step of another lane that carries q is in flight. */
static inline bool
must_wait(const struct step_plan *p, const struct seq *q)
{
    return q->lane != p->lane && q->lane_step > p->s->done[q->lane];
}
/* A prefill step is in flight and the window has no blocks for a second one: planning it would
 * evict positions that a replacement worker needs. */
static inline bool
window_is_full(const struct scheduler *s, const struct seq *q)
{
    return s->slot[q->slot].one_step_window && q->in_flight > 0 && q->n_done < q->n_prompt;
}

/* ---- sharing.c */

bool has_pages(const struct scheduler *s, const struct seq *q);
/* The same for a waiting sequence, unless an earlier one has been overtaken too often. */
bool may_take_pages(struct scheduler *s, const struct seq *q);
void take_pages(struct scheduler *s, const struct seq *q);
/* q got a slot: counts the overtaken sequences that wait for pages. */
void pass_over(struct scheduler *s, struct seq *q);
void give_pages(struct scheduler *s, uint32_t slot);
struct kv_text text_of(const struct seq *q, uint32_t n);
/* Another sequence computes the next shared block of q's prompt now; q waits for it. */
bool prefix_in_flight(struct scheduler *s, struct seq *q);
/* The K and V of its encoder input are in the cache now. */
bool find_cross(struct scheduler *s, struct seq *q);
/* The host tier is not attached and has more of its prompt than the device. */
bool waits_for_host(const struct scheduler *s, const struct seq *q);

/* The only predicate for "q may be in the lane's next step": the enum work to plan it for, or 0.
 * Expired sequences have ended before: expire_deadlines(). */
static inline unsigned
runnable(const struct scheduler *s, const struct seq *q, unsigned lane)
{
    unsigned work = 0;

    if (q->is_suspended || seq_follows(q)) return 0;
    if (q->state == SEQ_DECODE) {
        if (q->plan_after_commit && q->in_flight > 0) return 0;
        if (q->n_out == q->max_new) return 0; /* the tokens in flight may be all of them */
        /* The device corrects a step by the rejected drafts of one previous step of its lane. */
        if (q->lane != lane && q->n_draft_in_flight > 0) return 0;
        work = WORK_DECODE;
    } else if (q->state == SEQ_PREFILL) {
        work = WORK_PREFILL; /* the last layers of its encoder input are launched */
    } else if (q->state == SEQ_WAITING) {
        if (q->from_previous_worker && waits_for_host(s, q)) return 0;
        work = q->n_source > 0 && !q->cross_kv_cached ? WORK_ENCODER : WORK_PREFILL;
    } else if (q->state == SEQ_ENCODER) {
        work = WORK_ENCODER;
    }
    return work & s->work[lane];
}

/* ---- lane_work.c */

bool any_decoding(const struct scheduler *s); /* a sequence decodes, suspended ones excluded */
/* The same, or the step that is planned has decode tokens. */
static inline bool
decode_active(const struct step_plan *p)
{
    return p->b->work & WORK_DECODE || any_decoding(p->s);
}
/* No other lane has work or a step in flight: this one gets the whole device. */
bool lane_is_alone(const struct scheduler *s, unsigned lane);
void apply_partition(struct scheduler *s);

/* ---- retire.c */

void leave_slot(struct scheduler *s, struct seq *q);  /* ended or preempted, and not in flight */
bool expire_deadlines(struct scheduler *s, nsec now); /* true: a sequence ended */
void free_enc_tokens(struct scheduler *s, uint32_t slot);
/* Length of the common prefix of all members, below each n_tokens. first: first member. */
uint32_t n_alike(const struct seq *first);
/* True if q has blocks that another sequence could use, and q can be computed again. */
bool may_preempt(const struct scheduler *s, struct seq *q);
void preempt_one(struct scheduler *s, struct seq *q); /* with its group */
/* Frees the slots of a preempted sequence and its group, all at once, when none is in flight. */
void leave_preempted(struct scheduler *s, struct seq *q);
/* The last suspended sequence in list order that can be preempted now; with `pages` one that holds
 * adapter pages. NULL: none. */
struct seq *suspended_seq(const struct scheduler *s, bool pages);
/* Frees a kept slot or the slot of a suspended sequence for a sequence that found none. Only
 * between two plans, because the next step's edits must clear the tables first. */
bool reclaim_slot(struct scheduler *s, nsec now);

/* ---- step_build.c */

/* Marks q as in this step, and makes the step wait for q's previous step on another lane. */
void put_in_step(struct step_plan *p, struct seq *q);
void add_segment(struct step_plan *p, struct seq *q, unsigned work, uint32_t n_tokens);

/* ---- admit.c */

bool admit_kv(struct scheduler *s, struct seq *q);       /* blocks, and a slot unless q has one */
bool admit_enc(struct scheduler *s, struct seq *q);      /* a slot and rows of enc_state */
bool has_slot(struct scheduler *s, const struct seq *q); /* q has a slot, or one is free for it */
/* Reserves blocks for positions up to end, for policies that reserve step by step. */
bool reserve_up_to(struct scheduler *s, struct seq *q, uint32_t end);
/* Reserves blocks for all members after the first, who have slots, or for none. */
bool reserve_members(struct scheduler *s, struct seq *first, uint32_t len,
                     const struct admission *way);
/* Takes the slot that has been free longest; one must be free. */
uint32_t take_free_slot(struct scheduler *s);
/* Puts q, which is in no list, into that slot in state `to`, with its adapter's pages. */
void occupy_slot(struct scheduler *s, struct seq *q, uint32_t slot, enum seq_state to);

/* ---- admit_adopted.c */

/* Resumes q in its kept slot, with its group if q is the first member. False: it does not fit. */
bool admit_adopted(struct scheduler *s, struct seq *q);
/* Resumes an adopted group. *first becomes the first member that must wait, or NULL.
 * -EAGAIN: the search does not fit; its kept slots are freed. */
int adopt_seq_group(struct scheduler *s, struct seq **first) MUST_USE;

/* ---- seq_group.c */

bool is_resumed_beam(const struct seq *q); /* a beam that was adopted with its search */
/* Plans the first step of an adopted search: one token of each beam. */
void resume_search(struct step_plan *p, struct seq *first);
uint32_t prompt_goal(const struct seq *q); /* end limit of its next chunk */
/* The beam's next token is the last of its prompt. That token joins those of the other beams in one
 * step. */
static inline bool
is_last_prompt_token(const struct seq *q)
{
    return q->beam && q->n_planned + 1 == q->n_prompt;
}
/* q is a first member, and all beams are at their last prompt token. */
bool beams_ready(const struct scheduler *s, const struct seq *q);
/* Takes the table edits of the search's next step from the budget; false: they do not fit. */
bool may_step_beams(struct step_plan *p, const struct seq *q);
void step_beams(struct step_plan *p, struct seq *q);
/* Commits a step of all beams. segment: the first beam's. */
void commit_beams(struct scheduler *s, struct seq *first, const struct batch_segment *segment,
                  const struct batch_result *r);

/* ---- preempt.c */

/* max_utilization: reserves blocks for the next step in list order, for the lane's work. A sequence
 * without blocks preempts the last started one. Only between two plans. True: a slot was freed. */
bool reserve_steps(struct scheduler *s, unsigned lane, nsec now);

/* ---- encoder.c */

void plan_encoder(struct step_plan *p);

/* ---- prefill.c */

void plan_adopted(struct step_plan *p);
void plan_prefill(struct step_plan *p);
/* static: admits all that fit; their tokens follow in this step or later. */
void plan_static_batch(struct step_plan *p);
