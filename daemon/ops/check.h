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
 * options, device, memory), an api.tcp that cannot be bound, an unusable runtime directory. */
void check_start(struct config *c, struct problems *p);
