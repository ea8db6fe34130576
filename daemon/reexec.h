/* reexec.h - one lagand after another: what the next one finds, and becoming it.
 *
 * A lagand that dies leaves what it had put into the fd store (fdstore.h); one that is told to begin again
 * hands the same descriptors to the program that it becomes. Either way the next one waits until the
 * workers of the former are gone, reads the ledger, and gives their arenas to its own workers. KV without
 * its ledger belongs to nobody and is closed.
 */
#ifndef DAEMON_REEXEC_H
#define DAEMON_REEXEC_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/persist/fdstore.h"

#include <limits.h>

/* Take over what there is: d's tables and workers are made, none is started. left: what nobody has taken yet. */
void reexec_take(struct daemon *d, struct fdstore *left);

struct handover_state;
/* End the workers, hear what they had said, and set aside what the successor needs. NULL: no memory. */
struct handover_state *reexec_prepare(struct daemon *d);
/* Be it: everything is closed by now. Returns only when that fails. */
int reexec_exec(struct handover_state *h, char **argv, struct err *e);

#endif
