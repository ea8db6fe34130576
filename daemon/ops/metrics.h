/* metrics.h - counters and gauges as Prometheus reads them: `laganctl metrics`. */
#ifndef DAEMON_OPS_METRICS_H
#define DAEMON_OPS_METRICS_H

#include "daemon/daemon.h"

#include <stdio.h>

void metrics_print(struct daemon *d, FILE *out);

#endif
