/* fleet_internal.h - struct fleet and the functions between its files.
 *
 *     fleet.c          events in order of time; cancelled and suspended clients, crashed workers
 *     fleet_request.c  a request from arrival to end, the steps and the selection of a worker
 *     event_queue.c    the queue of events
 */
#pragma once
#include "route/block_holders.h"
#include "route/route.h"
#include "sim/fleet.h"
#include "sim/sim_worker.h"

/* An event of the simulation. The queue returns events by time, then by order of creation. */
struct sim_event {
    nsec at;
    uint64_t order; /* set by events_add() */
    uint8_t kind, lane;
    uint32_t worker, life; /* life: which life of the worker (it grows at a crash) */
    uint64_t id;           /* of a request */
};
struct event_queue {
    struct sim_event *e;
    uint32_t n, capacity;
    uint64_t made;
};

void events_add(struct event_queue *h, struct sim_event e);
const struct sim_event *events_next(const struct event_queue *h); /* NULL: empty */
void events_drop(struct event_queue *h);                          /* removes events_next() */
void events_done(struct event_queue *h);

enum event_kind {
    EVENT_STEP,
    EVENT_WAKE,
    EVENT_DEATH,
    EVENT_RESTART,
    EVENT_CANCEL,
    EVENT_SUSPEND,
    EVENT_RESUME
};
enum { PACK_BYTES = 1 << 20 };
#define NOBODY UINT32_MAX

struct fleet_request {
    struct sim_request r; /* must be first: seq->owner points to it */
    struct trace_line t;
    uint64_t id;
    uint32_t n_delivered, worker; /* worker: index; NOBODY: in the fleet's queue */
    uint64_t load;    /* its tokens in table[worker].tokens, without those found in the cache */
    uint32_t stop;    /* number of generated tokens at which it ends */
    nsec first, last; /* times of its first and last token */
    bool gone;        /* the client has cancelled */
    bool begun, suspended; /* at its worker */
    uint32_t passed;
    uint64_t (*name)[2]; /* [n_names] names of its prompt's blocks, for setting.affinity */
    uint32_t n_names;
    struct fleet_request *next, *prev;
};
struct fleet_request_list {
    struct fleet_request *first, *last;
    uint64_t n;
};

struct fleet_worker {
    struct sim_worker w;
    struct fleet_request_list requests;
    bool running[MAX_LANES]; /* the lane's oldest step has started */
    bool whole[MAX_LANES];   /* this step has the whole device */
    uint32_t life;
    nsec wake;           /* earliest EVENT_WAKE in the event queue */
    uint64_t next_event; /* number of the next KV event to read */
};

struct fleet {
    struct fleet_setting s;
    struct fleet_worker *m;
    struct route_worker *table; /* per worker: what lagand would know of it */
    struct block_holders *holders;
    struct sim_worker namer; /* only computes block names for routing */
    struct event_queue events;
    struct fleet_request_list queue;
    struct fleet_request **open; /* open requests, indexed by id % open_capacity */
    uint64_t open_capacity;
    nsec now, next_use;
    uint64_t random, since_check;
    uint8_t *bytes;
    struct fleet_result result;
};

/* fleet_request.c */
void fleet_list_add(struct fleet_request_list *l, struct fleet_request *j,
                    struct fleet_request *behind);
void fleet_list_remove(struct fleet_request_list *l, struct fleet_request *j);
struct fleet_request *fleet_request_find(const struct fleet *f,
                                         uint64_t id); /* NULL: it has ended */
void fleet_request_remember(struct fleet *f, struct fleet_request *j);
void fleet_request_leave(struct fleet *f, struct fleet_request *j); /* removes j from its worker */
/* Records a token delivered to the client of r; is sim_worker.sampled of every worker. */
void fleet_request_deliver(struct sim_request *r, token_id token, nsec now, void *to);
/* Ends a request that is complete, cancelled or refused by a worker: counts and frees it. */
void fleet_request_end(struct fleet *f, struct fleet_request *j);
/* Plans and starts steps of the worker's lanes until no lane can. */
void fleet_kick(struct fleet *f, uint32_t worker);
void fleet_name_blocks(struct fleet *f, struct fleet_request *j); /* for route/ */
void fleet_dispatch(struct fleet *f); /* assigns queued requests to workers with capacity */
void fleet_finish_step(struct fleet *f, const struct sim_event *e);
