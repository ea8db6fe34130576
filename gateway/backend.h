/* backend.h - the connection of lagan-gateway to lagand: struct api_backend over liblagan.
 *
 * There is one tenant in this version, 0, and one connection. Facts of the models are asked for
 * twice a second, also to notice within a second that lagand is not reachable. liblagan reconnects
 * and resumes the requests by itself within `reconnect_timeout`.
 *
 * Threads: the thread of the event loop. No function blocks. */
#pragma once
#include "gateway/api/api.h"
#include "gateway/options.h"

struct backend;

/* Opens the connection; lagand need not be there. c must live as long as the backend. -ENOMEM,
 * -EINVAL, -EACCES: the endpoint or the key file. */
int backend_open(struct backend **ret, sd_event *loop, const struct gateway_config *c,
                 struct err *e) MUST_USE;
struct backend *backend_close(struct backend *b);
/* The functions that api_new() takes. */
struct api_backend backend_functions(struct backend *b);
/* Events go to a from now on. */
void backend_set_api(struct backend *b, struct api *a);
bool backend_connected(const struct backend *b); /* lagand is reachable */
/* The gateway stops: models() says draining from now on. */
void backend_set_draining(struct backend *b);
