/* serve.h - lagand from start to exit (serve.c), its clients' messages (messages.c), and the change
 * from one lagand to the next (reexec.c).
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

/* Serves until a stop is requested. Returns the exit code (table in ctl/ctl.h), or a negative errno
 * with *e if it could not start. argv: the command line for a re-exec. */
int serve(struct config *c, char **argv, struct err *e) MUST_USE;

/* For daemon_events: decodes one whole frame of n bytes from c, validates it and does what it asks
 * for. An invalid frame gets an ERROR. c may be dropped by the call. */
void messages_frame(struct daemon *d, struct client *c, const void *frame, size_t n);

/* Takes ledger log and arenas from left. d's tables and workers exist; no worker is started. */
void reexec_take(struct daemon *d, struct fdstore *left);
struct handover_state;
/* Ends the workers, reads their remaining records and keeps the descriptors for the new program.
 * NULL: no memory. */
struct handover_state *reexec_prepare(struct daemon *d);
/* Executes the new program, after everything else was closed. Returns only on failure. */
int reexec_exec(struct handover_state *h, char **argv, struct err *e);
