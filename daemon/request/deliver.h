/* deliver.h - sends generated tokens to clients: CHUNKs within an ack window, then DONE or ERROR.
 *
 * At most ack_window chunks of a request are unacknowledged; credit is the unused part. Without
 * credit, further tokens stay in the ledger and are sent as one chunk when an ACK arrives. After
 * 0.25 s without credit the worker suspends the request, until all undelivered tokens are sent. A
 * request sends at most one chunk in a loop iteration, so that undelivered tokens make chunks
 * larger, not more numerous. DONE follows all tokens; ERROR may overtake tokens without credit. */
#pragma once
#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "daemon/net/session.h"

/* Prepares a new request for delivery after its generated_ids; call it after outputs_begin(). */
void deliver_init(struct request *r, uint32_t ack_window);
/* Prepares a request of a previous lagand: its disconnect timeout starts one idle timeout after the
 * start of this lagand, because its client may notice late that the previous lagand has ended. */
void deliver_restore(struct daemon *d, struct request *r);
/* Ends the slow-reader timeout and the suspension of r, whose worker has ended before it sent a
 * token: the next worker sends all data of r again. */
void deliver_restart(struct daemon *d, struct request *r);

/* Handles ACK: the client has read chunks up to number n. ack_window 0: the window stays. */
void deliver_acked(struct daemon *d, struct request *r, uint32_t n, uint32_t ack_window);
/* Sends one message of each pending request. Returns true if another call can send more at once. */
bool deliver_flush(struct daemon *d);

/* Cancels the requests of a client and closes its connection. If the client still runs,
 * it must send HELLO again before other messages. */
void deliver_client_dropped(struct daemon *d, uint32_t handle);
/* Drops a client whose connection has ended. Its named requests continue until their disconnect
 * timeout; its other requests are cancelled. */
void deliver_client_disconnected(struct daemon *d, uint32_t handle);
/* Attaches r to c under rid. The client has received n_tokens tokens and n_text bytes; the
 * following tokens are sent, then DONE or ERROR. A previous connection of r gets an ERROR. -ENOENT:
 * data that the client lacks are not stored any more. -EEXIST: as ledger_attach(). */
int deliver_resume(struct daemon *d, struct request *r, struct client *c, uint64_t rid,
                   uint32_t n_tokens, uint32_t n_text, uint32_t ack_window) MUST_USE;
/* Handles one rid of a RESUME: calls deliver_resume() and, if this fails, deliver_forget(). */
void deliver_resume_named(struct daemon *d, struct client *c, uint64_t rid, uint64_t n_tokens,
                          uint64_t n_text);
/* Ends r and removes its names, because its client will submit it again. */
void deliver_forget(struct daemon *d, struct request *r);
/* Ends requests past their deadline or disconnect timeout and those of slow readers; closes idle
 * connections. Called every 0.25 s. late: time in which lagand did not run; not counted. */
void deliver_tick(struct daemon *d, nsec now, nsec late);
