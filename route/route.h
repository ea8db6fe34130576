/* route.h - selects the worker of a request. Pure: tables in, index out.
 *
 * lagand and the simulator call the same functions, so a replayed trace is routed as in lagand. No
 * clock, no allocation, no state. */
#pragma once

#include "base/base.h"

#define ROUTE_NONE UINT32_MAX
#define ROUTE_WAIT (UINT32_MAX - 1)

struct route_worker {
    bool open;                 /* serves and accepts a request now */
    uint32_t model;            /* index of the model that the worker runs */
    uint32_t n_seqs, max_seqs; /* sequences of the worker, and their limit */
    /* prompt and output tokens of its sequences that may still be computed */
    uint64_t tokens;
    bool comes; /* does not serve now and is starting */
    /* tokens of this request that the worker would find in its prefix cache (block_holders.h) */
    uint64_t found;
};

/* Returns the open worker of the model with a free sequence and the fewest tokens, counting the
 * tokens of the request that it would not find in its cache. Equal tokens: fewer sequences, then
 * the lower index. ROUTE_NONE: no such worker. */
uint32_t route_pick(const struct route_worker *w, uint32_t n, uint32_t model);

/* For a request whose KV is at worker `home`: returns home, or ROUTE_WAIT while home starts or has
 * no free sequence. If home does not exist or runs another model: as route_pick(). */
uint32_t route_home(const struct route_worker *w, uint32_t n, uint32_t model, uint32_t home);
/* Returns true if waiting `start` for the replacement of the request's worker is faster than
 * computing `tokens` again on another worker at `rate` tokens a second. rate 0: unknown; returns
 * false. */
bool route_stays(nsec start, uint64_t tokens, uint64_t rate);
