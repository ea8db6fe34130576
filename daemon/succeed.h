/* succeed.h - one lagand after another: what the next one finds, and becoming it.
 *
 * A lagand that dies leaves what it had put into the fd store (store.h); one that is told to begin again
 * hands the same descriptors to the program that it becomes. Either way the next one waits until the
 * workers of the former are gone, reads the ledger, and gives their arenas to its own workers. KV without
 * its ledger belongs to nobody and is closed.
 */
#ifndef DAEMON_SUCCEED_H
#define DAEMON_SUCCEED_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/store.h"

#include <limits.h>

/* Take over what there is: d's tables and workers are made, none is started. left: what nobody has taken yet. */
void succeed_take(struct daemon *d, struct store *left);

/* Our own file, by its name: it may have been replaced by a newer one. */
int succeed_path(char path[PATH_MAX], struct err *e) MUST_USE;

struct heirlooms;
/* End the workers, hear what they had said, and set aside what the successor needs. NULL: no memory. */
struct heirlooms *succeed_prepare(struct daemon *d);
/* Be it: everything is closed by now. Returns only when that fails. */
int succeed_exec(struct heirlooms *h, char **argv, struct err *e);

#endif
