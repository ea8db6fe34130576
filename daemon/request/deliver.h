/* deliver.h - sends clients what their requests have generated: chunks within a window, then one
 * terminal message.
 *
 * At most ack_window chunks are unacknowledged. Beyond that tokens stay in the ledger, and leave as
 * one chunk when credit returns. If nothing can be sent for 0.25 s the request's worker is told to
 * suspend it, and to continue when all is sent. A request sends at most one chunk an iteration, so
 * that a backlog makes chunks larger and not more of them. DONE comes after all tokens; an error
 * comes as soon as there is credit.
 */
#ifndef DAEMON_REQUEST_DELIVER_H
#define DAEMON_REQUEST_DELIVER_H

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "daemon/net/session.h"

/* For a new request, after outputs_begin(). */
void deliver_init(struct request *r, uint32_t ack_window);
/* For a request of a previous lagand: its client may take the idle timeout to reconnect. */
void deliver_restore(struct daemon *d, struct request *r);
/* r's worker ended before it sent a token: the next one starts again, and no reader is late. */
void deliver_restart(struct daemon *d, struct request *r);

/* ACK: chunks up to number n are read. ack_window 0: unchanged. */
void deliver_acked(struct daemon *d, struct request *r, uint32_t n, uint32_t ack_window);
/* Send what is pending. Returns true if more could be sent at once. */
bool deliver_flush(struct daemon *d);

/* A client is to be dropped: cancel its requests and close its connection. A client that is alive
 * after all notices, and sends HELLO again. */
void deliver_client_dropped(struct daemon *d, uint32_t handle);
/* Its connection was lost: requests with names go on until their disconnect timeout. */
void deliver_client_disconnected(struct daemon *d, uint32_t handle);
/* Attach r (ledger_find_rid(), ledger_find_key()) to c under rid. The client has received n_tokens
 * tokens and n_text bytes; what follows is sent, and DONE or ERROR last. The connection that had r
 * gets an ERROR. -ENOENT: what the client lacks is no longer stored. -EEXIST: see ledger_attach().
 */
int deliver_resume(struct daemon *d, struct request *r, struct client *c, uint64_t rid,
                   uint32_t n_tokens, uint32_t n_text, uint32_t ack_window) MUST_USE;
/* One entry of a RESUME: resume the request of that rid if c's session has it. If that is
 * impossible the request ends as deliver_forget() says. */
void deliver_resume_named(struct daemon *d, struct client *c, uint64_t rid, uint64_t n_tokens,
                          uint64_t n_text);
/* Its client will submit it again: end it and remove its names. */
void deliver_forget(struct daemon *d, struct request *r);
/* Every 0.25 s: deadlines, slow readers, idle clients. late: lagand did not run for so long before
 * now; that time does not count against any client. */
void deliver_tick(struct daemon *d, nsec now, nsec late);

#endif
