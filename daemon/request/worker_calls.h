/* worker_calls.h - table of commands that wait for the reply of a worker, each with a deadline.
 *
 * A command leaves as a TEXT record in the request ring (tokenize, detokenize), or as a message on
 * the control channel (log level, tuning). No call waits: after the deadline lagand replies with an
 * ERROR.
 */
#pragma once

#include "base/base.h"
#include "daemon/net/session.h"
#include "daemon/supervise/worker.h"
#include "wire/msg.h"

enum { MAX_CALLS = 256, TEXT_TOKENIZE = 1, TEXT_DETOKENIZE = 2, TEXT_FLAG = 1, TEXT_CHAT = 2 };

struct worker_calls *worker_calls_new(void) MUST_USE;
struct worker_calls *worker_calls_free(struct worker_calls *c);

/* Sends text or ids to a worker. c gets REPLY or ERROR later, or an ERROR now. */
void worker_calls_text(struct daemon *d, struct client *c, uint64_t rid, struct worker *w,
                       uint8_t op, uint8_t flags, const struct msg_ids *ids,
                       const struct msg_span *text);
/* Registers a command of a control channel. Returns its number there; 0: the table is full. */
uint64_t worker_calls_control(struct daemon *d, struct client *c, uint64_t rid, struct worker *w);
/* Reply of the control channel. code 0: success, map has the result; else map has the message. map
 * NULL: lagand ends the command. */
void worker_calls_control_done(struct worker *w, uint64_t number, uint32_t code,
                               const msgpack_object *map);

int worker_calls_text_done(struct worker *w, const void *data, size_t n, struct err *e) MUST_USE;
void worker_calls_lost(struct worker *w); /* w has ended */
void worker_calls_tick(struct daemon *d, nsec now);
