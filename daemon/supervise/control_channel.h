/* control_channel.h - the ZeroMQ connection for operator commands to one process of a worker:
 * a ROUTER socket in lagand, a DEALER socket in the worker.
 *
 * Requests and restarts of a worker do not depend on it. The worker sends HELLO with the token that
 * lagand put into its environment; lagand ignores the messages of all other peers. */
#pragma once
#include "base/base.h"
#include "wire/msg.h"

struct control_channel;
struct worker;

/* Opens the channel of w for its present epoch. *endpoint and *token, for the environment of the
 * worker, are valid until the close. NULL: failed and logged; the worker runs without a channel. */
struct control_channel *control_channel_open(struct worker *w, const char **endpoint,
                                             const char **token);
/* Makes w the worker for which replies are reported. c NULL: no effect, also in the calls below. */
void control_channel_move(struct control_channel *c, struct worker *w);
struct control_channel *control_channel_close(struct control_channel *c);
/* Handles up to 16 received messages. Returns true if more may be waiting. */
bool control_channel_pump(struct control_channel *c);
/* Sends CALL `number` with verb and args (a map, or NULL: empty). The reply arrives through
 * d->events->control_reply(). -ENOTCONN: the worker has not connected, or its queue is full. */
int control_channel_call(struct control_channel *c, uint64_t number, const char *verb,
                         const msgpack_object *args) MUST_USE;
