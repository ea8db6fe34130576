/* control_channel.h - the control channel of one incarnation: a ROUTER in lagand, a DEALER in the
 * worker.
 *
 * It carries operator commands only; no request and no replacement of a worker waits for it. The
 * worker authenticates with the token of its environment; messages of other peers are ignored.
 */
#pragma once

#include "base/base.h"
#include "wire/msg.h"

struct control_channel;
struct worker;

/* NULL: it could not be opened, which is logged; the worker runs without. */
struct control_channel *control_channel_open(struct worker *w, const char **endpoint,
                                             const char **token);
/* Makes w the owner. c NULL: no effect, as in the calls below. */
void control_channel_move(struct control_channel *c, struct worker *w);
struct control_channel *control_channel_close(struct control_channel *c);
bool control_channel_pump(struct control_channel *c); /* true: more messages may be waiting */
/* Sends CALL with that number, verb and args (a map, or NULL). The result arrives through
 * d->events->control_reply(). -ENOTCONN. */
int control_channel_call(struct control_channel *c, uint64_t number, const char *verb,
                         const msgpack_object *args) MUST_USE;
