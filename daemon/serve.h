/* serve.h - lagand's life: open, turn, drain, leave. */
#ifndef DAEMON_SERVE_H
#define DAEMON_SERVE_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/supervisor.h"

/* Serve until told to stop. The exit code (CONTRACT 4); failures before serving are in *e with a
 * negative errno. */
int serve(struct config *c, struct err *e) MUST_USE;

/* A worker's state has changed: readiness, status line, requests that nobody can take any more. */
void serve_worker_moved(struct daemon *d, struct worker *w, enum super_state from,
                        enum super_state to);

#endif
