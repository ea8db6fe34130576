/* dispatch.h - between ledger and rings: requests down, tokens up, every byte of a worker judged. */
#ifndef DAEMON_REQUEST_DISPATCH_H
#define DAEMON_REQUEST_DISPATCH_H

#include "base/base.h"
#include "daemon/worker.h"

/* Give queued requests to workers that may have them, and go on with what is under way. */
void dispatch(struct daemon *d);
/* Tell the worker to end a request it has: reason of enum lagan_reason, 0 cancelled. */
void worker_notify_cancel(struct worker *w, struct request *r, uint16_t reason);
void worker_notify_suspend(struct worker *w,
                           struct request *r); /* or to go on: r->paused, if it does not know */
void worker_notify_clear(struct worker *w, struct request *r); /* that are to be said of it */
void worker_notify_drain(struct worker *w);                    /* REC_DRAIN */
/* The worker is gone: its requests wait for another one and go on there, except those that may not. */
void dispatch_worker_lost(struct worker *w, const struct death *death);

#endif
