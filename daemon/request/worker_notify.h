/* worker_notify.h - sends notices to a worker: records that cancel, suspend or continue a request.
 *
 * If the request ring is full, the request stores the notice for worker_notify_flush(). */
#pragma once
#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "daemon/supervise/worker.h"

/* Sends CANCEL to w, which has r: the worker ends r. reason: enum lagan_reason; 0: cancelled. */
void worker_notify_cancel(struct worker *w, struct request *r, uint16_t reason);
/* Sets whether r is suspended, and sends a change to w, the worker that has r (NULL: none). */
void worker_notify_suspend(struct worker *w, struct request *r, bool suspended);
/* Records that the SUBMIT of r tells the worker whether r is suspended; no SUSPEND is needed. */
void worker_notify_dispatched(struct request *r);
/* Drops the notices of r that were not sent to w yet. */
void worker_notify_clear(struct worker *w, struct request *r);
/* Sends the notices that did not fit into the request ring of w before. */
void worker_notify_flush(struct worker *w);
