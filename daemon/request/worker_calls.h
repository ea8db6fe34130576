/* worker_calls.h - the table of client commands that were sent to a worker and have no reply yet.
 *
 * A command is a TEXT record in the request ring (tokenize, render), or a message on the
 * control channel (log level, tuning). After a deadline lagand replies with an ERROR. No function
 * blocks. A call is one entry of the table. */
#pragma once
#include "base/base.h"
#include "daemon/net/session.h"
#include "daemon/supervise/worker.h"
#include "wire/msg.h"

enum { MAX_CALLS = 256, TEXT_FLAG = 1, TEXT_CHAT = 2 };

struct worker_calls *worker_calls_new(void) MUST_USE;
struct worker_calls *worker_calls_free(struct worker_calls *c);

/* Sends text or ids to w as a TEXT record. op: enum text_op of ipc/records.h; flags: TEXT_FLAG
 * (tokenize: adds no special tokens; detokenize: keeps them) or TEXT_CHAT (text is a conversation).
 * c gets a REPLY or ERROR when w has replied, or an ERROR at once. */
void worker_calls_text(struct daemon *d, struct client *c, uint64_t rid, struct worker *w,
                       uint8_t op, uint8_t flags, const struct msg_ids *ids,
                       const struct msg_span *text);
/* Adds to the table a command that the caller sends over the control channel. Returns the number
 * with which the command must be sent; 0: the table is full, and c has an ERROR. */
uint64_t worker_calls_control(struct daemon *d, struct client *c, uint64_t rid, struct worker *w);
/* Handles the reply to the command with this number. code 0: map has the result; else code is enum
 * lagan_reason and map has the error message. map NULL: the worker did not get the command. */
void worker_calls_control_done(struct worker *w, uint64_t number, uint32_t code,
                               const msgpack_object *map);

/* Validates a TEXT_DONE record and sends its result to the client. -EBADMSG: it is invalid. */
int worker_calls_text_done(struct worker *w, const void *data, size_t n, struct err *e) MUST_USE;
/* Reply ERROR: to all commands of w, which has ended; to all commands whose deadline has passed. */
void worker_calls_lost(struct worker *w);
void worker_calls_tick(struct daemon *d, nsec now);
