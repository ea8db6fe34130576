/* accounting.h - counts open requests for their user's limits, the fair queue and api.memory.
 *
 * The memory of each request is reserved once; the request and its tokens are charged to its user
 * and to the fair queue at most once. Reservation and charge are released when the client has the
 * result and no worker has the request. */
#pragma once
#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "daemon/net/session.h"

/* Returns an upper bound of the memory of a request in lagand, in bytes: its SUBMIT record of
 * submit_bytes, its outputs and undelivered data. */
uint64_t accounting_max_bytes(const struct daemon *d, uint32_t model, const struct rec_submit *s,
                              uint64_t submit_bytes);
/* Counts accounting_max_bytes() of r against api.memory. */
void accounting_reserve(struct daemon *d, struct request *r);
/* Charges r to the user of c and gives r a fairness tag. No effect if r has ended or is charged. A
 * request of a previous lagand is charged when its client reconnects. */
void accounting_charge(struct daemon *d, const struct client *c, struct request *r);
/* If the SUBMIT of r leaves the number of beams to the model: sets it from the model's facts, which
 * may have been unknown at the ACCEPT, and corrects the charge. */
void accounting_recount(struct daemon *d, struct request *r);
void accounting_release(struct daemon *d, struct request *r); /* undoes reserve and charge */
