/* sched_internal.h - the inside of struct scheduler. For the files of worker/sched/ alone.
 *
 * A file calls files of lower levels only, so that there is no call cycle:
 *
 *     seq.c, batch.c, beam_search.c, batch_check.c   stand alone: sequences and their lists, a step as arrays
 *     limits.c         what limits and requests can need at most
 *     sharing.c          adapter pages, prefix cache, prefixes in flight
 *     lane_work.c       which lane does what, and on how much of the device
 *     retire.c         sequences leave their slots: ended, expired, preempted
 *     step_build.c     the rows of one sequence in a step
 *     admit.c          slots, KV blocks and encoder rows for a sequence
 *     admit_adopted.c  the same for one whose KV a previous worker left
 *     seq_group.c         sequence groups: beams, samples
 *     preempt.c          max_utilization: blocks step by step, and who is preempted
 *     encoder.c        which encoder inputs run in a step
 *     prefill.c        which prompts
 *     plan.c           the next step of a lane
 *     commit.c         what a step sampled
 *     scheduler.c      new, add, cancel, reap, check
 */
#ifndef SCHED_INTERNAL_H
#define SCHED_INTERNAL_H

#include "base/fair_queue.h"
#include "worker/kv/kv_reuse.h"
#include "worker/sched/scheduler.h"

/* A successor may have to compute again what was done: tokens of the last steps, of one lane and
 * the next, that were not told yet. And two steps of a lane may be out. */
enum { UNREPORTED_STEPS = 2, STEPS_OUT = 2 };

struct slot {
    struct seq *seq; /* NULL: free */
    uint32_t len;    /* positions that its blocks are reserved for; 0: it has none */
    uint32_t chunk;  /* decoder rows a step, at most */
    /* As of kv_quiet(), where nothing else is to be done either; and a row before them, where
     * what will be looked at is asked for: below both nobody looks at the slot's blocks. */
    uint32_t quiet_end, quiet_first, near_end, near_first;
    bool chunk_planned;     /* a decoder chunk of its sequence was planned */
    bool reserve_lowered;   /* the reservation is what generation needs */
    bool one_step_window;   /* its windows hold one step of a prompt in flight, not two */
    bool kept_for_adoption; /* no sequence; its blocks are a previous worker's */
    bool has_enc_rows;      /* rows of enc_state are its own */
    bool cross_kv_cached;   /* cross KV was in the cache when the blocks were reserved */
    uint32_t pages;         /* whose pages it holds: of holder[], + 1; 0: nobody's */
    /* Names the first full block that its prompt is about to fill, as of making_at positions
     * done. */
    uint32_t making_at;
    uint64_t making[2];
};

_Static_assert(sizeof(struct slot) == CACHE_LINE, "a step looks at each of them once");

struct enc_tokens { /* a source's rows of enc_state */
    uint32_t first, n, slot;
};

struct page_holder { /* of pages */
    uint64_t lora;
    uint32_t pages, n_users; /* 0: nobody */
};

struct chunk { /* rows of a prompt in the step that is being planned */
    struct seq *seq;
    uint32_t n_tokens;
};

struct scheduler {
    struct scheduler_limits l;
    struct kv *kv;
    bool reuse;           /* kv finds what others computed */
    uint32_t max_running; /* sequences with a slot: each may need a row of a step */
    uint32_t unit;        /* of chunks that are not a prompt's last */
    bool unit_strict;     /* asked for: no chunk of less, however small the budget */
    uint64_t planned[MAX_LANES], done[MAX_LANES];

    struct seq_list waiting, running, ended; /* running: has a slot, ended ones in flight too */
    uint32_t n_in[SEQ_ENDED + 1]; /* sequences in each state; of SEQ_NEW nothing is known */
    struct slot *slot;            /* [n_slots] */
    uint32_t n_slots, *free_slot, first_free, n_free; /* ring: the one free longest is next */
    uint32_t n_kept;
    /* A sequence found no slot or no blocks, and a kept slot or a suspended sequence could be
     * reclaimed. */
    bool reclaim_wanted;
    bool any_suspended;       /* a sequence was suspended since the start */
    bool no_pages;            /* a sequence waits for adapter pages */
    bool overtaken_too_often; /* a sequence was overtaken max_running times for its pages */
    /* Lanes, by bit, that must be asked for a step again: another lane's plan, or time, has
     * changed what they could do. */
    unsigned replan_lanes;
    bool cross_kv_changed;    /* an encoder input was found in the cache, or lost: plan again */
    bool static_batch_closed; /* static_batch: its sequences generate, no other is admitted */
    nsec keep_until;          /* that long nothing is given up for it */
    struct enc_tokens *enc;   /* [n_enc] by first row */
    uint32_t n_enc;
    struct chunk *chunk;  /* [n_slots] */
    struct kv_soon *soon; /* [2 * n_slots] whose blocks their next step changes */
    uint32_t n_soon;
    struct fair_queue turns;
    struct page_holder *holder; /* [n_slots] */
    uint32_t n_holders, pages_used;
    nsec next_deadline; /* nothing expires before it */
    nsec waited_for
        [MAX_LANES]; /* the lane lets somebody wait for company until then; NSEC_NEVER: nobody */
    uint64_t arrival_number, n_preemptions;
    unsigned partition, next_partition; /* of steps planned now; as it was asked for */
    /* Of each lane now: limits.lane_work, or with WORK_DECODE where prompts are. */
    uint8_t work[MAX_LANES];
    bool lanes_merged; /* the lane of prompts generates too */
    /* Lanes are merged when the last step of prompts in flight is committed; no other is planned
     * until then. */
    bool prefill_draining;
    /* Rows of a step with prompts while a sequence generates; 0: no bound but the lane's. */
    uint32_t step_tokens;
    bool found_no_work[MAX_LANES]; /* the lane's last plan was empty */
    bool drafts_branch;            /* draft tokens are a tree, not a chain; by row of a run: */
    uint8_t depth[1 + MAX_DRAFT];
    uint32_t sees[1 + MAX_DRAFT]; /* rows, by bit */
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
    uint32_t tokens_left; /* decoder's */
    uint32_t begins;      /* edits left for rows of tables that begin with blocks */
};

/* ---- limits.c: changes nothing */

/* How a prompt of that many of its tokens can be computed so that it fits alone in the cache to
 * its end: the largest chunk, and for how many rows at once a window keeps blocks. */
struct admission {
    uint32_t chunk, rows;
};

/* -EINVAL: limits that could never work, with the sentence. */
int limits_check(const struct scheduler_limits *l, const struct kv_config *kv,
                 struct err *e) MUST_USE;
/* Policy max_requests counts no blocks. -EINVAL: max_running requests of the longest kind do not
 * fit the cache. */
int limits_check_uncounted(const struct scheduler *s, struct err *e) MUST_USE;
/* Whether q, with its group if it is the first of one, could ever run; errors as
 * scheduler_add(), -EEXIST aside. */
int limits_check_seq(const struct scheduler *s, const struct seq *q, struct err *e) MUST_USE;
/* Sequences with a slot at once: each decoding sequence has its row of a step. */
uint32_t max_running(const struct scheduler_limits *l);
/* Slots that q takes with its group: 1 on its own. */
uint32_t seq_group_size(const struct seq *q);
/* Blocks for `len` positions and q's encoder input, with windows that keep `rows` rows at once. */
struct kv_need blocks_needed(const struct scheduler *s, const struct seq *q, uint32_t len,
                             uint32_t rows);
/* What a member needs beside what it shares. */
struct kv_need member_need(const struct scheduler *s, const struct seq *first, uint32_t len,
                           uint32_t rows);
/* Positions that q must have blocks for before it starts. */
uint32_t admission_len(const struct scheduler *s, const struct seq *q);
/* -EMSGSIZE: a prompt of n_prompt tokens never fits, with the sentence. */
int admission(const struct scheduler *s, const struct seq *q, uint32_t n_prompt,
              struct admission *ret, struct err *e) MUST_USE;
/* Table edits that tell the other members of the first's blocks when they fork; 0: q does not
 * fork. */
uint32_t fork_edits(const struct scheduler *s, const struct seq *q);
/* So many times what one slot may hold can be told of slots that begin, in a step. */
uint32_t seq_group_edits(const struct scheduler_limits *l);
/* For how many rows at once a window keeps blocks, so that two steps may be out: of a prompt in
 * chunks, or 0. */
uint32_t tokens_in_flight(const struct seq *q, uint32_t chunk);

/* That were done, and that a successor may compute again. */
static inline uint32_t
tokens_unreported(const struct seq *q)
{
    return UNREPORTED_STEPS * (1 + q->n_draft);
}
/* From there on a successor may compute it again, and sees the window before that: of beams,
 * whose steps come one by one and are told of as they are decided, from where they are, unless a
 * step of their prompt is out. */
static inline uint32_t
seen_from(const struct seq *q)
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
/* It has blocks for its next row. Each of a thousand is asked in each step. */
static inline bool
has_paid(const struct scheduler *s, const struct seq *q)
{
    return q->n_planned < s->slot[q->slot].len;
}
/* The same of it and all behind it. */
static inline bool
all_paid(const struct scheduler *s, const struct seq *q)
{
    for (; q; q = q->next_member)
        if (!has_paid(s, q)) return false;
    return true;
}
/* Its next rows are the first that are its own. */
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
/* A step of its prompt is out, and its window has no room for another one behind it: what a
 * successor goes on from would be gone. */
static inline bool
must_come_first(const struct scheduler *s, const struct seq *q)
{
    return s->slot[q->slot].one_step_window && q->in_flight > 0 && q->n_done < q->n_prompt;
}

/* ---- sharing.c */

bool has_pages(const struct scheduler *s, const struct seq *q);
/* The same of one that waits, if nobody before it has waited for them for too long. */
bool may_take_pages(struct scheduler *s, const struct seq *q);
void take_pages(struct scheduler *s, const struct seq *q);
/* q has got a slot: who waits for pages before it was passed over. */
void pass_over(struct scheduler *s, struct seq *q);
void give_pages(struct scheduler *s, uint32_t slot);
struct kv_text text_of(const struct seq *q, uint32_t n);
/* Its prompt begins like one before it that is being computed: it waits for that, and has it for
 * nothing. */
bool prefix_in_flight(struct scheduler *s, struct seq *q);
/* Its source's K and V are there, by what kv knows now. */
bool find_cross(struct scheduler *s, struct seq *q);
/* What it would find is on its way: the host tier has more of it than the device. */
bool waits_for_host(const struct scheduler *s, const struct seq *q);

/* The one answer to "may it be in the lane's next step, and as what": an enum work, or 0.
 * Everything that plans asks here. Who is late has ended: expire_deadlines(). */
static inline unsigned
runnable(const struct scheduler *s, const struct seq *q, unsigned lane)
{
    unsigned work = 0;

    if (q->is_suspended || seq_follows(q)) return 0;
    if (q->state == SEQ_DECODE) {
        if (q->plan_after_commit && q->in_flight > 0) return 0;
        if (q->n_out == q->max_new) return 0; /* what is in flight may be all it wants */
        /* A step is moved back by what the one before it was refused, not by that of two. */
        if (q->lane != lane && q->n_draft_in_flight > 0) return 0;
        work = WORK_DECODE;
    } else if (q->state == SEQ_PREFILL) {
        work = WORK_PREFILL; /* the last slice of its source is launched */
    } else if (q->state == SEQ_WAITING) {
        if (q->from_previous_worker && waits_for_host(s, q)) return 0;
        work = q->n_source > 0 && !q->cross_kv_cached ? WORK_ENCODER : WORK_PREFILL;
    } else if (q->state == SEQ_ENCODER) {
        work = WORK_ENCODER;
    }
    return work & s->work[lane];
}

/* ---- lane_work.c */

/* Nobody else has anything to do, or out: the lane has the whole device. */
bool lane_is_alone(const struct scheduler *s, unsigned lane);
void apply_division(struct scheduler *s);

/* ---- retire.c */

void end_seq(struct scheduler *s, struct seq *q, uint16_t reason); /* ended already: nothing */
void leave_slot(struct scheduler *s, struct seq *q);  /* ended or preempted, nothing in flight */
bool expire_deadlines(struct scheduler *s, nsec now); /* somebody ended */
void free_enc_tokens(struct scheduler *s, uint32_t slot);
/* Of a search's first: tokens that all beams begin with, fewer than any has. */
uint32_t n_alike(const struct seq *first);
/* q has blocks that another sequence could use, and can be computed again. */
bool may_preempt(const struct scheduler *s, struct seq *q);
void preempt_one(struct scheduler *s, struct seq *q); /* it gives its slot and blocks up */
/* Paused, and so is its family: they leave their slots, all together, unless a step is out that
 * carries one of them. */
void leave_preempted(struct scheduler *s, struct seq *q);
/* Who is suspended and holds what somebody else could have, pages or anything, the last in the
 * list; NULL: nobody, or a step is out. */
struct seq *suspended_seq(const struct scheduler *s, bool pages);
/* For who found no room, a kept slot, or that of one who is suspended; false: none, or not yet.
 * Between two plans only: its blocks leave every table first. */
bool give_up_one(struct scheduler *s, nsec now);

/* ---- step_build.c */

/* The sequence is in this step: after its last one, wherever that ran. */
void put_in_step(struct step_plan *p, struct seq *q);
void add_run(struct step_plan *p, struct seq *q, unsigned work, uint32_t n_tokens);
/* Somebody's stream goes on, in this step or in one of another lane. */
bool decode_active(const struct step_plan *p);

/* ---- admit.c */

bool may_join(const struct scheduler *s);                /* who waits, as far as the policy goes */
bool admit_kv(struct scheduler *s, struct seq *q);       /* it has a slot, or gets one */
bool admit_enc(struct scheduler *s, struct seq *q);      /* a slot and rows of enc_state */
bool has_slot(struct scheduler *s, const struct seq *q); /* or could have one */
/* Blocks for positions up to end, where they are paid for step by step. */
bool pay_blocks(struct scheduler *s, struct seq *q, uint32_t end);
/* Blocks for those behind the first, who have slots, or for none of them. */
bool reserve_members(struct scheduler *s, struct seq *first, uint32_t len,
                     const struct admission *way);
/* Takes the slot that has been free longest; there is one. */
uint32_t take_free_slot(struct scheduler *s);
/* q, which is in no list, runs in that slot, in state `to`, with its adapter's pages. */
void occupy_slot(struct scheduler *s, struct seq *q, uint32_t slot, enum seq_state to);

/* ---- admit_adopted.c */

/* It goes on in the slot that was kept for it: true, and it runs; a family's first brings the
 * others. */
bool admit_adopted(struct scheduler *s, struct seq *q);
/* What a predecessor had of a family goes on: *first becomes who is left to wait, or NULL.
 * -EAGAIN: a search that cannot, all of which is given up. */
int adopt_seq_group(struct scheduler *s, struct seq **first) MUST_USE;

/* ---- seq_group.c */

bool goes_on_searching(const struct seq *q); /* a beam that was adopted with its search */
void resume_search(struct step_plan *p,
                   struct seq *first);     /* its first rows here: one of each beam */
uint32_t prompt_goal(const struct seq *q); /* up to where its next chunk may go */
/* The next row of that beam is the last of its prompt: it rides with those of all others, as
 * soon as they are there. */
static inline bool
rides_next(const struct seq *q)
{
    return q->beam && q->n_planned + 1 == q->n_prompt;
}
bool may_ride(const struct scheduler *s, const struct seq *q); /* of the first alone */
/* Beams before their next step: what may have to be edited fits into this one, and is. */
bool may_step_beams(struct step_plan *p, const struct seq *q);
void step_beams(struct step_plan *p, struct seq *q);
/* A step of all beams of a search is over; run: the first's. */
void commit_beams(struct scheduler *s, struct seq *first, const struct batch_segment *segment,
                  const struct batch_result *r);

/* ---- preempt.c */

/* max_utilization: blocks for the next step of everyone in list order, those of the lane's work.
 * Who finds none takes them from the last that has begun. Between two plans only: slots are
 * given up. True: one was. */
bool make_room(struct scheduler *s, unsigned lane, nsec now);

/* ---- encoder.c */

void plan_encoder(struct step_plan *p);

/* ---- prefill.c */

void plan_adopted(struct step_plan *p);
void plan_prefill(struct step_plan *p);
/* static_batch: whoever fits is of it, with rows in this step or later. */
void plan_static_batch(struct step_plan *p);

#endif
