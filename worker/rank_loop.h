/* rank_loop.h - the engine loop of a rank above 0 (tp/plan_ring.h). */
#pragma once

#include "base/err.h"
#include "worker/worker.h"

/* Loads this rank's share of the model and runs the steps of the plan ring. Returns on failure
 * only: rank 0 has exited (-EPIPE), the device failed (-EIO), the plan is corrupt (-EBADMSG), or
 * the load failed. */
int rank_loop_run(struct worker *w, struct err *e);
