/* metrics.h - prints counters and gauges in Prometheus format: `laganctl metrics`. */
#ifndef DAEMON_OPS_METRICS_H
#define DAEMON_OPS_METRICS_H

#include "daemon/daemon.h"

#include <stdio.h>

void metrics_print(struct daemon *d, FILE *out);

#endif
