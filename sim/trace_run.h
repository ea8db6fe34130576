/* trace_run.h - lagan-sim run: runs a trace on a simulated fleet. */
#ifndef SIM_TRACE_RUN_H
#define SIM_TRACE_RUN_H

int run_main(int argc, char **argv); /* arguments after the command; returns an exit code */

#endif
