/* commands.h - CALL: everything a client may ask for but generate. The table is in commands.c. */
#ifndef DAEMON_OPS_COMMANDS_H
#define DAEMON_OPS_COMMANDS_H

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/net/session.h"
#include "wire/msg.h"

void command_call(struct daemon *d, struct client *c, const struct msg *m);
/* "starting", "ready", "degraded", "draining": of the service as a whole. */
const char *command_state(const struct daemon *d);

#endif
