/* event_queue.h - a heap of events, ordered by time, then by creation. */
#pragma once

#include "base/base.h"

struct sim_event {
    nsec at;
    uint64_t order; /* set by events_add() */
    uint8_t kind, lane;
    uint32_t worker, life; /* life: of the worker; events of an earlier life are ignored */
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
