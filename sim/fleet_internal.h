/* fleet_internal.h - the inside of struct fleet; included by fleet*.c only.
 *
 *     fleet.c          events, in order of time; cancelled and suspended clients, crashed workers
 *     fleet_request.c  a request from arrival to end
 *     fleet_step.c     the steps of a worker, and the selection of a worker
 */
#pragma once

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
    EVENT_SUSPEND,
    EVENT_RESUME
};
enum { PACK_BYTES = 1 << 20 };
#define NOBODY UINT32_MAX

struct fleet_request {
    struct sim_request r; /* first: seq->owner */
    struct trace_line t;
    uint64_t id;
    uint32_t n_delivered, worker; /* tokens delivered; NOBODY: in the queue */
    uint32_t stop;                /* number of tokens at which it ends */
    nsec first, last;             /* times of its first and last token */
    bool gone;                    /* the client has cancelled */
    bool begun, suspended;        /* at its worker */
    uint32_t passed;
    uint64_t (*name)[2]; /* [n_names] of its prompt's blocks, if route/ uses them */
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
    bool running[MAX_LANES]; /* the lane's oldest step runs */
    bool whole[MAX_LANES];   /* that step has the whole device */
    uint32_t life;
    nsec wake;           /* earliest EVENT_WAKE in the event queue */
    uint64_t next_event; /* next KV event to read */
};

struct fleet {
    struct fleet_setting s;
    struct fleet_worker *m;
    struct route_worker *table; /* what lagand knows of each worker */
    struct block_holders *holders;
    struct sim_worker namer; /* computes block names; never plans and never crashes */
    struct event_queue events;
    struct fleet_request_list queue;
    struct fleet_request **open; /* requests by id modulo open_capacity, for events that name one */
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
/* False: the request fits no worker. */
bool fleet_request_give(struct fleet *f, struct fleet_request *j, uint32_t worker);
void fleet_request_leave(struct fleet *f, struct fleet_request *j); /* removes it from its worker */
/* sim_worker.h's `sampled`. */
void fleet_request_deliver(struct sim_request *r, token_id token, nsec now, void *to);
/* Ends the request: complete, cancelled, or refused by a worker. */
void fleet_request_end(struct fleet *f, struct fleet_request *j);
void fleet_reap(struct fleet *f, struct fleet_worker *m);

/* fleet_step.c */
/* Plans and starts steps of the worker's lanes until no lane can. */
void fleet_kick(struct fleet *f, uint32_t worker);
void fleet_name_blocks(struct fleet *f, struct fleet_request *j); /* for route/ */
void fleet_dispatch(struct fleet *f); /* assigns queued requests to workers with capacity */
void fleet_finish_step(struct fleet *f, const struct sim_event *e);
