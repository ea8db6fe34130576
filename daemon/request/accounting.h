/* accounting.h - what an open request takes of its user's limits, of its model's fair queue, and of
 * api.memory.
 *
 * Each request is reserved once, charged at most once, and released once, when its client has the
 * result and no worker has it.
 */
#ifndef DAEMON_REQUEST_ACCOUNTING_H
#define DAEMON_REQUEST_ACCOUNTING_H

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "daemon/net/session.h"

/* The most bytes of lagand's memory that a request may take: itself, its outputs, and what is
 * undelivered. */
uint64_t accounting_max_bytes(const struct daemon *d, uint32_t model, const struct rec_submit *s,
                              uint64_t submit_bytes);
/* Count these bytes against api.memory. */
void accounting_reserve(struct daemon *d, struct request *r);
/* Charge r to the user of c and give it a fairness tag. No effect if r has ended or is charged. A
 * request of a previous lagand is charged when its client has come back. */
void accounting_charge(struct daemon *d, const struct client *c, struct request *r);
/* The facts of r's model may have changed since r was accepted: set its number of beams, if the
 * SUBMIT leaves that to the model, and correct the charge. */
void accounting_recount(struct daemon *d, struct request *r);
void accounting_release(struct daemon *d, struct request *r);

#endif
