/* endpoint.h - checks the text of an endpoint, and says why there is no connection to it. */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum { CLIENT_ENDPOINT = 256 }; /* bytes, with the NUL */

/* -EPROTONOSUPPORT: the endpoint is neither ipc://PATH nor tcp://HOST:PORT. -ENAMETOOLONG. */
int client_check_endpoint(const char *endpoint, struct err *e) MUST_USE;
/* Says why libzmq makes no connection to a tcp endpoint: resolves the name and calls connect(),
 * which may take seconds. Returns 0 if a program listens there, -EHOSTUNREACH if the name cannot be
 * resolved, or the errno of connect(). */
int client_explain_tcp(const char *endpoint, struct err *e) MUST_USE;
