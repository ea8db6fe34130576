/* scenario_run.h - a scenario acted out: its commands run, and what they print held against the script.
 *
 * Every command prints lines; `lagan-sim script --help` lists them with their sentences. What differs is
 * told as lines that are missing (-) and lines that came instead (+).
 */
#ifndef SIM_SCENARIO_RUN_H
#define SIM_SCENARIO_RUN_H

#include "sim/scenario.h"

#include <stdio.h>

/* 0: all as the script has it. 1: not; what differs is on out. -EINVAL, ...: the script is wrong. */
int play_script(const struct script *s, FILE *out, struct err *e) MUST_USE;
void play_help(FILE *out);

#endif
