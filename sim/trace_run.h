/* trace_run.h - lagan-sim run: a trace over a fleet. */
#ifndef SIM_TRACE_RUN_H
#define SIM_TRACE_RUN_H

int run_main(int argc, char **argv); /* behind the command; an exit code */

#endif
