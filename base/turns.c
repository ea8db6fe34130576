/* turns.c - see turns.h. */
#include "base/turns.h"

uint64_t
turns_give(struct turns *t, uint32_t client, uint64_t tokens)
{
    struct turns_client *c = &t->client[client % TURNS_CLIENTS];

    if (t->quantum == 0) return 0;
    if (c->n_open++ == 0) c->turn = c->spent = 0;
    c->spent = MAX(c->spent, t->now * t->quantum) + tokens;
    c->turn = MAX(c->turn, CEIL_DIV(c->spent, t->quantum)); /* its own stay in order */
    return c->turn;
}

void
turns_take(struct turns *t, uint64_t turn)
{
    t->now = MAX(t->now, turn);
}

void
turns_change(struct turns *t, uint32_t client, uint64_t had, uint64_t has)
{
    struct turns_client *c = &t->client[client % TURNS_CLIENTS];

    if (t->quantum == 0) return;
    c->spent = c->spent - MIN(c->spent, had) + has;
}

void
turns_end(struct turns *t, uint32_t client, uint64_t unused)
{
    struct turns_client *c = &t->client[client % TURNS_CLIENTS];

    if (t->quantum == 0) return;
    check(c->n_open > 0);
    c->n_open--;
    c->spent -= MIN(c->spent, unused);
}
