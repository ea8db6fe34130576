/* preflight.h - before lagand begins again: would the program that lies there now, with our command line?
 *
 * It is asked with --check while requests go on. A configuration that is wrong, or a program that cannot be run, is said to
 * who asked for the new lagand, and this one stays: once it has ended its workers there is no way back.
 */
#ifndef DAEMON_OPS_PREFLIGHT_H
#define DAEMON_OPS_PREFLIGHT_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"

#include <limits.h>

struct client;

/* The path of lagand's program, which may have been replaced by a newer one since lagand started. */
int preflight_program(char path[PATH_MAX], struct err *e) MUST_USE;

/* Starts the check; c gets its REPLY or ERROR under rid when the check has ended. On success
 * d->reexec_requested is set. One at a time: a second one is refused. */
void preflight_start(struct daemon *d, struct client *c, uint64_t rid);
void preflight_end(struct daemon *d); /* frees d->preflight; the check is ignored */

#endif
