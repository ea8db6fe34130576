/* route.c - see route.h. */
#include "route/route.h"

static bool
better(const struct route_worker *a, const struct route_worker *b)
{
    /* a->tokens - a->found < b->tokens - b->found, without differences that could be negative */
    uint64_t x = a->tokens + b->found, y = b->tokens + a->found;

    if (x != y) return x < y;
    return a->n_seqs < b->n_seqs;
}

uint32_t
route_pick(const struct route_worker *w, uint32_t n, uint32_t model)
{
    uint32_t best = ROUTE_NONE;

    for (uint32_t i = 0; i < n; i++) {
        if (!w[i].open || w[i].model != model || w[i].n_seqs >= w[i].max_seqs) continue;
        if (best == ROUTE_NONE || better(&w[i], &w[best])) best = i;
    }
    return best;
}

uint32_t
route_home(const struct route_worker *w, uint32_t n, uint32_t model, uint32_t home)
{
    bool there = home < n && w[home].model == model && (w[home].open || w[home].comes);

    if (!there) return route_pick(w, n, model);
    return w[home].open && w[home].n_seqs < w[home].max_seqs ? home : ROUTE_WAIT;
}

bool
route_stays(nsec start, uint64_t tokens, uint64_t rate)
{
    return rate && (double)tokens * 1e9 / (double)rate > (double)start;
}
