/* load_lane.h - m->lane: the lane that loads a model, open while model_open() runs. */
#pragma once

#include "worker/model/model.h"

int load_lane_open(struct model *m, struct err *e) MUST_USE;
void load_lane_close(struct model *m); /* waits; no effect if the lane is not open */

/* Marks the queued work. Returns the number for load_lane_wait(), or a negative errno. */
int64_t load_lane_mark(struct model *m);
/* Waits until the mark is done. what: the action in error messages, "fill weights". */
int load_lane_wait(const struct model *m, int64_t mark, const char *what, struct err *e) MUST_USE;
/* Marks and waits; if r < 0 (queueing failed), returns that error. */
int load_lane_end(struct model *m, int r, const char *what, struct err *e) MUST_USE;
/* Waits for the queued work and ignores its result. */
void load_lane_drain(struct model *m);
