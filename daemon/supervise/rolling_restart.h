/* rolling_restart.h - replaces workers one after the other: `laganctl reload`, SIGHUP.
 *
 * lagand ends one worker with its requests open; the replacement, which runs the installed program,
 * continues them. The next worker is ended when the replacement is READY, so that at most one
 * worker is missing. A replacement that does not become READY ends the rolling restart. */
#pragma once
#include "base/base.h"
#include "daemon/daemon.h"

/* Starts a rolling restart of the workers in the set (bit i: worker i). Returns the number of
 * running workers that will be replaced. by: ", by SIGHUP" for the event log, or "". -EBUSY: one
 * is in progress. -ESHUTDOWN: lagand is stopping. */
int rolling_restart_start(struct daemon *d, uint64_t set, const char *by) MUST_USE;
void rolling_restart_step(struct daemon *d); /* each loop iteration: may start the next worker */
/* Sends RELOADING=1 to systemd, which then waits for READY=1. */
void rolling_restart_notify(void);
