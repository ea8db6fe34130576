/* ref_sched.h - the scheduler once more, naive: plain lists, sorted each time, counted each time.
 *
 * Written from scheduler.h and the rules of worker/sched/README.md. It says who is in a
 * lane's next step, as what and with how many rows, over groups that keep all positions and are capped, so that blocks
 * are simply counted; with every policy, pauses, turns, who is suspended, adapters' pages, drafts, beams and samples;
 * without adopted slots and reuse, of which tests/fuzz/fuzz_reuse.c has a ref. fuzz_sched asks both.
 */
#ifndef TESTS_SCHED_REF_SCHED_H
#define TESTS_SCHED_REF_SCHED_H

#include "tests/sched/sched_harness.h"

enum { REF_MAX = 256 };

struct ref_run {
    req_id id;
    uint32_t member; /* of several of that id */
    unsigned work;
    uint32_t n_tokens; /* of a source: layers */
    bool samples;
    uint32_t drafts;
};
struct ref_step {
    struct ref_run run[2 * REF_MAX];
    uint32_t n;
    uint64_t number;
    nsec until; /* somebody waits for company, no longer than to then; NSEC_NEVER: nobody */
};

struct ref;
/* NULL: nothing that it knows. */
struct ref *ref_new(const struct kv_config *c, const struct scheduler_limits *l);
struct ref *ref_free(struct ref *t);
/* It was admitted to the queue, with those behind it. */
void ref_add(struct ref *t, const struct seq *q, nsec now);
void ref_cancel(struct ref *t, req_id id);
void ref_halt(struct ref *t, req_id id, bool suspended);
bool ref_plan(struct ref *t, unsigned lane, nsec now, struct ref_step *ret);
void ref_commit(struct ref *t, unsigned lane, bool failed, nsec now); /* its oldest step */

#endif
