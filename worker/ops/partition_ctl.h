/* partition_ctl.h - which lane does what, on how much of the device: split.mode, live.
 *
 * The engine thread asks partition_ctl_update() before it plans, and tells what it launched and what
 * is over; in mode auto that is what split.h chooses from. An operator's wish comes from the
 * control thread and is taken at the next turn: so nothing changes but between launches. Without a
 * second lane (split.mode off at the start) the partition never changes, and an operator may select
 * nothing but off.
 */
#ifndef WORKER_OPS_PARTITION_CTL_H
#define WORKER_OPS_PARTITION_CTL_H

#include "base/err.h"
#include "ipc/model_options.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/partition/partition_choose.h"
#include "worker/sched/scheduler.h"

#include <pthread.h>
#include <stdatomic.h>

/* What an operator sees. */
struct partition_ctl_state {
    uint32_t mode;      /* SPLIT_OFF, _AUTO, _FIXED */
    unsigned partition; /* 0: one lane does everything */
    struct partition_list partition_list;
    nsec target;
    uint64_t n_changes;
};

struct partition_ctl {
    bool lanes; /* for prompts and answers apart; else only steps are counted */
    pthread_mutex_t lock;
    struct partition_ctl_state state; /* under the lock */
    uint32_t selected_mode;           /* mode, under the lock; of SPLIT_FIXED: */
    struct partition selected_partition;
    _Atomic bool selection_pending;

    /* The engine's. */
    struct exec *exec;
    struct scheduler *sched;
    struct split split;
    struct partition_ctl_count {
        uint64_t n, ns;
    } count[STEP_KINDS];
};

/* Before the lanes are made: the partition_list, what each lane does, and the partition to begin with. units:
 * of the device. */
int partition_ctl_plan(struct partition_ctl *s, const struct model_options *k,
                       struct gpu_parts parts, uint32_t units, struct scheduler_limits *l,
                       struct exec_config *x, struct err *e) MUST_USE;
/* When everything is there. */
void partition_ctl_open(struct partition_ctl *s, struct exec *x, struct scheduler *sched,
                        const struct kv_config *kv, const struct step_costs *costs,
                        const struct scheduler_limits *l, nsec target);
/* Before a plan. */
void partition_ctl_update(struct partition_ctl *s);
void partition_ctl_launched(struct partition_ctl *s, const struct batch *b, nsec now);
void partition_ctl_retired(struct partition_ctl *s, const struct batch *b, nsec now);
/* The control thread's. -ENOTSUP, -EINVAL with the sentence. context, generation: of
 * SPLIT_FIXED. */
int partition_ctl_select(struct partition_ctl *s, uint32_t mode, uint32_t prefill_units,
                         uint32_t decode_units, struct err *e) MUST_USE;
struct partition_ctl_state partition_ctl_state(struct partition_ctl *s);
/* The engine's: steps by kind and the partition in use, into the statistics of their names. */
void partition_ctl_stats(const struct partition_ctl *s, struct stats *ret);

#endif
