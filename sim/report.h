/* report.h - prints the result of a run as a table or as JSON lines. */
#pragma once

#include "sim/fleet.h"

#include <stdio.h>

void report_use(FILE *out, bool json, uint32_t n_pools, const struct fleet_use *u);
/* seconds: real time of the run. */
void report_result(FILE *out, bool json, const struct fleet_result *r, double seconds);
