/* worker_calls.h - commands that a worker answers: a place, a generation and a deadline each.
 *
 * Two ways out: a TEXT record in the request ring (tokenize, detokenize), and a message on the
 * worker's control channel (log level, tuning). Neither holds anything up: what is not answered in
 * time is answered by us.
 */
#ifndef DAEMON_REQUEST_WORKER_CALLS_H
#define DAEMON_REQUEST_WORKER_CALLS_H

#include "base/base.h"
#include "daemon/net/session.h"
#include "daemon/supervise/worker.h"
#include "wire/msg.h"

enum { MAX_CALLS = 256, TEXT_TOKENIZE = 1, TEXT_DETOKENIZE = 2, TEXT_FLAG = 1, TEXT_CHAT = 2 };

struct worker_calls *worker_calls_new(void) MUST_USE;
struct worker_calls *worker_calls_free(struct worker_calls *c);

/* Ask a worker: text or ids. Answered later with REPLY or ERROR, or now with an ERROR. */
void worker_calls_text(struct daemon *d, struct client *c, uint64_t rid, struct worker *w,
                       uint8_t op, uint8_t flags, const struct msg_ids *ids,
                       const struct msg_span *text);
/* Register a command given to a control channel: its number there, or 0: no place. */
uint64_t worker_calls_control(struct daemon *d, struct client *c, uint64_t rid, struct worker *w);
/* The control channel's answer. code 0: done, with the result in that map; else with a message
 * there. map may be NULL: no worker said it. */
void worker_calls_control_done(struct worker *w, uint64_t number, uint32_t code,
                               const msgpack_object *map);

int worker_calls_text_done(struct worker *w, const void *data, size_t n, struct err *e) MUST_USE;
void worker_calls_lost(struct worker *w); /* the worker is gone */
void worker_calls_tick(struct daemon *d, nsec now);

#endif
