/* control.h - runs operator commands that lagand sends over the control channel (ZeroMQ).
 *
 * The control thread has a DEALER socket to lagand, the only ZeroMQ socket in the worker. Requests
 * and failure handling do not depend on it: if libzmq hangs, only operator commands fail. The
 * thread replies from atomics, state under locks and the statistics page. A command that the engine
 * thread must run sets a flag, and wakes the engine thread through an eventfd.
 */
#pragma once
#include "base/base.h"
#include "worker/worker.h"

/* Starts the control thread; LAGAN_CONTROL has the endpoint, LAGAN_TOKEN authenticates the worker.
 * NULL: LAGAN_CONTROL is not set, or an error was logged; there is then no control channel. */
struct control *control_start(struct worker *w);
struct control *control_stop(struct control *c); /* accepts NULL; returns NULL */
/* Returns the eventfd, readable when a command waits for the engine thread; -1: c is NULL. */
int control_fd(const struct control *c);
