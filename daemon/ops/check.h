/* check.h - lagand --check: finds what would make a start fail, without a start.
 *
 * The check runs as root for the service, too: as the user of lagand.service, whose rights count.
 * A running lagand checks the installed program and the present files in this way (preflight.h). */
#pragma once
#include "daemon/config/options.h"

/* If root checks lagand.service, becomes the user of the unit. Returns true if the configuration
 * must be read again with the rights of that user. Adds errors of the unit to *p. */
bool check_become_service(const struct config *c, struct problems *p);

/* Adds to *p what config_read() cannot find: models that lagan-worker --inspect refuses (files,
 * options, device, memory), models that together need too much memory (memory_sum.h), an api.tcp
 * that cannot be bound, an unusable runtime directory. */
void check_start(struct config *c, struct problems *p);
/* At the start of lagand: adds an error to *p if several models on the CPU can never fit together.
 * Each worker checks its own model. No effect if a previous lagand has left its ledger, because its
 * start has checked the memory. */
void check_memory(struct config *c, struct problems *p);
