/* deliver.h - what a request's client is owed: chunks within its window, then one last message.
 *
 * At most `ack_window` chunks are unacknowledged; beyond that tokens wait in the ledger row and leave as one
 * chunk when credit returns. Of a reader that does not go on within a quarter of a second the worker pauses;
 * it goes on when all that waited has left. At most one chunk a request a turn, so that a backlog makes larger
 * messages and not more of them. The last message waits for the tokens, but an error only as long as
 * there is credit.
 */
#ifndef DAEMON_DELIVER_H
#define DAEMON_DELIVER_H

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/session.h"

void row_due(struct daemon *d, struct row *r); /* it has something for its client */
/* The request is over for lagand: reason of enum lagan_reason, and the sentence of an error. Its
 * client hears of it when its tokens are out; a worker that holds it is not told by this. */
void row_end(struct daemon *d, struct row *r, uint16_t reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* End it and make the worker end it too. One that has ended well and waits for credit ends so. */
void row_cancel(struct daemon *d, struct row *r, uint16_t reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Its worker is to stop, or to go on. */
void row_pause(struct daemon *d, struct row *r, bool paused);
void row_settle(struct daemon *d, struct row *r); /* give it back if nobody needs it any more */

void deliver_acked(struct daemon *d, struct row *r, uint32_t n, uint32_t ack_window);
/* Send what is due. true: more could go at once. */
bool deliver_flush(struct daemon *d);
/* A client has left, or will not be waited for: its requests end. Its connection is cut, also below: one that lives
 * after all hears of it so, and comes back with a HELLO; and it keeps no place. */
void deliver_client_gone(struct daemon *d, uint32_t handle);
/* It is not there: requests with a name go on for their patience, or until it comes back for them. */
void deliver_client_lost(struct daemon *d, uint32_t handle);
/* It has come back for r (ledger_find_rid(), ledger_find_key()) and has so many tokens and bytes of
 * text of it: what follows them is sent, under rid, and at last DONE or ERROR. A connection that had it
 * until now gets an ERROR. -ENOENT: what it lacks is not kept any more; -EEXIST: see ledger_attach(). */
int deliver_resume(struct daemon *d, struct row *r, struct client *c, uint64_t rid,
                   uint32_t n_tokens, uint32_t n_text, uint32_t ack_window) MUST_USE;
/* Its client lacks what is not kept any more, and will submit it again: it ends, and has no names. */
void deliver_forget(struct daemon *d, struct row *r);
/* Some time has passed: deadlines, slow readers, leases. For so long before now we stood still: what clients said meanwhile
 * may not have come to us, and of none of them that time is counted. */
void deliver_tick(struct daemon *d, nsec now, nsec late);

#endif
