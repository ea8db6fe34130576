/* worker_notify.h - short records to a worker: cancel, suspend or continue a request.
 *
 * If the request ring is full, the notice is stored in the request and worker_notify_flush() sends
 * it.
 */
#pragma once

#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "daemon/supervise/worker.h"

/* Tells w, which has r, to end it. reason: enum lagan_reason; 0: cancelled. */
void worker_notify_cancel(struct worker *w, struct request *r, uint16_t reason);
/* Suspends r or continues it. w: the worker that has it; NULL: none. Sends a record only on a
 * change. */
void worker_notify_suspend(struct worker *w, struct request *r, bool suspended);
/* The next SUBMIT tells the worker whether r is suspended: no separate notice is due. */
void worker_notify_dispatched(struct request *r);
/* Drops the unsent notices of r for w. */
void worker_notify_clear(struct worker *w, struct request *r);
/* Sends the notices that did not fit before. */
void worker_notify_flush(struct worker *w);
