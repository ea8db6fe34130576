/* event_queue.c - a binary heap of the fleet's events by time: see fleet_internal.h. */
#include "sim/fleet_internal.h"

static bool
event_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void
swap_events(struct sim_event *a, struct sim_event *b)
{
    struct sim_event t = *a;

    *a = *b;
    *b = t;
}

void
events_add(struct event_queue *h, struct sim_event e)
{
    uint32_t i = h->n++;

    if (h->n > h->capacity) {
        h->capacity = h->capacity ? 2 * h->capacity : 1024;
        check((h->e = realloc(h->e, h->capacity * sizeof h->e[0])));
    }
    e.order = h->made++;
    h->e[i] = e;
    for (; i > 0 && event_before(&h->e[i], &h->e[(i - 1) / 2]); i = (i - 1) / 2)
        swap_events(&h->e[i], &h->e[(i - 1) / 2]);
}

const struct sim_event *
events_next(const struct event_queue *h)
{
    return h->n ? &h->e[0] : NULL;
}

void
events_drop(struct event_queue *h)
{
    uint32_t i = 0, child;

    h->e[0] = h->e[--h->n];
    while ((child = 2 * i + 1) < h->n) {
        if (child + 1 < h->n && event_before(&h->e[child + 1], &h->e[child])) child++;
        if (!event_before(&h->e[child], &h->e[i])) break;
        swap_events(&h->e[i], &h->e[child]);
        i = child;
    }
}

void
events_done(struct event_queue *h)
{
    free(h->e);
    *h = (struct event_queue){ 0 };
}
