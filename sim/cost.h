/* cost.h - predicts the time of a simulated step, with a roofline model of its bytes and FLOP.
 * Matrix products of few tokens reach less than the peak rate, and those of partial tiles lose some
 * of it.
 */
#pragma once
#include "sim/sim_config.h"
#include "worker/partition/step_time.h"

/* Returns the shares of the device's bandwidth and FLOP rate that step b has: its partition's part,
 * all on partition 0. beside_whole: another lane's step with the whole device runs meanwhile. */
struct part_share cost_share(const struct sim_config *st, const struct partition_list *l,
                             const struct batch *b, bool beside_whole);
/* Sets both parts' shares of a partition above 0. initial_read: factor on decode's bandwidth. */
void cost_parts(const struct sim_config *st, const struct partition_list *l, unsigned partition,
                double initial_read, struct part_share *context, struct part_share *generation);
/* Returns the time of step b with these shares of the device; at most 1 hour. */
nsec cost_of(const struct sim_config *st, const struct batch *b, struct part_share has);
