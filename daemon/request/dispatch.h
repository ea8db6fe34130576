/* dispatch.h - gives queued requests to workers, and queues them again when a worker has ended. */
#pragma once
#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "daemon/supervise/worker.h"

/* Sends queued requests to workers that accept one, and continues partly written SUBMIT records. */
void dispatch(struct daemon *d);
/* Records that w does not have r any more: w has ended, or has sent its last record of r. */
void dispatch_release(struct worker *w, struct request *r);
/* Queues the requests of w again, or ends those that may not continue. Called when w has ended and
 * its response ring is read completely. */
void dispatch_worker_lost(struct worker *w, const struct death *death);
/* Prepares the open requests that were read from the ledger log for dispatch. Returns the number of
 * all requests in the ledger, open or retained. */
uint32_t dispatch_restore(struct daemon *d);
