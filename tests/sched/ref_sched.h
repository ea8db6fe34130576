/* ref_sched.h - a reference scheduler: plain lists, sorted and recounted for each plan.
 *
 * Written from scheduler.h and the rules of worker/sched/README.md. It predicts which sequences are
 * in a lane's next step, for which work and with how many tokens, for groups that keep all
 * positions. It covers every policy, preemption, fairness, suspension, adapter pages, drafts, beams
 * and samples. Adoption and reuse are not covered; tests/fuzz/fuzz_reuse.c has a reference for
 * reuse.
 */
#pragma once
#include "tests/sched/sched_harness.h"

enum { REF_MAX = 256 };

struct ref_run {
    req_id id;
    uint32_t member; /* index in the group */
    unsigned work;
    uint32_t n_tokens; /* tokens; of an encoder input: layers */
    bool samples;
    uint32_t drafts;
};
struct ref_step {
    struct ref_run run[2 * REF_MAX];
    uint32_t n;
    uint64_t number;
    nsec until; /* end of a batching wait; NSEC_NEVER: none */
};

struct ref;
/* NULL: a configuration that the reference does not cover. */
struct ref *ref_new(const struct kv_config *c, const struct scheduler_limits *l);
struct ref *ref_free(struct ref *t);
/* scheduler_add() accepted q and its members. */
void ref_add(struct ref *t, const struct seq *q, nsec now);
void ref_cancel(struct ref *t, req_id id);
void ref_suspend(struct ref *t, req_id id, bool suspended);
bool ref_plan(struct ref *t, unsigned lane, nsec now, struct ref_step *ret);
void ref_commit(struct ref *t, unsigned lane, bool failed, nsec now); /* the lane's oldest step */
