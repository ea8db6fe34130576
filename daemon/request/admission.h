/* admission.h - validates a SUBMIT and makes the record that a worker will get. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/net/session.h"
#include "wire/msg.h"

/* Adds a SUBMIT to the ledger, or finds it there by its idempotency key. Returns 0 and *ret, or a
 * code of enum lagan_reason and the error. Checks limits of client and queue, then the request,
 * then the facts of the model. */
int admission_take(struct daemon *d, struct client *c, const struct msg *m, struct request **ret,
                   struct err *e) MUST_USE;
/* Checks s against the facts of its model and limits.tensor_bytes. Returns 0, also if no facts are
 * known, or the code and the error. */
int admission_fits(const struct model_facts *f, const struct rec_submit *s, uint64_t tensor_bytes,
                   struct err *e) MUST_USE;

/* The same for generated_ids: n ids, i32; longest: the most ids of one output. */
int admission_fits_done(const struct model_facts *f, const void *ids, uint32_t n, uint32_t longest,
                        struct err *e) MUST_USE;

/* The record of a conversation starts with the date, YYYY-MM-DD, and a newline, so that a request
 * that continues on another day keeps its prompt. */
enum { ADMISSION_DAY = 11 };
void admission_day(char day[ADMISSION_DAY]);

/* Error if model is absent and several are served; %u: their number. */
#define MODEL_MISSING \
    "model is missing: %u models are served here; `laganctl model list` shows them"

/* Makes a rec_submit with its tails, from malloc. NULL: no memory. */
struct rec_submit *admission_record(const struct msg_request *q, uint64_t seed, uint32_t *bytes);
