/* receive.h - validates the records in a worker's response ring and stores them in the ledger.
 *
 * Each field of a record is checked before any of them is used. The first invalid record is a
 * protocol error: lagand kills the worker and ignores the rest of its ring.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "ipc/ring.h"

struct worker;

/* Reads at most 1024 records or 256 KiB. Returns true if the ring has more. */
bool receive_drain(struct worker *w);
/* Reads every complete record of a worker that has ended. */
void receive_drain_dead(struct worker *w);

/* Applies one record; for receive_drain(), tests and fuzzers. -EBADMSG: protocol error. */
int receive_record(struct worker *w, const struct ring_record *rec, struct err *e) MUST_USE;
