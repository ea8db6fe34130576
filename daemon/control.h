/* control.h - the control channel of one incarnation: a ROUTER here, the worker's DEALER there.
 *
 * For operators' commands to a worker and nothing else: no request and no death waits for it. The
 * worker proves itself with the token that it got in its environment; other peers are not heard.
 */
#ifndef DAEMON_CONTROL_H
#define DAEMON_CONTROL_H

#include "base/base.h"
#include "daemon/worker.h"
#include "wire/msg.h"

struct control;

/* NULL: it could not be had (said in the journal), the worker does without. */
struct control *control_open(struct worker *w, const char **endpoint, const char **token);
void control_move(struct control *c, struct worker *w); /* it is w's now; NULL: nothing */
struct control *control_close(struct control *c);       /* NULL in, NULL out */
bool control_pump(struct control *c);                   /* true: there is more; NULL: nothing */
/* CALL a verb under this number, args (a map, or NULL) as they came; calls_control_done() hears the answer.
 * -ENOTCONN. */
int control_call(struct control *c, uint64_t number, const char *verb,
                 const msgpack_object *args) MUST_USE;

#endif
