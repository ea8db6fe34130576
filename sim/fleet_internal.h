/* fleet_internal.h - the inside of struct fleet. For fleet*.c alone.
 *
 *     fleet.c           what happens, in order of its time
 *     fleet_request.c       a request, from its arrival to its one end
 *     fleet_step.c      a worker's steps, and which worker a request goes to
 *     fleet_faults.c  clients that go away or stand still, workers that die
 */
#ifndef SIM_FLEET_INTERNAL_H
#define SIM_FLEET_INTERNAL_H

#include "route/block_holders.h"
#include "route/route.h"
#include "sim/event_queue.h"
#include "sim/fleet.h"
#include "sim/sim_worker.h"

enum event_kind {
    EVENT_STEP,
    EVENT_WAKE,
    EVENT_DEATH,
    EVENT_RESTART,
    EVENT_CANCEL,
    EVENT_HALT,
    EVENT_GO_ON
};
enum { PACK_BYTES = 1 << 20 };
#define NOBODY UINT32_MAX

struct fleet_request {
    struct sim_request r; /* first: seq->owner */
    struct trace_line t;
    uint64_t id;
    uint32_t told, worker; /* tokens of the answer; NOBODY: in the queue */
    uint32_t stop;         /* of them, where it ends */
    nsec first, last;      /* of its tokens */
    bool gone;             /* its client is */
    bool begun, suspended; /* at its worker */
    uint32_t passed;
    uint64_t (*name)[2]; /* [n_names] of its prompt's blocks, where route/ asks for them */
    uint32_t n_names;
    struct fleet_request *next, *prev;
};
struct fleet_request_list {
    struct fleet_request *first, *last;
    uint64_t n;
};

struct fleet_worker { /* of the fleet */
    struct sim_worker w;
    struct fleet_request_list jobs;
    bool running[MAX_LANES]; /* the lane's oldest step */
    bool whole[MAX_LANES];   /* which has the whole device */
    uint32_t life;
    nsec wake;           /* the earliest EVENT_WAKE that is out */
    uint64_t next_event; /* of its KV manager */
};

struct fleet {
    struct fleet_setting s;
    struct fleet_worker *m;
    struct route_worker *table; /* what lagand would know of each */
    struct block_holders *holders;
    struct sim_worker namer; /* of blocks: one that does nothing else, and never dies */
    struct event_queue events;
    struct fleet_request_list queue;
    struct fleet_request **open; /* jobs by id modulo room_open, for events that name one */
    uint64_t room_open;
    nsec now, next_use;
    uint64_t random, since_check;
    uint8_t *bytes;
    struct fleet_result result;
};

/* fleet_request.c */
void jobs_add(struct fleet_request_list *l, struct fleet_request *j, struct fleet_request *behind);
void jobs_take(struct fleet_request_list *l, struct fleet_request *j);
struct fleet_request *job_of(const struct seq *q);
struct fleet_request *job_find(const struct fleet *f, uint64_t id); /* NULL: it has ended */
void job_remember(struct fleet *f, struct fleet_request *j);
/* false: it can never run there, nor anywhere. */
bool job_give(struct fleet *f, struct fleet_request *j, uint32_t worker);
void job_leave(struct fleet *f, struct fleet_request *j); /* its worker */
void job_tell(struct sim_request *r, token_id token, nsec now,
              void *to); /* sim_worker.h's `sampled` */
/* Nothing more comes: it has what it asked for, its client is gone, or nobody could run it. */
void job_end(struct fleet *f, struct fleet_request *j);
void jobs_reap(struct fleet *f, struct fleet_worker *m);

/* fleet_step.c */
/* Plan what the worker's lanes have room for, start what may start. */
void fleet_kick(struct fleet *f, uint32_t worker);
void fleet_name_blocks(struct fleet *f, struct fleet_request *j); /* for route/ */
void fleet_dispatch(struct fleet *f); /* who waits, to whoever has room */
void fleet_finish_step(struct fleet *f, const struct sim_event *e);

/* fleet_faults.c */
void mischief_plan(struct fleet *f, struct fleet_request *j);
void mischief_cancel(struct fleet *f, uint64_t id);
void mischief_halt(struct fleet *f, uint64_t id, bool suspended);
void mischief_next_death(struct fleet *f, uint32_t worker);
/* Its requests go back to the head of the queue, with what their clients have. */
void mischief_die(struct fleet *f, uint32_t worker);

#endif
