/* serve.h - lagand from start to exit: open, serve, drain, close. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"

/* Serves until a stop is requested. Returns the exit code (table in ctl/ctl.h), or a negative errno
 * with *e if it could not start. argv: the command line for a re-exec. */
int serve(struct config *c, char **argv, struct err *e) MUST_USE;
