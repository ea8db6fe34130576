/* fleet.h - runs simulated workers behind the routing of route/, in virtual time.
 *
 * route_pick() selects a worker for each request that arrives; if no worker has capacity the
 * request is queued, as in lagand. A worker plans the next step of a lane while one is in flight.
 * Events happen in the order of their virtual time, then of their creation, so equal calls give
 * equal decisions.
 *
 *     fleet_add     a request arrives; all earlier events happen first
 *     fleet_finish  no more requests arrive; all remaining events happen
 *     fleet_result  returns the counters and latencies
 */
#pragma once
#include "sim/histogram.h"
#include "sim/sim_config.h"
#include "sim/trace.h"

struct fleet;

/* The faults to inject: shares (0 .. 1) of requests, or rates. The seed determines which. */
struct fleet_faults {
    uint64_t seed;
    double cancelled; /* requests cancelled at a random time */
    double suspended; /* requests whose client does not read for some time */
    double stopped;   /* requests that end before osl tokens */
    double deaths;    /* crashes per worker and second */
    nsec restart;     /* time until a crashed worker serves again */
};

struct fleet_use { /* the state of all workers together at one time */
    nsec at;
    /* in the fleet's queue; at workers, without and with a slot */
    uint64_t queued, waiting, running;
    uint32_t n_pools;
    uint64_t used[MAX_GROUPS], cached[MAX_GROUPS], free[MAX_GROUPS]; /* blocks by pool */
};

struct fleet_setting {
    struct sim_config worker;
    uint32_t n_workers, ahead; /* ahead: maximum requests without a slot at a worker */
    bool affinity;             /* route to cached prefixes, as reported by worker/kv/kv_event.h */
    struct fleet_faults faults;
    nsec every; /* virtual time between two calls of `use`; 0: never */
    void (*use)(void *to, const struct fleet_use *u);
    void *to;    /* argument of `use` */
    bool digest; /* hash all batches into fleet_result.digest */
    bool check;  /* check the invariants of every worker regularly, and at the end */
};

struct fleet_result {
    uint64_t requests, finished, cancelled, refused;
    uint64_t moved; /* requests moved to another worker after a crash */
    uint64_t prompt_tokens, output_tokens, cached_tokens;
    uint64_t steps, deaths, preemptions, peak_running;
    /* With fleet_setting.check: how many later requests of at most equal priority overtook a
     * request before it started at a worker; the maximum over all requests. */
    uint32_t passed;
    nsec end;                         /* virtual time when the last request ended */
    struct hist ttft, itl, tpot, e2e; /* tpot: mean itl of a request */
    uint64_t digest;
};

/* Creates a fleet with a copy of *setting. Errors as worker_open(). */
int fleet_new(struct fleet **ret, const struct fleet_setting *setting, struct err *e) MUST_USE;
struct fleet *fleet_free(struct fleet *f);
CLEAN_FUNC(struct fleet, fleet_free)
int fleet_add(struct fleet *f, const struct trace_line *t, struct err *e) MUST_USE;
int fleet_finish(struct fleet *f, struct err *e) MUST_USE;
const struct fleet_result *fleet_result(const struct fleet *f);
