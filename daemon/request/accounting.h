/* accounting.h - counts open requests against their user's limits, their model's fair queue and
 * api.memory.
 *
 * Each request is reserved once, charged at most once, and released once: when its client has the
 * result and no worker has it.
 */
#pragma once

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "daemon/net/session.h"

/* Upper bound of the bytes of a request in lagand: SUBMIT, outputs and undelivered data. */
uint64_t accounting_max_bytes(const struct daemon *d, uint32_t model, const struct rec_submit *s,
                              uint64_t submit_bytes);
/* Counts these bytes against api.memory. */
void accounting_reserve(struct daemon *d, struct request *r);
/* Charges r to the user of c and gives it a fairness tag. No effect if r has ended or is charged. A
 * request of a previous lagand is charged when its client reconnects. */
void accounting_charge(struct daemon *d, const struct client *c, struct request *r);
/* Corrects the charge after the facts of r's model have changed, and sets the number of beams if
 * the SUBMIT leaves it to the model. */
void accounting_recount(struct daemon *d, struct request *r);
void accounting_release(struct daemon *d, struct request *r);
