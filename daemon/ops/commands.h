/* commands.h - executes the verbs of CALL messages (LAGAN_VERBS, lagan_wire.h); prints metrics. */
#pragma once
#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/net/session.h"
#include "wire/msg.h"

#include <stdio.h>

/* Executes CALL m of client c: sends REPLY or ERROR, or starts a command that does so later. */
void command_call(struct daemon *d, struct client *c, const struct msg *m);
/* Returns the state of the whole service: "starting", "ready", "degraded" or "draining". */
const char *command_state(const struct daemon *d);

/* In metrics.c: prints all counters and gauges in the Prometheus text format. */
void metrics_print(struct daemon *d, FILE *out);
