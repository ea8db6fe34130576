/* partition_ctl.h - the partition controller: divides the device units between the prefill lane and
 * the decode lane (split.mode), also while serving.
 *
 * The engine thread calls partition_ctl_update() before it plans, and reports launched and retired
 * steps. In mode auto, partition_choose.h selects a partition from the durations of these steps. An
 * operator's selection comes from the control thread and takes effect at the next update, so a
 * partition changes only between launches. If split.mode was off at the start, there is one lane:
 * the partition never changes and an operator may select only off.
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

/* The state that `laganctl split show` prints. */
struct partition_ctl_state {
    uint32_t mode;      /* SPLIT_OFF, SPLIT_AUTO or SPLIT_FIXED */
    unsigned partition; /* index in partition_list; 0: the prefill lane does all work */
    struct partition_list partition_list;
    nsec target; /* split.itl_target */
    uint64_t n_changes;
};

struct partition_ctl {
    bool lanes; /* true: prefill and decode have a lane each; false: steps are only counted */
    pthread_mutex_t lock;
    struct partition_ctl_state state; /* under the lock */
    /* an operator's selection; the partition is for SPLIT_FIXED; under the lock */
    uint32_t selected_mode;
    struct partition selected_partition;
    _Atomic bool selection_pending;

    /* Engine thread only. */
    struct exec *exec;
    struct scheduler *sched;
    struct split split;
    struct partition_ctl_count { /* finished steps and their duration */
        uint64_t n, ns;
    } count[STEP_KINDS];
};

/* Sets the partitions, the initial partition and the work of each lane, before the lanes exist.
 * units: number of device units. -ENOTSUP or -EINVAL: split.mode does not fit the device. */
int partition_ctl_plan(struct partition_ctl *s, const struct model_options *k,
                       struct gpu_parts parts, uint32_t units, struct scheduler_limits *l,
                       struct exec_config *x, struct err *e) MUST_USE;
/* Completes s when exec and scheduler exist: takes the partitions' measured speeds. */
void partition_ctl_open(struct partition_ctl *s, struct exec *x, struct scheduler *sched,
                        const struct kv_config *kv, const struct step_costs *costs,
                        const struct scheduler_limits *l, nsec target);
/* Applies an operator's selection, or in mode auto selects a partition. Call before each plan. */
void partition_ctl_update(struct partition_ctl *s);
/* Report a step that was launched, or that was collected from the device. */
void partition_ctl_launched(struct partition_ctl *s, const struct batch *b, nsec now);
void partition_ctl_retired(struct partition_ctl *s, const struct batch *b, nsec now);
/* Records an operator's selection. prefill_units, decode_units: for SPLIT_FIXED only. -ENOTSUP: the
 * worker has one lane; e names the change of the configuration and the command for two. -EINVAL:
 * the device has no such partition. Control thread. */
int partition_ctl_select(struct partition_ctl *s, uint32_t mode, uint32_t prefill_units,
                         uint32_t decode_units, struct err *e) MUST_USE;
struct partition_ctl_state partition_ctl_state(struct partition_ctl *s);
/* Writes the steps by kind and the current partition to the statistics. Engine thread. */
void partition_ctl_stats(const struct partition_ctl *s, struct stats *ret);
