/* preflight.h - checks before a re-exec that the installed lagand accepts lagand's command line.
 *
 * The installed program runs with --check while requests continue. If the configuration is invalid
 * or the program cannot run, the client that asked for the re-exec gets an ERROR, and the running
 * lagand continues, which would be impossible once it has ended its workers. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"

#include <limits.h>

struct client;

/* Writes the path of lagand's program file, which may have been replaced since lagand started. */
int preflight_program(char path[PATH_MAX], struct err *e) MUST_USE;

/* Starts the check for CALL rid of client c, which gets REPLY or ERROR when the check has ended.
 * Success sets d->reexec_requested. A second check at the same time is refused. */
void preflight_start(struct daemon *d, struct client *c, uint64_t rid);
void preflight_end(struct daemon *d); /* frees d->preflight, also while the check runs */
