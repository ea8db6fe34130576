/* fair_queue.c - see fair_queue.h. */
#include "base/fair_queue.h"

uint64_t
fair_queue_give(struct fair_queue *t, uint32_t client, uint64_t tokens)
{
    struct fair_queue_client *c = &t->client[client % FAIR_QUEUE_CLIENTS];

    if (t->quantum == 0) return 0;
    if (c->n_open++ == 0) c->tag = c->spent = 0;
    c->spent = MAX(c->spent, t->now * t->quantum) + tokens;
    /* tags of one client never decrease */
    c->tag = MAX(c->tag, CEIL_DIV(c->spent, t->quantum));
    return c->tag;
}

void
fair_queue_take(struct fair_queue *t, uint64_t tag)
{
    t->now = MAX(t->now, tag);
}

void
fair_queue_change(struct fair_queue *t, uint32_t client, uint64_t had, uint64_t has)
{
    struct fair_queue_client *c = &t->client[client % FAIR_QUEUE_CLIENTS];

    if (t->quantum == 0) return;
    c->spent = c->spent - MIN(c->spent, had) + has;
}

void
fair_queue_end(struct fair_queue *t, uint32_t client, uint64_t unused)
{
    struct fair_queue_client *c = &t->client[client % FAIR_QUEUE_CLIENTS];

    if (t->quantum == 0) return;
    check(c->n_open > 0);
    c->n_open--;
    c->spent -= MIN(c->spent, unused);
}
