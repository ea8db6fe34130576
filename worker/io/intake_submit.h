/* intake_submit.h - a whole SUBMIT record to a request: bound, copy, defaults of the model,
 * tokens. */
#ifndef WORKER_IO_INTAKE_SUBMIT_H
#define WORKER_IO_INTAKE_SUBMIT_H

#include "base/err.h"
#include "worker/worker.h"

enum { INTAKE_MAX_OUTPUTS = 64 };

/* Takes the n bytes of a SUBMIT: the request goes to the text thread, to the scheduler, or is
 * refused with REJECT (0). -EBADMSG: the record contradicts itself. */
int intake_submit(struct worker *w, const void *data, size_t n, nsec now, struct err *e) MUST_USE;

#endif
