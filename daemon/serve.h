/* serve.h - runs lagand from start to exit (serve.c), handles the messages of clients (messages.c),
 * and passes the state of one lagand process to the next (reexec.c).
 *
 * The next lagand gets the descriptors of the previous one: after a crash from systemd's fd store
 * (fdstore.h), at a re-exec directly. It waits until the workers of the previous lagand have ended,
 * reads the ledger log, and gives the arenas to its own workers. Without a ledger log it closes the
 * KV arenas, because no request can use their contents. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/persist/fdstore.h"

/* Serves until a stop is requested. Returns lagand's exit code (listed in main.c), or a negative
 * errno with *e if lagand could not start. argv: the command line for a re-exec. */
int serve(struct config *c, char **argv, struct err *e) MUST_USE;

/* daemon_events.frame: validates and executes a frame of c, or sends ERROR. May drop c. */
void messages_frame(struct daemon *d, struct client *c, const void *frame, size_t n);

/* In the new lagand: takes the ledger log and the arenas of the previous lagand from `left` and
 * closes the other descriptors. Call it after the workers of d are allocated, before they start. */
void reexec_take(struct daemon *d, struct fdstore *left);
struct handover_state;
/* Ends the workers and duplicates the descriptors for the new lagand. NULL: no memory. */
struct handover_state *reexec_prepare(struct daemon *d);
/* Replaces this process by the new program. Close struct daemon before. Returns only on failure. */
int reexec_exec(struct handover_state *h, char **argv, struct err *e);
