/* deliver.h - sends generated tokens to clients: CHUNK messages within a window, then DONE or
 * ERROR.
 *
 * At most ack_window chunks are unacknowledged. Further tokens stay in the ledger and are sent as
 * one chunk when credit returns. After 0.25 s without credit the worker suspends the request, until
 * the backlog is sent. A request sends at most one chunk in a loop iteration, so that a backlog
 * makes chunks larger, not more numerous. DONE follows all tokens; ERROR needs only credit.
 */
#pragma once

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "daemon/net/session.h"

/* For a new request, after outputs_begin(). */
void deliver_init(struct request *r, uint32_t ack_window);
/* For a request of a previous lagand: its client has the idle timeout to reconnect. */
void deliver_restore(struct daemon *d, struct request *r);
/* The worker of r has ended: resets the timeout of its reader. */
void deliver_restart(struct daemon *d, struct request *r);

/* Handles ACK: chunks up to number n are read. ack_window 0: unchanged. */
void deliver_acked(struct daemon *d, struct request *r, uint32_t n, uint32_t ack_window);
/* Sends what is pending. Returns true if more can be sent at once. */
bool deliver_flush(struct daemon *d);

/* Cancels the requests of a client and closes its connection. A client that is still alive
 * reconnects with HELLO. */
void deliver_client_dropped(struct daemon *d, uint32_t handle);
/* Connection lost: requests with names continue until their disconnect timeout. */
void deliver_client_disconnected(struct daemon *d, uint32_t handle);
/* Attaches r to c under rid. The client has received n_tokens tokens and n_text bytes; the rest is
 * sent, then DONE or ERROR. The previous connection of r gets an ERROR. -ENOENT: the rest is not
 * stored any more. -EEXIST: see ledger_attach(). */
int deliver_resume(struct daemon *d, struct request *r, struct client *c, uint64_t rid,
                   uint32_t n_tokens, uint32_t n_text, uint32_t ack_window) MUST_USE;
/* One entry of RESUME: resumes the request of that rid in c's session. If that is impossible, calls
 * deliver_forget(). */
void deliver_resume_named(struct daemon *d, struct client *c, uint64_t rid, uint64_t n_tokens,
                          uint64_t n_text);
/* Ends r and removes its names, because its client will submit it again. */
void deliver_forget(struct daemon *d, struct request *r);
/* Every 0.25 s: deadlines, slow readers, idle clients. late: time in which lagand did not run; it
 * does not count against any client. */
void deliver_tick(struct daemon *d, nsec now, nsec late);
