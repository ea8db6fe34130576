/* core.h - the inside of struct scheduler. For the files of worker/sched/ alone.
 *
 *     scheduler.c  new, add, cancel, reap, check
 *     admit.c      may it run, does it fit: the one predicate, the one need, seats, encoder rows
 *     share.c      what requests share: pages, prompts that begin alike
 *     family.c     sequences that begin alike: beams, samples
 *     pause.c      max_utilization: blocks step by step, and who gives way
 *     plan.c       the next step of a lane
 *     context.c    of which: prompts
 *     encoder.c    of which: sources
 *     division.c   which lane does what, and on how much of the device
 *     commit.c     what a step sampled
 */
#ifndef SCHED_CORE_H
#define SCHED_CORE_H

#include "base/fair_queue.h"
#include "worker/kv/kv_reuse.h"
#include "worker/sched/scheduler.h"

/* A successor may have to compute again what was done: tokens of the last steps, of one lane and the next, that were
 * not told yet. And two steps of a lane may be out. */
enum { UNTOLD_STEPS = 2, STEPS_OUT = 2 };

struct seat {
    struct seq *seq; /* NULL: free */
    uint32_t len;    /* positions that its blocks are reserved for; 0: it has none */
    uint32_t chunk;  /* decoder rows a step, at most */
    /* As of kv_quiet(), where nothing else is to be done either; and a row before them, where what will be
     * looked at is asked for: below both nobody looks at the seat's blocks. */
    uint32_t quiet_end, quiet_first, near_end, near_first;
    bool begun;     /* a decoder chunk of it was planned */
    bool lowered;   /* its reservation is what generation needs */
    bool thin;      /* its windows have room for one step of its prompt, not for two */
    bool kept;      /* nobody sits there; its blocks are a predecessor's */
    bool encoded;   /* it holds rows of enc_state */
    bool crossed;   /* its source's K and V were there when it got its blocks */
    uint32_t pages; /* whose pages it holds: of holder[], + 1; 0: nobody's */
    /* Names the first full block that its prompt is about to fill, as of making_at positions done. */
    uint32_t making_at;
    uint64_t making[2];
};

_Static_assert(sizeof(struct seat) == CACHE_LINE, "a step looks at each of them once");

struct enc_rows { /* a source's rows of enc_state */
    uint32_t first, n, seat;
};

struct holder { /* of pages */
    uint64_t lora;
    uint32_t pages, n_users; /* 0: nobody */
};

struct chunk { /* rows of a prompt in the step that is being planned */
    struct seq *seq;
    uint32_t n_rows;
};

struct scheduler {
    struct scheduler_limits l;
    struct kv *kv;
    bool reuse;           /* kv finds what others computed */
    uint32_t max_running; /* sequences with a seat: each may need a row of a step */
    uint32_t unit;        /* of chunks that are not a prompt's last */
    bool unit_strict;     /* asked for: no chunk of less, however small the budget */
    uint64_t planned[MAX_LANES], done[MAX_LANES];

    struct seq_list waiting, running, ended; /* running: has a seat, ended ones in flight too */
    uint32_t n_in[SEQ_ENDED + 1]; /* sequences in each state; of SEQ_NEW nothing is known */
    struct seat *seat;            /* [n_seats] */
    uint32_t n_seats, *free_seat, first_free, n_free; /* ring: the one free longest is next */
    uint32_t n_kept;
    bool cramped;  /* somebody found no room, and seats are kept, or somebody there is halted */
    bool halts;    /* somebody has been halted, once */
    bool no_pages; /* somebody waits for pages */
    bool aged;     /* somebody has waited for pages for too long, once */
    unsigned
        ask; /* lanes, by bit, that may have use for what another lane's plan, or time, has changed */
    bool turned;          /* a source was found, or lost again: another kind of work now */
    bool closed;          /* static_batch: somebody generates, so nobody joins */
    nsec keep_until;      /* that long nothing is given up for it */
    struct enc_rows *enc; /* [n_enc] by first row */
    uint32_t n_enc;
    struct chunk *chunk;  /* [n_seats] */
    struct kv_soon *soon; /* [2 * n_seats] whose blocks their next step changes */
    uint32_t n_soon;
    struct fair_queue turns;
    struct holder *holder; /* [n_seats] */
    uint32_t n_holders, pages_used;
    nsec next_deadline; /* nothing expires before it */
    nsec waited_for
        [MAX_LANES]; /* the lane lets somebody wait for company until then; NSEC_NEVER: nobody */
    uint64_t ticket, n_pauses;
    unsigned rung, next_rung; /* of steps planned now; as it was asked for */
    uint8_t
        work[MAX_LANES]; /* of each lane now: limits.lane_work, or with answers where prompts are */
    bool together;       /* the latter */
    bool drains; /* it will be, when no step of prompts is out: until then none is planned */
    uint32_t
        step_rows; /* of a step with prompts while somebody generates; 0: no bound but the lane's */
    bool idle[MAX_LANES]; /* the lane's last plan found nothing */
    bool tree;            /* the guesses are no chain; by row of a run: */
    uint8_t depth[1 + MAX_DRAFT];
    uint32_t sees[1 + MAX_DRAFT]; /* rows, by bit */
};

static inline void
move(struct scheduler *s, struct seq *q, enum seq_state to)
{
    s->n_in[q->state]--;
    seq_move(q, to);
    s->n_in[to]++;
}

struct plan {
    struct scheduler *s;
    struct batch *b;
    unsigned lane;
    nsec now;
    struct kv_out out;
    uint32_t rows_left; /* decoder's */
    uint32_t begins;    /* edits left for rows of tables that begin with blocks */
};

/* plan.c */
/* The sequence is in this step: after its last one, wherever that ran. */
void carry(struct plan *p, struct seq *q);
void add_run(struct plan *p, struct seq *q, unsigned work, uint32_t n_rows);
/* Somebody's stream goes on, in this step or in one of another lane. */
bool streaming(const struct plan *p);

/* context.c */
void plan_adopted(struct plan *p);
void plan_context(struct plan *p);
void form_batch(
    struct plan *p); /* static_batch: whoever fits is of it, with rows in this step or later */

/* division.c */
/* Nobody else has anything to do, or out: the lane has the whole device. */
bool alone(const struct scheduler *s, unsigned lane);
void divide(struct scheduler *s);

/* encoder.c */
void plan_encoder(struct plan *p);

/* share.c */
bool has_pages(const struct scheduler *s, const struct seq *q);
/* The same of one that waits, if nobody before it has waited for them for too long. */
bool may_take_pages(struct scheduler *s, const struct seq *q);
void take_pages(struct scheduler *s, const struct seq *q);
/* q has got a seat: who waits for pages before it was passed over. */
void pass_over(struct scheduler *s, struct seq *q);
void give_pages(struct scheduler *s, uint32_t seat);
struct kv_text text_of(const struct seq *q, uint32_t n);
/* Its prompt begins like one before it that is being computed: it waits for that, and has it for nothing. */
bool twin_ahead(struct scheduler *s, struct seq *q);
/* Its source's K and V are there, by what kv knows now. */
bool find_cross(struct scheduler *s, struct seq *q);

/* What it would find is on its way: the host tier has more of it than the device. */
bool waits_for_host(const struct scheduler *s, const struct seq *q);

/* admit.c */

/* The one answer to "may it be in the lane's next step, and as what": an enum work, or 0. Everything
 * that plans asks here. Who is late has ended: expire(). */
static inline unsigned
runnable(const struct scheduler *s, const struct seq *q, unsigned lane)
{
    unsigned work = 0;

    if (q->halted || seq_follows(q)) return 0;
    if (q->state == SEQ_GENERATION) {
        if (q->lockstep && q->in_flight > 0) return 0;
        if (q->n_out == q->max_new) return 0; /* what is in flight may be all it wants */
        /* A step is moved back by what the one before it was refused, not by that of two. */
        if (q->lane != lane && q->n_guess > 0) return 0;
        work = WORK_GENERATION;
    } else if (q->state == SEQ_CONTEXT) {
        work = WORK_CONTEXT; /* the last slice of its source is launched */
    } else if (q->state == SEQ_WAITING) {
        if (q->resumed && waits_for_host(s, q)) return 0;
        work = q->n_source > 0 && !q->cross_there ? WORK_ENCODER : WORK_CONTEXT;
    } else if (q->state == SEQ_ENCODER) {
        work = WORK_ENCODER;
    }
    return work & s->work[lane];
}

/* How a prompt of that many of its tokens can be computed so that it fits alone in the cache to its end: the
 * largest chunk, and for how many rows at once a window keeps blocks. -EMSGSIZE: never. */
struct admission {
    uint32_t chunk, rows;
};
/* That were done, and that a successor may compute again. */
static inline uint32_t
rows_untold(const struct seq *q)
{
    return UNTOLD_STEPS * (1 + q->n_draft);
}
/* From there on a successor may compute it again, and sees the window before that: of beams, whose steps come one by
 * one and are told of as they are decided, from where they are, unless a step of their prompt is out. */
static inline uint32_t
seen_from(const struct seq *q)
{
    if (q->beam && q->in_flight == 0) return q->n_planned;
    return q->n_done - MIN(q->n_done, rows_untold(q));
}
/* For how many rows at once a window keeps blocks, so that two steps may be out: of a prompt in chunks, or 0. */
uint32_t rows_out(const struct seq *q, uint32_t chunk);
int admission(const struct scheduler *s, const struct seq *q, uint32_t n_prompt,
              struct admission *ret, struct err *e) MUST_USE;
uint32_t max_running(const struct scheduler_limits *l);  /* every decoding sequence has its row */
bool may_join(const struct scheduler *s);                /* who waits, as far as the policy goes */
bool admit_kv(struct scheduler *s, struct seq *q);       /* it has a seat, or gets one */
bool admit_enc(struct scheduler *s, struct seq *q);      /* a seat and rows of enc_state */
bool has_seat(struct scheduler *s, const struct seq *q); /* or could have one */
/* Blocks for positions up to end, where they are paid for step by step. */
bool pay(struct scheduler *s, struct seq *q, uint32_t end);
/* For its next row. Each of a thousand is asked in each step. */
static inline bool
has_paid(const struct scheduler *s, const struct seq *q)
{
    return q->n_planned < s->seat[q->seat].len;
}
/* The same of it and all behind it. */
static inline bool
all_paid(const struct scheduler *s, const struct seq *q)
{
    for (; q; q = q->next_member)
        if (!has_paid(s, q)) return false;
    return true;
}
/* A step of its prompt is out, and its window has no room for another one behind it: what a successor goes on from
 * would be gone. */
static inline bool
must_come_first(const struct scheduler *s, const struct seq *q)
{
    return s->seat[q->seat].thin && q->in_flight > 0 && q->n_done < q->n_prompt;
}
void free_enc_rows(struct scheduler *s, uint32_t seat);
/* It goes on in the seat that was kept for it: true, and it runs; a family's first brings the others. */
bool admit_adopted(struct scheduler *s, struct seq *q);
/* The same of a search, all of whose beams are there; false: no seat is given up yet. */
bool admit_search(struct scheduler *s, struct seq *first);

/* scheduler.c */
void end_seq(struct scheduler *s, struct seq *q, uint16_t reason); /* ended already: nothing */
void leave_seat(struct scheduler *s, struct seq *q); /* ended or paused, nothing in flight */
bool expire(struct scheduler *s, nsec now);          /* somebody ended */
/* For who found no room, a kept seat, or that of one who is halted; false: none, or not yet. Between two plans only: its blocks leave every
 * table first. */
bool give_up_one(struct scheduler *s, nsec now);

/* family.c */
uint32_t family_size(const struct seq *q); /* seats that it takes: 1 on its own */
/* What a member needs beside what it shares. */
struct kv_need member_need(const struct scheduler *s, const struct seq *first, uint32_t len,
                           uint32_t rows);
/* Blocks for those behind the first, who have seats, or for none of them. */
bool reserve_members(struct scheduler *s, struct seq *first, uint32_t len,
                     const struct admission *way);
/* What a predecessor had of a family goes on: *first becomes who is left to wait, or NULL. -EAGAIN: a search that
 * cannot, all of which is given up. */
int adopt_family(struct scheduler *s, struct seq **first) MUST_USE;
bool goes_on_searching(const struct seq *q);           /* a beam that was adopted with its search */
void resume_search(struct plan *p, struct seq *first); /* its first rows here: one of each beam */
/* Its next rows are the first that are its own. */
static inline bool
forks_now(const struct seq *q)
{
    return q->first_member == q && !q->forked && q->n_planned == q->n_shared;
}
/* Of a search's first: tokens that all beams begin with, fewer than any has. */
uint32_t n_alike(const struct seq *first);
uint32_t prompt_goal(const struct seq *q); /* up to where its next chunk may go */
/* The next row of that beam is the last of its prompt: it rides with those of all others, as soon as they are there. */
static inline bool
rides_next(const struct seq *q)
{
    return q->beam && q->n_planned + 1 == q->n_prompt;
}
bool may_ride(const struct scheduler *s, const struct seq *q);       /* of the first alone */
uint32_t fork_edits(const struct scheduler *s, const struct seq *q); /* 0: it does not fork */
/* So many times what one seat may hold can be told of seats that begin, in a step. */
uint32_t family_edits(const struct scheduler_limits *l);
void fork_members(struct plan *p, struct seq *first);
/* Beams before their next step: what may have to be edited fits into this one, and is. */
bool may_turn(struct plan *p, const struct seq *q);
void turn_beams(struct plan *p, struct seq *q);
/* A step of all beams of a search is over; run: the first's. */
void commit_beams(struct scheduler *s, struct seq *first, const struct batch_run *run,
                  const struct batch_result *r);

/* pause.c */

/* max_utilization: blocks for the next step of everyone in list order, those of the lane's work. Who finds none
 * takes them from the last that has begun. Between two plans only: seats are given up. True: one was. */
bool make_room(struct scheduler *s, unsigned lane, nsec now);
void unwind(struct seq *q); /* it has given everything up: back to a prompt */
/* Paused, and so is its family: they leave their seats, all together, unless a step is out that carries one of them. */
void leave_paused(struct scheduler *s, struct seq *q);
/* Who is halted and holds what somebody else could have, pages or anything, the last in the list; NULL: nobody, or a step
 * is out. */
struct seq *halted_one(const struct scheduler *s, bool pages);
void pause_one(struct scheduler *s, struct seq *q); /* it gives its seat and blocks up */

#endif
