/* control.h - the worker's end of its control channel: the only ZeroMQ in the worker.
 *
 * A thread with one DEALER socket to lagand. Nothing on the way of a request or of a death depends
 * on it: if libzmq hangs, operators' commands fail and nothing else. It answers from atomics and
 * from the statistics page; what the engine has to do it asks for with a flag and a wake-up.
 */
#ifndef WORKER_OPS_CONTROL_H
#define WORKER_OPS_CONTROL_H

#include "base/base.h"
#include "worker/worker.h"

/* LAGAN_CONTROL names the endpoint, LAGAN_TOKEN proves who we are; without them, or when it
 * cannot be started, NULL: the worker serves without a control channel and says so once. */
struct control *control_start(struct worker *w);
struct control *control_stop(struct control *c); /* NULL in, NULL out */
int control_fd(const struct control *c); /* readable when the engine should look; -1: none */

#endif
