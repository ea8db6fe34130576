/* report.h - what a run came to, as a table for people or JSON lines for programs. */
#ifndef SIM_REPORT_H
#define SIM_REPORT_H

#include "sim/fleet.h"

#include <stdio.h>

void report_use(FILE *out, bool json, uint32_t n_pools, const struct fleet_use *u);
/* seconds: of our time, that it took. */
void report_result(FILE *out, bool json, const struct fleet_result *r, double seconds);

#endif
