/* events.c - see events.h. */
#include "sim/events.h"

#include <stdlib.h>

static bool
before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void
swap(struct event *a, struct event *b)
{
    struct event t = *a;

    *a = *b;
    *b = t;
}

void
events_add(struct events *h, struct event e)
{
    uint32_t i = h->n++;

    if (h->n > h->room) {
        h->room = h->room ? 2 * h->room : 1024;
        check((h->e = realloc(h->e, h->room * sizeof h->e[0])));
    }
    e.order = h->made++;
    h->e[i] = e;
    for (; i > 0 && before(&h->e[i], &h->e[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&h->e[i], &h->e[(i - 1) / 2]);
}

const struct event *
events_next(const struct events *h)
{
    return h->n ? &h->e[0] : NULL;
}

void
events_drop(struct events *h)
{
    uint32_t i = 0, child;

    h->e[0] = h->e[--h->n];
    while ((child = 2 * i + 1) < h->n) {
        if (child + 1 < h->n && before(&h->e[child + 1], &h->e[child])) child++;
        if (!before(&h->e[child], &h->e[i])) break;
        swap(&h->e[i], &h->e[child]);
        i = child;
    }
}

void
events_done(struct events *h)
{
    free(h->e);
    *h = (struct events){ 0 };
}
