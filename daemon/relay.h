/* relay.h - between ledger and rings: requests down, tokens up, every byte of a worker judged. */
#ifndef DAEMON_RELAY_H
#define DAEMON_RELAY_H

#include "base/base.h"
#include "daemon/worker.h"

/* Give queued requests to workers that may have them, and go on with what is under way. */
void relay_dispatch(struct daemon *d);
/* Read the response ring within a budget. true: there is more. A violation kills the worker. */
bool relay_drain(struct worker *w);
void relay_drain_dead(struct worker *w); /* all that is whole, without a budget */

/* Tell the worker to end a request it has: reason of enum lagan_reason, 0 cancelled. */
void relay_cancel(struct worker *w, struct row *r, uint16_t reason);
void relay_pause(struct worker *w, struct row *r); /* or to go on: r->paused, if it does not know */
void relay_forget_words(struct worker *w, struct row *r); /* that are to be said of it */
void relay_drain_request(struct worker *w);               /* REC_DRAIN */
/* The worker is gone: its requests wait for another one and go on there, except those that may not. */
void relay_lost(struct worker *w, const struct death *death);

/* One record as if it had been read from the ring: 0, or -EBADMSG with the sentence. For tests and
 * fuzzers too. */
int relay_record(struct worker *w, const struct ring_record *rec, struct err *e) MUST_USE;

#endif
