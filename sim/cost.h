/* cost.h - how long a step would take: a roofline over what it reads and computes. Products of few rows have less of the
 * arithmetic, and of all rows but whole tiles some is lost.
 */
#ifndef SIM_COST_H
#define SIM_COST_H

#include "sim/sim_config.h"
#include "worker/partition/step_time.h"

/* What a lane has of the device while its step runs: on the partition that the step says, partition 0 being the whole device.
 * beside_whole: a step of another lane runs that was given the whole. */
struct part_share cost_share(const struct sim_config *st, const struct partition_list *l,
                             const struct batch *b, bool beside_whole);
/* Of both parts of a partition that is not 0: what they have, answers' bytes times guess. */
void cost_parts(const struct sim_config *st, const struct partition_list *l, unsigned partition,
                double guess, struct part_share *context, struct part_share *generation);
/* An hour at most. */
nsec cost_of(const struct sim_config *st, const struct batch *b, struct part_share has);

#endif
