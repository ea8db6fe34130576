/* loop.h - the two engine loops of lagan-worker: of a worker, and of a rank above 0. */
#pragma once
#include "base/err.h"
#include "worker/worker.h"

/* In loop.c: runs a worker, or rank 0 of a rank group: loads the model and serves until the worker
 * is drained. Returns 0 then. Negative: lagand has exited (-EPIPE), the device failed (-EIO), a
 * ring is corrupt (-EBADMSG), or the load failed. On failure other threads may still run. */
int loop_run(struct worker *w, struct err *e);
/* In rank_loop.c: runs a rank above 0: loads its share of the model and executes the steps that
 * rank 0 sends through the plan ring (tp/plan_ring.h). Returns on failure only: rank 0 has exited
 * (-EPIPE), the device failed (-EIO), the plan ring is corrupt (-EBADMSG), or the load failed. */
int rank_loop_run(struct worker *w, struct err *e);
