/* sizes.h - computes all sizes except the KV memory's from the settings and the model's shape. */
#pragma once
#include "base/err.h"
#include "ipc/model_options.h"
#include "worker/partition/step_cost.h"
#include "worker/worker.h"

/* Bytes of device memory that a GPU lane uses besides its scratch, for the handle and workspace of
 * cuBLASLt; and that the context of a replacement uses while this process still runs. */
#define SIZES_LANE_BYTES ((uint64_t)256 << 20)
#define SIZES_REPLACEMENT_BYTES ((uint64_t)512 << 20)

#define GIB(bytes) ((double)(bytes) / (1 << 30)) /* for messages */

/* Returns true if the device, which must be open, is a GPU. */
bool sizes_on_gpu(const struct worker *w);
/* Checks settings that need no device. -EINVAL: a setting is not served; e names it. */
int sizes_check_settings(const struct model_options *k, struct err *e) MUST_USE;
/* Fills max_source, kv_config, limits, steps and the partitions of *w; again if the model is opened
 * again. Device and model must be open. -EINVAL: a setting does not fit the model or device. */
int sizes_set(struct worker *w, struct err *e) MUST_USE;
/* Returns estimated costs of a step, used until steps are measured. The weights must be loaded. */
struct step_costs sizes_work_costs(const struct worker *w);
