/* cost.h - how long a step would take: a roofline over what it reads and computes. */
#ifndef SIM_COST_H
#define SIM_COST_H

#include "sim/setting.h"

/* Weights once, K and V of every position that is seen, arithmetic of rows and attention; whichever of memory
 * and arithmetic takes longer, and the launch. */
nsec cost_of(const struct setting *st, const struct batch *b);

#endif
