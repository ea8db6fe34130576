/* cost.h - how long a step would take: a roofline over what it reads and computes. Products of few rows have less of the
 * arithmetic, and of all rows but whole tiles some is lost.
 */
#ifndef SIM_COST_H
#define SIM_COST_H

#include "sim/setting.h"
#include "worker/sched/steptime.h"

/* What a lane has of the device while its step runs: on the rung that the step says, rung 0 being the whole device.
 * beside_whole: a step of another lane runs that was given the whole. */
struct part_share cost_share(const struct sim_config *st, const struct ladder *l,
                             const struct batch *b, bool beside_whole);
/* Of both parts of a rung that is not 0: what they have, answers' bytes times guess. */
void cost_parts(const struct sim_config *st, const struct ladder *l, unsigned rung, double guess,
                struct part_share *context, struct part_share *generation);
/* An hour at most. */
nsec cost_of(const struct sim_config *st, const struct batch *b, struct part_share has);

#endif
