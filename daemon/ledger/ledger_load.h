/* ledger_load.h - reads records of the ledger log back into a ledger.
 *
 * The records were written by ledger_save.c of a lagand that has ended, possibly in a crash: every
 * field may have any value. An invalid record is reported and has no effect.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "daemon/ledger/ledger.h"

struct config;

/* Applies one record of n bytes, 8-aligned, to l; type: SAVED_ of ledger_save.h. c: the models that
 * are served now. -EBADMSG, -ENOMEM: the record is ignored, and e says why. */
int ledger_load_record(struct ledger *l, const struct config *c, uint16_t type, const void *data,
                       uint32_t n, struct err *e) MUST_USE;
