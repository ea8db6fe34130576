/* serve.h - lagand's life: open, turn, drain, leave. */
#ifndef DAEMON_SERVE_H
#define DAEMON_SERVE_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/supervise/supervisor.h"

/* Serve until told to stop. The exit code (ctl/ctl.h has them all); failures before serving are in *e with a
 * negative errno. argv: what we become again when we are to begin again. */
int serve(struct config *c, char **argv, struct err *e) MUST_USE;
/* Hand everything to the program that lies there now, and be it. */
void serve_reexec(struct daemon *d);

/* A worker's state has changed: readiness, status line, requests that nobody can take any more. */
void serve_worker_moved(struct daemon *d, struct worker *w, enum super_state from,
                        enum super_state to);

#endif
