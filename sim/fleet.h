/* fleet.h - pretended workers behind route/, in virtual time.
 *
 * Requests arrive, route_pick() says where they go, and wait where nobody has room, as in lagand; every worker
 * plans the next step of a lane while one runs there, as a worker does. Things happen in order of their
 * virtual time and, at equal times, in order of their making: the same calls give the same decisions.
 *
 *     fleet_add     a request arrives: everything before it happens first
 *     fleet_finish  no more arrive: everything happens
 *     fleet_result  what came of it
 */
#ifndef SIM_FLEET_H
#define SIM_FLEET_H

#include "sim/histogram.h"
#include "sim/sim_config.h"
#include "sim/trace.h"

struct fleet;

/* What meddles with requests, as shares of 1 or a rate; all of it drawn from the seed. */
struct fleet_mischief {
    uint64_t seed;
    double cancelled; /* requests whose client goes away at some time */
    double suspended; /* whose client does not read for a while, once */
    double stopped;   /* that end before their length */
    double deaths;    /* of a worker, a second */
    nsec restart;     /* how long a dead worker takes to serve again */
};

struct fleet_use { /* at one instant, over all workers */
    nsec at;
    uint64_t queued, waiting, running; /* at nobody's, at a worker's without and with a slot */
    uint64_t used[MAX_GROUPS], cached[MAX_GROUPS], free[MAX_GROUPS]; /* blocks, pool by pool */
};

struct fleet_setting {
    struct sim_config worker;
    uint32_t n_workers, ahead; /* ahead: requests that a worker may have beside those with a slot */
    bool affinity;             /* route/ knows what workers could find, from their KV events */
    struct fleet_mischief mischief;
    nsec every; /* of virtual time, `use` is told; 0: never */
    void (*use)(void *to, const struct fleet_use *u);
    void *to;
    bool digest; /* every batch goes into the result's digest */
    bool check;  /* every worker's invariants now and then, and at the end */
};

struct fleet_result {
    uint64_t requests, finished, cancelled, refused;
    uint64_t moved; /* times that a request lost its worker and went on at another */
    uint64_t prompt_tokens, output_tokens, cached_tokens;
    uint64_t steps, deaths, pauses, peak_running;
    uint32_t
        passed; /* with check: by how many later ones that are not before it by priority a request was
                        passed over, at most, before it began at a worker */
    nsec end;   /* of virtual time, when the last one ended */
    struct hist ttft, itl, tpot, e2e; /* tpot: a request's mean from token to token */
    uint64_t digest;
};

/* setting is copied. -EINVAL and so on from worker_open(). */
int fleet_new(struct fleet **ret, const struct fleet_setting *setting, struct err *e) MUST_USE;
struct fleet *fleet_free(struct fleet *f);
CLEAN_FUNC(struct fleet, fleet_free)
int fleet_add(struct fleet *f, const struct trace_line *t, struct err *e) MUST_USE;
int fleet_finish(struct fleet *f, struct err *e) MUST_USE;
const struct fleet_result *fleet_result(const struct fleet *f);
uint32_t fleet_n_pools(const struct fleet *f);

#endif
