/* loop.h - the engine loop of a worker, rank 0 of a rank group included. */
#pragma once

#include "base/err.h"
#include "worker/worker.h"

/* Loads the model and serves until the worker is drained (returns 0). Negative: lagand has exited
 * (-EPIPE), the device failed (-EIO), the request ring is corrupt (-EBADMSG), or the load failed.
 * On failure other threads may still run. */
int loop_run(struct worker *w, struct err *e);
