/* intake.h - reads lagand's records from the request ring and converts SUBMIT records to sequences.
 *
 * lagand validates requests with the facts of READY. The intake checks every length against the
 * record: a record whose counts exceed its length is corruption and ends the worker. intake_admit.h
 * lists the refusals that need more than the facts of READY; intake_submit.c refuses requests that
 * were validated with READY of another worker, and requests for which no slots are free. Engine
 * thread only; allocates no memory while serving. */
#pragma once
#include "base/err.h"
#include "worker/io/request.h"
#include "worker/worker.h"

enum { INTAKE_MAX_OUTPUTS = 64 };

/* Allocates w->intake, with a buffer for the longest SUBMIT of the loaded model. -ENOMEM. */
int intake_open(struct worker *w, struct err *e) MUST_USE;
void intake_close(struct worker *w);
/* Applies at most 256 records of the request ring. Returns their number; -EBADMSG: corrupt data. */
int intake_drain(struct worker *w, nsec now, struct err *e);
/* Continues a slot that the text thread has finished: admits the request whose prompt it has
 * tokenized, or queues TEXT_DONE for a text call. */
void intake_text_done(struct worker *w, struct worker_request *r, nsec now);

/* In intake_submit.c: applies a complete SUBMIT of n bytes. Returns 0: the request went to the text
 * thread or the scheduler, or was refused with REJECT. -EBADMSG: the record is corrupt. */
int intake_submit(struct worker *w, const void *data, size_t n, nsec now, struct err *e) MUST_USE;
/* In text_call.c: applies a TEXT record of n bytes, a text call: tokenizes text or detokenizes ids.
 * Passes it to the text thread, or queues an error at once. -EBADMSG: the record is corrupt. */
int text_call(struct worker *w, const void *data, size_t n, struct err *e) MUST_USE;
/* Queues TEXT_DONE for a call that the text thread has finished, and frees its slot. */
void text_call_done(struct worker *w, struct worker_request *r);
