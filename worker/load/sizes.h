/* sizes.h - from the settings and the model's shape: how large everything is but the memory for
 * KV. */
#ifndef WORKER_LOAD_SIZES_H
#define WORKER_LOAD_SIZES_H

#include "base/err.h"
#include "ipc/model_options.h"
#include "worker/partition/step_cost.h"
#include "worker/worker.h"

/* Device memory in bytes that a GPU's lane takes beside its scratch (a library's handle, its
 * workspace), and that the context of a replacement takes which starts beside this process. */
#define SIZES_LANE_BYTES ((uint64_t)256 << 20)
#define SIZES_REPLACEMENT_BYTES ((uint64_t)512 << 20)

#define GIB(bytes) ((double)(bytes) / (1 << 30)) /* for sentences */

/* The device is a GPU; it is open. */
bool sizes_on_gpu(const struct worker *w);
/* Refuses settings by name that the options' table has and this worker does not serve: -EINVAL. */
int sizes_check_settings(const struct model_options *k, struct err *e) MUST_USE;
/* Fills w->max_source, kv_config, limits, steps and the partitions. The device and the model are
 * open; may be called again for another model of the same files. -EINVAL: a setting does not fit
 * the model or the device. */
int sizes_set(struct worker *w, struct err *e) MUST_USE;
/* What a step costs, for a first estimate of durations. After the weights are loaded. */
struct step_costs sizes_work_costs(const struct worker *w);

#endif
