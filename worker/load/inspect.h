/* inspect.h - lagan-worker --inspect: prints what would be served before anything large is read or
 * allocated.
 */
#pragma once

#include "base/err.h"
#include "worker/worker.h"

/* Prints one line of JSON on standard output. -ENOMEM: the model does not fit the device; -EIO: the
 * device failed; other errors as for a load. */
int inspect_run(struct worker *w, struct err *e) MUST_USE;
