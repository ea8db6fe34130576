/* intake.h - the only reader of the request ring: records to sequences.
 *
 * lagand validates requests with the facts of READY and is the only place that words those
 * refusals. The intake bounds what it reads: a record that contradicts itself is corruption and
 * ends the worker. Refusals that need more than READY has are listed in intake_admit.h;
 * intake_submit.c refuses combinations with the model's own defaults, more sequences than
 * max_num_batched_tokens, and requests for which no slots are free. Engine thread only; serving
 * allocates nothing.
 */
#ifndef WORKER_IO_INTAKE_H
#define WORKER_IO_INTAKE_H

#include "base/err.h"
#include "worker/io/request.h"
#include "worker/worker.h"

/* Makes w->intake, with space for the longest SUBMIT; needs the model. -ENOMEM. */
int intake_open(struct worker *w, struct err *e) MUST_USE;
void intake_close(struct worker *w);
/* Takes records of the request ring, at most 256. Returns their number, or -EBADMSG: the ring is
 * corrupt. */
int intake_drain(struct worker *w, nsec now, struct err *e);
/* Takes back a request from the text thread: queues the result of a text call, or admits the
 * request. */
void intake_text_done(struct worker *w, struct worker_request *r, nsec now);

#endif
