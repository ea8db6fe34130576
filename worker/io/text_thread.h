/* text_thread.h - a thread that tokenizes, so that a long prompt never delays a step.
 *
 * Two private queues of slot numbers, one in each direction; the text thread owns a slot while its
 * state is REQUEST_TEXT. text_thread_fd() is readable when slots have been returned.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "worker/io/request.h"
#include "worker/text/tokenizer.h"

struct text_thread;

/* Tokens are written to the start of a slot's ids. prompt_cap: most tokens of a prompt. -ENOMEM. */
int text_thread_start(struct text_thread **ret, struct requests *q, struct tokenizer *t,
                      const struct chat *chat, uint32_t prompt_cap, struct err *e) MUST_USE;
struct text_thread *text_thread_stop(struct text_thread *x); /* accepts NULL; returns NULL */
void text_thread_give(struct text_thread *x, struct worker_request *r);
struct worker_request *text_thread_take(struct text_thread *x); /* NULL: no slot was returned */
int text_thread_fd(const struct text_thread *x);
