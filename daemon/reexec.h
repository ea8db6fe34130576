/* reexec.h - continues with what a previous lagand left, and replaces this lagand by the installed
 * one.
 *
 * A lagand that crashed left its descriptors in the fd store (fdstore.h); a re-exec passes the same
 * descriptors to the new program. The new lagand waits until the workers of the previous one have
 * ended, reads the ledger log, and gives the arenas to its own workers. KV arenas without a ledger
 * log are closed.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/persist/fdstore.h"

#include <limits.h>

/* Takes ledger log and arenas from left. d's tables and workers exist; no worker is started. */
void reexec_take(struct daemon *d, struct fdstore *left);

struct handover_state;
/* Ends the workers, reads their remaining records and keeps the descriptors for the new program.
 * NULL: no memory. */
struct handover_state *reexec_prepare(struct daemon *d);
/* Executes the new program, after everything else was closed. Returns only on failure. */
int reexec_exec(struct handover_state *h, char **argv, struct err *e);
