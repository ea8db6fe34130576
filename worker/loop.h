/* loop.h - the engine loops. */
#pragma once

#include "base/err.h"
#include "worker/worker.h"

/* loop.c: a worker, rank 0 of a rank group included. Loads the model and serves until the worker is
 * drained (returns 0). Negative: lagand has exited (-EPIPE), the device failed (-EIO), the request
 * ring is corrupt (-EBADMSG), or the load failed. On failure other threads may still run. */
int loop_run(struct worker *w, struct err *e);
/* rank_loop.c: a rank above 0 (tp/plan_ring.h). Loads this rank's share of the model and runs the
 * steps of the plan ring. Returns on failure only: rank 0 has exited (-EPIPE), the device failed
 * (-EIO), the plan is corrupt (-EBADMSG), or the load failed. */
int rank_loop_run(struct worker *w, struct err *e);
