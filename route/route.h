/* route.h - which worker takes a request: pure, tables in, index out.
 *
 * lagand and the simulator ask the same function, so that a trace replayed in virtual time goes where
 * it would have gone. No clock, no allocation, no state of its own.
 */
#ifndef ROUTE_ROUTE_H
#define ROUTE_ROUTE_H

#include "base/base.h"

#define ROUTE_NONE UINT32_MAX

struct route_worker {
    bool open;               /* serves, and may be given something now */
    uint32_t model;          /* which of the served models it runs */
    uint32_t rows, max_rows; /* requests it has, and may have */
    uint64_t tokens;         /* prompt and answer tokens those may still cost */
};

/* The open worker of that model with room and the fewest tokens ahead; of equals the one with fewer
 * requests, then the lower index. ROUTE_NONE: nobody now. */
uint32_t route_pick(const struct route_worker *w, uint32_t n, uint32_t model);

#endif
