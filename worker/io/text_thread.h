/* text_thread.h - the thread that tokenises, so that a long prompt never delays a step.
 *
 * Two private rings of slot numbers, one each way; a slot is the text thread's while it is in its
 * hands (REQUEST_TEXT). text_thread_fd() is readable when slots have come back.
 */
#ifndef WORKER_IO_TEXT_THREAD_H
#define WORKER_IO_TEXT_THREAD_H

#include "base/base.h"
#include "base/err.h"
#include "worker/io/request.h"
#include "worker/text/tokenizer.h"

struct text_thread;

/* Tokens go to the start of a slot's ids; prompt_cap: the most a prompt may have. */
int text_thread_start(struct text_thread **ret, struct requests *q, struct tokenizer *t,
                      const struct chat *chat, uint32_t prompt_cap, struct err *e) MUST_USE;
struct text_thread *text_thread_stop(struct text_thread *x); /* NULL in, NULL out */
void text_thread_give(struct text_thread *x, struct worker_request *r);
struct worker_request *text_thread_take(struct text_thread *x); /* NULL: none back */
int text_thread_fd(const struct text_thread *x);

#endif
