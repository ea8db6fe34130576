/* text_thread.h - runs the tokenizer in its own thread, so that a long prompt never delays a step.
 *
 * Two queues carry request slots to the text thread and back. The text thread owns a slot while its
 * state is REQUEST_TEXT. text_thread_fd() is readable when slots have been returned. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "worker/io/request.h"
#include "worker/text/tokenizer.h"

struct text_thread;

/* Starts the thread, which writes tokens to a slot's ids. prompt_cap: most tokens of a prompt. */
int text_thread_start(struct text_thread **ret, struct requests *q, struct tokenizer *t,
                      const struct chat *chat, uint32_t prompt_cap, struct err *e) MUST_USE;
struct text_thread *text_thread_stop(struct text_thread *x); /* accepts NULL; returns NULL */
void text_thread_give(struct text_thread *x, struct worker_request *r); /* sends r to the thread */
struct worker_request *text_thread_take(struct text_thread *x); /* NULL: no slot is finished */
int text_thread_fd(const struct text_thread *x);
