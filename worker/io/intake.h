/* intake.h - the only reader of the request ring: converts records to sequences.
 *
 * lagand validates requests with the facts of READY. The intake bounds what it reads: a record that
 * contradicts itself is corruption and ends the worker. intake_admit.h lists the refusals that need
 * more than the facts of READY; intake_submit.c refuses requests that were validated with READY of
 * another worker, and requests for which no slots are free. Engine thread only; serving allocates
 * nothing.
 */
#pragma once

#include "base/err.h"
#include "worker/io/request.h"
#include "worker/worker.h"

/* Allocates w->intake with a buffer for the longest SUBMIT; the model is loaded. -ENOMEM. */
int intake_open(struct worker *w, struct err *e) MUST_USE;
void intake_close(struct worker *w);
/* Takes at most 256 records. Returns their number, or -EBADMSG if the request ring is corrupt. */
int intake_drain(struct worker *w, nsec now, struct err *e);
/* Continues a request that the text thread has finished: queues the result of a text call, or
 * admits the request. */
void intake_text_done(struct worker *w, struct worker_request *r, nsec now);
