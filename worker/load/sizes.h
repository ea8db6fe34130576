/* sizes.h - sizes of everything except the KV memory, from the settings and the model's shape. */
#pragma once

#include "base/err.h"
#include "ipc/model_options.h"
#include "worker/partition/step_cost.h"
#include "worker/worker.h"

/* Device memory in bytes that a GPU lane uses besides its scratch (library handle and workspace),
 * and that the context of a replacement uses while this process still runs. */
#define SIZES_LANE_BYTES ((uint64_t)256 << 20)
#define SIZES_REPLACEMENT_BYTES ((uint64_t)512 << 20)

#define GIB(bytes) ((double)(bytes) / (1 << 30)) /* for messages */

/* True if the device is a GPU. The device is open. */
bool sizes_on_gpu(const struct worker *w);
/* Refuses, by name, settings that this worker does not serve: -EINVAL. */
int sizes_check_settings(const struct model_options *k, struct err *e) MUST_USE;
/* Fills w->max_source, kv_config, limits, steps and the partitions. Device and model are open; may
 * be called again for another model of the same files. -EINVAL: a setting does not fit the model or
 * the device. */
int sizes_set(struct worker *w, struct err *e) MUST_USE;
/* Returns a first estimate of step costs. Call after the weights are loaded. */
struct step_costs sizes_work_costs(const struct worker *w);
