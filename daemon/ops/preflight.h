/* preflight.h - checks before a re-exec or a reload that the installed lagand could start now.
 *
 * The installed program runs with --check while requests continue (check.h). If a start would fail,
 * the client that asked gets an ERROR with the first errors, and the running lagand continues
 * unchanged, which would be impossible once it has ended its workers. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"

#include <limits.h>

struct client;

/* Writes the path of lagand's program file, which may have been replaced since lagand started. */
int preflight_program(char path[PATH_MAX], struct err *e) MUST_USE;

enum preflight_kind { PREFLIGHT_REEXEC, PREFLIGHT_RELOAD };
/* Starts the check for CALL rid of client c (NULL: SIGHUP), which gets REPLY or ERROR when the
 * check has ended. Success sets d->reexec_requested, or applies the configuration (reload.h). A
 * second check at the same time is refused. */
void preflight_start(struct daemon *d, struct client *c, uint64_t rid, enum preflight_kind kind);
void preflight_end(struct daemon *d); /* frees d->preflight, also while the check runs */
