/* route.h - which worker takes a request: pure, tables in, index out.
 *
 * lagand and the simulator ask the same function, so that a trace replayed in virtual time goes where
 * it would have gone. No clock, no allocation, no state of its own.
 */
#ifndef ROUTE_ROUTE_H
#define ROUTE_ROUTE_H

#include "base/base.h"

#define ROUTE_NONE UINT32_MAX
#define ROUTE_WAIT (UINT32_MAX - 1)

struct route_worker {
    bool open;                 /* serves, and may be given something now */
    uint32_t model;            /* which of the served models it runs */
    uint32_t n_seqs, max_seqs; /* sequences it has, and may have */
    uint64_t tokens;           /* prompt and answer tokens those may still cost */
    bool comes;                /* it does not serve now, and is about to */
    uint64_t found; /* tokens of this request that it need not compute (block_holders.h) */
};

/* The open worker of that model with room and the fewest tokens ahead, the request's own included but for what is
 * found; of equals the one with fewer requests, then the lower index. ROUTE_NONE: nobody now. */
uint32_t route_pick(const struct route_worker *w, uint32_t n, uint32_t model);

/* A request whose KV lies with worker `home`: that one, or ROUTE_WAIT while it comes, or has no room; else
 * as route_pick(). */
uint32_t route_home(const struct route_worker *w, uint32_t n, uint32_t model, uint32_t home);
/* Is it sooner to wait for its own worker's successor, which takes `start`, than to compute so many
 * tokens again elsewhere, at `rate` tokens a second? rate 0: not known, and never. */
bool route_stays(nsec start, uint64_t tokens, uint64_t rate);

#endif
