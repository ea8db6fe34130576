/* rolling_restart.h - replaces all workers one after the other: `laganctl reload`, SIGHUP.
 *
 * A worker is ended in the middle of its work; its replacement, which runs the installed program,
 * continues its requests. The next worker follows when the replacement is READY, so that at most
 * one is away. A replacement that does not become READY ends the rolling restart.
 */
#pragma once

#include "base/base.h"
#include "daemon/daemon.h"

/* by: the origin for the event log (", by SIGHUP"), or "". Returns the number of running workers
 * that will be replaced. -EBUSY: a rolling restart is in progress. -ESHUTDOWN: lagand is stopping.
 */
int rolling_restart_start(struct daemon *d, const char *by);
void rolling_restart_step(struct daemon *d);
/* Sends RELOADING=1 to systemd, which then waits for READY=1. */
void rolling_restart_notify(void);
