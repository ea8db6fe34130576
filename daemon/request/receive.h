/* receive.h - validates the records in a worker's response ring and stores them in the ledger.
 *
 * Each field of a record is checked before it is used. The first invalid record is a protocol
 * error: lagand kills the worker and ignores the rest of its ring. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "ipc/ring.h"

struct worker;

/* daemon_events.worker_record: applies one record of w to the ledger. -EBADMSG: it is invalid. */
int receive_record(struct worker *w, const struct ring_record *rec, struct err *e) MUST_USE;
