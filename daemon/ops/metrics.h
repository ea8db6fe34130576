/* metrics.h - prints counters and gauges in Prometheus format: `laganctl metrics`. */
#pragma once

#include "daemon/daemon.h"

#include <stdio.h>

void metrics_print(struct daemon *d, FILE *out);
