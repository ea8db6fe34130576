/* text_call.h - TEXT records: an operator or client wants text tokenized, or ids as text; no
 * sequence runs. */
#ifndef WORKER_IO_TEXT_CALL_H
#define WORKER_IO_TEXT_CALL_H

#include "base/err.h"
#include "worker/io/request.h"
#include "worker/worker.h"

/* Takes a TEXT record of n bytes: hands it to the text thread, or answers at once. -EBADMSG: it
 * contradicts itself. */
int text_call(struct worker *w, const void *data, size_t n, struct err *e) MUST_USE;
/* Queues TEXT_DONE of a call that the text thread has finished, and gives its slot back. */
void text_call_done(struct worker *w, struct worker_request *r);

#endif
