/* route.h - selects the worker of a request: pure functions from the loads of all workers to the
 * index of one of them, without clock, allocation or state.
 *
 * lagand and the simulator call the same functions, so a replayed trace is routed as in lagand. */
#pragma once
#include "base/base.h"

#define ROUTE_NONE UINT32_MAX       /* no worker can take the request */
#define ROUTE_WAIT (UINT32_MAX - 1) /* keep the request queued for worker `home` */

struct route_worker {
    bool open;                 /* serves and accepts a request now */
    uint32_t model;            /* index of the model that the worker runs */
    uint32_t n_seqs, max_seqs; /* sequences of the worker, and their limit */
    /* Prompt and output tokens of its sequences that may still be computed; without those that were
     * expected in its prefix cache. */
    uint64_t tokens;
    bool comes; /* the worker is starting and will serve */
    /* tokens of this request that the worker would find in its prefix cache (block_holders.h) */
    uint64_t found;
};

/* Returns the least loaded worker of w[n]: of the open workers of the model below max_seqs, the one
 * with the smallest sum of its `tokens` and the prompt tokens of the request that it would have to
 * compute. Equal sums: fewer sequences, then the lower index. ROUTE_NONE: no such worker. */
uint32_t route_pick(const struct route_worker *w, uint32_t n, uint32_t model);

/* Routes a request whose KV is at worker `home`: returns home, or ROUTE_WAIT while home starts or
 * has max_seqs sequences. If home has another model or neither runs nor starts: as route_pick(). */
uint32_t route_home(const struct route_worker *w, uint32_t n, uint32_t model, uint32_t home);
/* Returns true if a request whose worker has died should wait for the replacement: starting the
 * replacement (`start` nanoseconds) is faster than computing `tokens` again on another worker at
 * `rate` tokens a second. Returns false if rate is 0, which means unknown. */
bool route_stays(nsec start, uint64_t tokens, uint64_t rate);
