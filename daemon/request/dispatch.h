/* dispatch.h - gives queued requests to workers, and queues them again when a worker has ended. */
#ifndef DAEMON_REQUEST_DISPATCH_H
#define DAEMON_REQUEST_DISPATCH_H

#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "daemon/supervise/worker.h"

/* Send queued requests to workers that may take them, and continue SUBMITs that did not fit before.
 */
void dispatch(struct daemon *d);
/* w will send no more records of r. */
void dispatch_release(struct worker *w, struct request *r);
/* w has ended, and its ring is drained. Its requests are queued again, or end if they may not
 * continue. */
void dispatch_worker_lost(struct worker *w, const struct death *death);
/* Requests of a previous lagand that were read from the ledger log: prepare the open ones to be
 * dispatched. Returns the number of requests, with the retained ones. */
uint32_t dispatch_restore(struct daemon *d);

#endif
