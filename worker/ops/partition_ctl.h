/* partition_ctl.h - the partition controller: which lane does which work on which part of the
 * device (split.mode), changeable while serving.
 *
 * The engine thread calls partition_ctl_update() before it plans, and reports launched and retired
 * steps; in mode auto partition_choose.h selects from these. An operator's selection comes from the
 * control thread and takes effect at the next update, so a partition changes only between launches.
 * Without a second lane (split.mode off at the start) the partition never changes and an operator
 * may select only off.
 */
#pragma once

#include "base/err.h"
#include "ipc/model_options.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/partition/partition_choose.h"
#include "worker/sched/scheduler.h"

#include <pthread.h>
#include <stdatomic.h>

/* Shown by `laganctl split show`. */
struct partition_ctl_state {
    uint32_t mode;      /* SPLIT_OFF, _AUTO, _FIXED */
    unsigned partition; /* 0: one lane does all work */
    struct partition_list partition_list;
    nsec target;
    uint64_t n_changes;
};

struct partition_ctl {
    bool lanes; /* separate lanes for prefill and decode; false: steps are only counted */
    pthread_mutex_t lock;
    struct partition_ctl_state state; /* under the lock */
    /* an operator's mode, and for SPLIT_FIXED its partition; under the lock */
    uint32_t selected_mode;
    struct partition selected_partition;
    _Atomic bool selection_pending;

    /* Engine thread only. */
    struct exec *exec;
    struct scheduler *sched;
    struct split split;
    struct partition_ctl_count {
        uint64_t n, ns;
    } count[STEP_KINDS];
};

/* Before the lanes exist: sets the partitions, the work of each lane and the initial partition.
 * units: of the device. -ENOTSUP or -EINVAL: split.mode does not fit the device. */
int partition_ctl_plan(struct partition_ctl *s, const struct model_options *k,
                       struct gpu_parts parts, uint32_t units, struct scheduler_limits *l,
                       struct exec_config *x, struct err *e) MUST_USE;
/* After exec and scheduler exist. */
void partition_ctl_open(struct partition_ctl *s, struct exec *x, struct scheduler *sched,
                        const struct kv_config *kv, const struct step_costs *costs,
                        const struct scheduler_limits *l, nsec target);
/* Before each plan. */
void partition_ctl_update(struct partition_ctl *s);
void partition_ctl_launched(struct partition_ctl *s, const struct batch *b, nsec now);
void partition_ctl_retired(struct partition_ctl *s, const struct batch *b, nsec now);
/* Control thread. prefill_units, decode_units: for SPLIT_FIXED only. -ENOTSUP: one lane; -EINVAL:
 * no such partition. */
int partition_ctl_select(struct partition_ctl *s, uint32_t mode, uint32_t prefill_units,
                         uint32_t decode_units, struct err *e) MUST_USE;
struct partition_ctl_state partition_ctl_state(struct partition_ctl *s);
/* Engine thread: writes steps by kind and the current partition to the statistics. */
void partition_ctl_stats(const struct partition_ctl *s, struct stats *ret);
