/* weights_fill.h - writes the stale fields of a plan into the arena, at the speed of the storage or
 * the bus.
 *
 * Reader threads (weights_read.h) fill pinned memory while the device copies from it; the device
 * computes the checksum of each complete field. The device also generates random weights.
 */
#pragma once

#include "worker/model/weights_plan.h"

/* m->weights and m->lane must be set. Calls src->progress. */
int weights_fill(const struct weights_plan *p, struct err *e) MUST_USE;
