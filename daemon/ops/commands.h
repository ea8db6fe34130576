/* commands.h - the verbs of CALL, which are the rows of LAGAN_VERBS (lagan_wire.h), and metrics. */
#pragma once

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/net/session.h"
#include "wire/msg.h"

#include <stdio.h>

void command_call(struct daemon *d, struct client *c, const struct msg *m);
/* State of the whole service: "starting", "ready", "degraded", "draining". */
const char *command_state(const struct daemon *d);

/* metrics.c: prints counters and gauges in the Prometheus text format. */
void metrics_print(struct daemon *d, FILE *out);
