/* worker_notify.h - the short records to a worker: cancel, suspend or continue a request, drain.
 *
 * If the request ring is full, a notice is remembered in its request and sent by
 * worker_notify_flush().
 */
#ifndef DAEMON_REQUEST_WORKER_NOTIFY_H
#define DAEMON_REQUEST_WORKER_NOTIFY_H

#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "daemon/supervise/worker.h"

/* w, which has r, shall end it. reason: enum lagan_reason; 0: cancelled. */
void worker_notify_cancel(struct worker *w, struct request *r, uint16_t reason);
/* r shall be suspended, or continue. w: the worker that has it, NULL: none. No record is sent if
 * the worker knows. */
void worker_notify_suspend(struct worker *w, struct request *r, bool suspended);
/* The SUBMIT that is about to be sent tells the worker whether r is suspended. */
void worker_notify_dispatched(struct request *r);
/* Forget what w must still be told of r. */
void worker_notify_clear(struct worker *w, struct request *r);
/* Send what found no space before. */
void worker_notify_flush(struct worker *w);
/* Tell w to finish its requests and take no more. */
void worker_notify_drain(struct worker *w);
/* ring_reserve() returned result: -EBADMSG is a protocol error of the worker, which is killed.
 * Returns result. */
int worker_notify_reserved(struct worker *w, int result);

#endif
