/* dispatch.h - gives queued requests to workers, and queues them again when a worker has ended. */
#pragma once

#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "daemon/supervise/worker.h"

/* Sends queued requests to workers with capacity, and continues partly written SUBMITs. */
void dispatch(struct daemon *d);
/* Takes r from w, which sends no more records of it. */
void dispatch_release(struct worker *w, struct request *r);
/* w has ended and its ring is drained: queues its requests again, or ends those that may not
 * continue. */
void dispatch_worker_lost(struct worker *w, const struct death *death);
/* Prepares the open requests that were read from the ledger log for dispatch. Returns the number of
 * requests, with the retained ones. */
uint32_t dispatch_restore(struct daemon *d);
