/* load_lane.h - the lane that a model is loaded on: m->lane, open while model_open() runs. */
#ifndef MODEL_LOAD_LANE_H
#define MODEL_LOAD_LANE_H

#include "worker/model/model.h"

int load_lane_open(struct model *m, struct err *e) MUST_USE;
void load_lane_close(struct model *m); /* waits; a lane that was never opened: nothing */

/* Mark what is queued; the number for load_lane_wait(), or negative. */
int64_t load_lane_mark(struct model *m);
/* Until that mark is done. what: of the sentence, "fill weights". */
int load_lane_wait(const struct model *m, int64_t mark, const char *what, struct err *e) MUST_USE;
/* Mark and wait, unless queueing failed already with r. */
int load_lane_end(struct model *m, int r, const char *what, struct err *e) MUST_USE;
/* Wait for what is queued, whatever became of it. */
void load_lane_drain(struct model *m);

#endif
