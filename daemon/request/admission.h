/* admission.h - validates a client's SUBMIT and builds the REC_SUBMIT record for a worker. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/net/session.h"
#include "wire/msg.h"

/* Adds the request of SUBMIT m to the ledger, or finds it there by its idempotency key. Returns 0
 * and *ret, or a code of enum lagan_reason and the error. Checks limits of client and queue, then
 * the request, then the facts of its model. *length is set always. */
int admission_take(struct daemon *d, struct client *c, const struct msg *m, struct request **ret,
                   struct prompt_length *length, struct err *e) MUST_USE;
/* Checks s against the facts of its model and tensor_bytes (the option limits.tensor_bytes).
 * Returns 0, also if no facts are known yet, or a code of enum lagan_reason and the error. */
int admission_fits(const struct model_facts *f, const struct rec_submit *s, uint64_t tensor_bytes,
                   struct err *e) MUST_USE;

/* Checks the n generated ids, i32, with which a request starts, as admission_fits() checks a
 * prompt. longest: number of ids of the longest output. */
int admission_fits_done(const struct model_facts *f, const void *ids, uint32_t n, uint32_t longest,
                        struct err *e) MUST_USE;

/* The text of a record with chat messages starts with today's date, YYYY-MM-DD, and a newline. Chat
 * templates print the date; a request that continues on another day thus keeps its prompt. */
enum { ADMISSION_DAY = 11 };
void admission_day(char day[ADMISSION_DAY]);

/* Error text for a request without the key model if %u > 1 models are served. */
#define MODEL_MISSING \
    "model is missing: %u models are served here; `laganctl model list` shows them"

/* Returns the record of q with its tails, from malloc, and its size in *bytes. user: the name in
 * the cache salt; "": the request shares cached KV with those of all users. NULL: no memory. */
struct rec_submit *admission_record(const struct msg_request *q, uint64_t seed, const char *user,
                                    uint32_t *bytes);
