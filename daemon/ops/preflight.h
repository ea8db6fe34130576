/* preflight.h - checks before a re-exec that the installed lagand accepts this command line.
 *
 * The installed program runs with --check while requests continue. An invalid configuration, or a
 * program that cannot be run, is reported to the client that asked for the re-exec, and this lagand
 * continues: after it has ended its workers it could not. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"

#include <limits.h>

struct client;

/* Path of lagand's program file, which may have been replaced since lagand started. */
int preflight_program(char path[PATH_MAX], struct err *e) MUST_USE;

/* Starts the check. c gets REPLY or ERROR under rid when it has ended; success sets
 * d->reexec_requested. A second check at the same time is refused. */
void preflight_start(struct daemon *d, struct client *c, uint64_t rid);
void preflight_end(struct daemon *d); /* frees d->preflight, also during a check */
