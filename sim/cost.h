/* cost.h - the time of a simulated step: a roofline over its bytes and FLOP. Matrix products of few
 * tokens reach less than the peak, and products of partial tiles lose some of it.
 */
#pragma once

#include "sim/sim_config.h"
#include "worker/partition/step_time.h"

/* The share of the device that a step has: its partition's part, or all of it on partition 0.
 * beside_whole: a step of another lane that has the whole device runs at the same time. */
struct part_share cost_share(const struct sim_config *st, const struct partition_list *l,
                             const struct batch *b, bool beside_whole);
/* Shares of both parts of a partition above 0. initial_read: factor on decode's bandwidth. */
void cost_parts(const struct sim_config *st, const struct partition_list *l, unsigned partition,
                double initial_read, struct part_share *context, struct part_share *generation);
/* At most 1 hour. */
nsec cost_of(const struct sim_config *st, const struct batch *b, struct part_share has);
