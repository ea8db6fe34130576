/* weights_fill.h - the stale fields of a plan into the arena, at the speed of the storage or the bus.
 *
 * Readers (weights_read.h) fill pinned memory while the device copies out of it; the device sums each field
 * as it is complete. Random weights are made by the device.
 */
#ifndef MODEL_WEIGHTS_FILL_H
#define MODEL_WEIGHTS_FILL_H

#include "worker/model/weights_plan.h"

/* m->weights and m->lane are there. Tells progress. */
int weights_fill(const struct weights_plan *p, struct err *e) MUST_USE;

#endif
