/* control_channel.h - the control channel of one incarnation: a ROUTER here, the worker's DEALER there.
 *
 * For operators' commands to a worker and nothing else: no request and no death waits for it. The
 * worker proves itself with the token that it got in its environment; other peers are not heard.
 */
#ifndef DAEMON_SUPERVISE_CONTROL_CHANNEL_H
#define DAEMON_SUPERVISE_CONTROL_CHANNEL_H

#include "base/base.h"
#include "daemon/supervise/worker.h"
#include "wire/msg.h"

struct control_channel;

/* NULL: it could not be had (said in the journal), the worker does without. */
struct control_channel *control_channel_open(struct worker *w, const char **endpoint,
                                             const char **token);
void control_channel_move(struct control_channel *c,
                          struct worker *w); /* it is w's now; NULL: nothing */
struct control_channel *control_channel_close(struct control_channel *c); /* NULL in, NULL out */
bool control_channel_pump(struct control_channel *c); /* true: there is more; NULL: nothing */
/* CALL a verb under this number, args (a map, or NULL) as they came; the answer comes as
 * d->events->control_reply().
 * -ENOTCONN. */
int control_channel_call(struct control_channel *c, uint64_t number, const char *verb,
                         const msgpack_object *args) MUST_USE;

#endif
