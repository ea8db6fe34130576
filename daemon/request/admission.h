/* admission.h - may this request be taken? And the request as a worker will get it. */
#ifndef DAEMON_REQUEST_ADMISSION_H
#define DAEMON_REQUEST_ADMISSION_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/net/session.h"
#include "wire/msg.h"

/* A SUBMIT of a client into the ledger, or found there by its key: 0 and *ret, or a code of enum
 * lagan_reason and the sentence.
 * Limits of client and queue first, then the request itself, then what is known of the model. */
int admission_take(struct daemon *d, struct client *c, const struct msg *m, struct request **ret,
                   struct err *e) MUST_USE;
/* Can this model run it at all, within limits.tensor_bytes? 0, or the code and the sentence.
 * Nothing known: 0. */
int admission_fits(const struct model_facts *f, const struct rec_submit *s, uint64_t tensor_bytes,
                   struct err *e) MUST_USE;

/* The tokens, i32, that answers begin with, the longest of so many: are they of this model? */
int admission_fits_done(const struct model_facts *f, const void *ids, uint32_t n, uint32_t longest,
                        struct err *e) MUST_USE;

/* What stands in front of a conversation in a record: the day, YYYY-MM-DD, and an end of line. A
 * request that goes on tomorrow has the prompt it had. */
enum { ADMISSION_DAY = 11 };
void admission_day(char day[ADMISSION_DAY]);

/* To whoever names none of several models; %u: how many. */
#define MODEL_MISSING \
    "model is missing: %u models are served here; `laganctl model list` shows them"

/* A rec_submit with its tails, from malloc; NULL: no memory. */
struct rec_submit *admission_record(const struct msg_request *q, uint64_t seed, uint32_t *bytes);

#endif
