/* event_queue.h - what is to happen when: a heap by time, then by order of making. */
#ifndef SIM_EVENT_QUEUE_H
#define SIM_EVENT_QUEUE_H

#include "base/base.h"

struct sim_event {
    nsec at;
    uint64_t order; /* events_add() sets it */
    uint8_t kind, lane;
    uint32_t worker, life; /* life: of the worker, so that a dead one's are not believed */
    uint64_t job;
};
struct event_queue {
    struct sim_event *e;
    uint32_t n, room;
    uint64_t made;
};

void events_add(struct event_queue *h, struct sim_event e);
const struct sim_event *events_next(const struct event_queue *h); /* NULL: none */
void events_drop(struct event_queue *h);                          /* the next one */
void events_done(struct event_queue *h);

#endif
