/* fleet.h - simulated workers behind route/, in virtual time.
 *
 * Requests arrive and route_pick() selects a worker; if none has capacity the request is queued, as
 * in lagand. A worker plans the next step of a lane while one is in flight. Events happen in the
 * order of their virtual time, then of their creation: equal calls give equal decisions.
 *
 *     fleet_add     a request arrives; all earlier events happen first
 *     fleet_finish  no more requests arrive; all events happen
 *     fleet_result  the result
 */
#pragma once

#include "sim/histogram.h"
#include "sim/sim_config.h"
#include "sim/trace.h"

struct fleet;

/* Faults to inject, as shares (0 .. 1) of requests or rates, drawn from the seed. */
struct fleet_faults {
    uint64_t seed;
    double cancelled; /* requests cancelled at a random time */
    double suspended; /* requests whose client does not read for some time */
    double stopped;   /* requests that end before their length */
    double deaths;    /* crashes per worker and second */
    nsec restart;     /* time until a crashed worker serves again */
};

struct fleet_use { /* a sample over all workers */
    nsec at;
    uint64_t queued, waiting, running; /* in the queue; at a worker without and with a slot */
    uint32_t n_pools;
    uint64_t used[MAX_GROUPS], cached[MAX_GROUPS], free[MAX_GROUPS]; /* blocks by pool */
};

struct fleet_setting {
    struct sim_config worker;
    uint32_t n_workers, ahead; /* ahead: requests without a slot that a worker may have */
    bool affinity;             /* route/ uses the workers' KV events */
    struct fleet_faults faults;
    nsec every; /* virtual time between two calls of `use`; 0: never */
    void (*use)(void *to, const struct fleet_use *u);
    void *to;    /* argument of `use` */
    bool digest; /* hash every batch into the result's digest */
    bool check;  /* check the invariants of every worker regularly, and at the end */
};

struct fleet_result {
    uint64_t requests, finished, cancelled, refused;
    uint64_t moved; /* requests moved to another worker after a crash */
    uint64_t prompt_tokens, output_tokens, cached_tokens;
    uint64_t steps, deaths, preemptions, peak_running;
    /* With check: how often a request was overtaken by later ones of at most equal priority before
     * it started at a worker; the maximum. */
    uint32_t passed;
    nsec end;                         /* virtual time when the last request ended */
    struct hist ttft, itl, tpot, e2e; /* tpot: mean time between tokens of a request */
    uint64_t digest;
};

/* setting is copied. Errors as worker_open(). */
int fleet_new(struct fleet **ret, const struct fleet_setting *setting, struct err *e) MUST_USE;
struct fleet *fleet_free(struct fleet *f);
CLEAN_FUNC(struct fleet, fleet_free)
int fleet_add(struct fleet *f, const struct trace_line *t, struct err *e) MUST_USE;
int fleet_finish(struct fleet *f, struct err *e) MUST_USE;
const struct fleet_result *fleet_result(const struct fleet *f);
