/* scenario_run.h - runs a scenario and compares its output with the expected lines.
 *
 * Every command prints lines; `lagan-sim script --help` lists the commands. Differences are printed
 * as missing lines (-) and unexpected lines (+).
 */
#pragma once

#include "sim/scenario.h"

#include <stdio.h>

/* 0: all output as expected. 1: differences, printed to out. Negative: the scenario is invalid. */
int script_run(const struct script *s, FILE *out, struct err *e) MUST_USE;
void script_print_commands(FILE *out);
