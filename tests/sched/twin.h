/* twin.h - the scheduler once more, naive: plain lists, sorted each time, counted each time.
 *
 * Written from scheduler.h and the rules of worker/sched/README.md. It says who is in a
 * lane's next step, as what and with how many rows, over groups that keep all positions and are capped, so that blocks
 * are simply counted; with every policy, pauses, turns, who is halted, adapters' pages, guesses, beams and samples;
 * without adopted seats and reuse, of which tests/fuzz/fuzz_reuse.c has a twin. fuzz_sched asks both.
 */
#ifndef TESTS_SCHED_TWIN_H
#define TESTS_SCHED_TWIN_H

#include "tests/sched/run.h"

enum { TWIN_MAX = 256 };

struct twin_run {
    req_id id;
    uint32_t member; /* of several of that id */
    unsigned work;
    uint32_t n_rows; /* of a source: layers */
    bool samples;
    uint32_t guesses;
};
struct twin_step {
    struct twin_run run[2 * TWIN_MAX];
    uint32_t n;
    uint64_t number;
    nsec until; /* somebody waits for company, no longer than to then; NSEC_NEVER: nobody */
};

struct twin;
/* NULL: nothing that it knows. */
struct twin *twin_new(const struct kv_config *c, const struct scheduler_limits *l);
struct twin *twin_free(struct twin *t);
/* It was admitted to the queue, with those behind it. */
void twin_add(struct twin *t, const struct seq *q, nsec now);
void twin_cancel(struct twin *t, req_id id);
void twin_halt(struct twin *t, req_id id, bool halted);
bool twin_plan(struct twin *t, unsigned lane, nsec now, struct twin_step *ret);
void twin_commit(struct twin *t, unsigned lane, bool failed, nsec now); /* its oldest step */

#endif
