/* serve.h - lagand's life: open, turn, drain, leave. */
#ifndef DAEMON_SERVE_H
#define DAEMON_SERVE_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"

/* Serve until told to stop. The exit code (ctl/ctl.h has them all); failures before serving are in *e with a
 * negative errno. argv: what we become again when we are to begin again. */
int serve(struct config *c, char **argv, struct err *e) MUST_USE;

#endif
