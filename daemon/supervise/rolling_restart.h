/* rolling_restart.h - every worker anew, one after the other: `laganctl reload`, SIGHUP.
 *
 * A worker is ended where it is; what it had goes on with its successor, which is the program that lies
 * there now. The next one goes when that is READY, so that of several at most one is away. One that does
 * not come up ends the round: the others stay as they are.
 */
#ifndef DAEMON_SUPERVISE_ROLLING_RESTART_H
#define DAEMON_SUPERVISE_ROLLING_RESTART_H

#include "base/base.h"
#include "daemon/daemon.h"

/* by: "" or how it was asked for, for the events. How many workers run and are to be replaced. -EBUSY: a round is under way; -ESHUTDOWN: lagand is leaving. */
int rolling_restart_start(struct daemon *d, const char *by);
void rolling_restart_step(struct daemon *d);
/* Tell systemd that we reload; it waits for READY=1. */
void rolling_restart_notify(void);

#endif
