/* text_call.h - TEXT records: tokenizes text or detokenizes ids for an operator or client; no
 * sequence runs.
 */
#pragma once

#include "base/err.h"
#include "worker/io/request.h"
#include "worker/worker.h"

/* Takes a TEXT record of n bytes: passes it to the text thread, or queues the result at once.
 * -EBADMSG: the record contradicts itself. */
int text_call(struct worker *w, const void *data, size_t n, struct err *e) MUST_USE;
/* Queues TEXT_DONE for a call that the text thread has finished, and frees its slot. */
void text_call_done(struct worker *w, struct worker_request *r);
