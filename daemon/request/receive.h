/* receive.h - validates what a worker writes into its response ring, and stores it in the ledger.
 *
 * Each field of a record is checked before any of them is used. The first invalid record is a
 * protocol error: lagand kills the worker and reads nothing more of its ring.
 */
#ifndef DAEMON_REQUEST_RECEIVE_H
#define DAEMON_REQUEST_RECEIVE_H

#include "base/base.h"
#include "base/err.h"
#include "ipc/ring.h"

struct worker;

/* Read at most 1024 records or 256 KiB. Returns true if the ring has more. A protocol error kills
 * the worker. */
bool receive_drain(struct worker *w);
/* Read every complete record of a worker that has ended. */
void receive_drain_dead(struct worker *w);

/* Apply one record. -EBADMSG: a protocol error, described in e. For receive_drain(), tests and
 * fuzzers. */
int receive_record(struct worker *w, const struct ring_record *rec, struct err *e) MUST_USE;

#endif
