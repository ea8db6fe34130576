/* loop.h - opens the parts of lagan-gateway, runs its event loop, stops. */
#pragma once
#include "base/err.h"
#include "gateway/options.h"

/* Serves until a signal stops the gateway; argc, argv: for a reload of the configuration. Returns
 * 0, or the error of opening the parts: -EINVAL, -EADDRINUSE, -EACCES and others. */
int gateway_run(struct gateway_config *c, int argc, char **argv, struct err *e) MUST_USE;
