/* control.h - the worker's end of its control channel: the only ZeroMQ in the worker.
 *
 * One thread with a DEALER socket to lagand. Requests and failure handling do not depend on it: if
 * libzmq hangs, only operators' commands fail. The thread replies from atomics and from the
 * statistics page; for work of the engine it sets a flag and wakes the engine.
 */
#pragma once

#include "base/base.h"
#include "worker/worker.h"

/* LAGAN_CONTROL names the endpoint, LAGAN_TOKEN authenticates the worker. Returns NULL without
 * LAGAN_CONTROL or on failure (logged once): the worker then serves without a control channel. */
struct control *control_start(struct worker *w);
struct control *control_stop(struct control *c); /* accepts NULL; returns NULL */
/* readable when the engine has a command to run; -1: none */
int control_fd(const struct control *c);
