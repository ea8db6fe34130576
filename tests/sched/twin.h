/* twin.h - the scheduler once more, naive: plain lists, sorted each time, counted each time.
 *
 * Written from semantics.md (A1, A2, B1, B2, B5, G1) and the rules of worker/sched/README.md. It says who is in the
 * next step, as what and with how many rows, for one lane over groups that keep all positions and are capped, so
 * that blocks are simply counted; without adopted seats, reuse, turns and who is halted. fuzz_sched asks both.
 */
#ifndef TESTS_SCHED_TWIN_H
#define TESTS_SCHED_TWIN_H

#include "tests/sched/run.h"

enum { TWIN_MAX = 64 };

struct twin_run {
    req_id id;
    unsigned work;
    uint32_t n_rows; /* of a source: layers */
    bool samples;
};
struct twin_step {
    struct twin_run run[2 * TWIN_MAX];
    uint32_t n;
};

struct twin;
/* NULL: nothing that it knows. */
struct twin *twin_new(const struct kv_config *c, const struct scheduler_limits *l);
struct twin *twin_free(struct twin *t);
void twin_add(struct twin *t, const struct seq *q, nsec now); /* it was admitted to the queue */
void twin_cancel(struct twin *t, req_id id);
bool twin_plan(struct twin *t, nsec now, struct twin_step *ret);
void twin_commit(struct twin *t, bool failed, nsec now); /* its oldest step */

#endif
