/* intake_submit.h - converts a complete SUBMIT record to a request: bounds, copy, the model's
 * defaults, tokens.
 */
#pragma once

#include "base/err.h"
#include "worker/worker.h"

enum { INTAKE_MAX_OUTPUTS = 64 };

/* Takes a SUBMIT of n bytes. Returns 0: the request went to the text thread or the scheduler, or
 * was refused with REJECT. -EBADMSG: the record contradicts itself. */
int intake_submit(struct worker *w, const void *data, size_t n, nsec now, struct err *e) MUST_USE;
