/* trace_run.h - lagan-sim run: runs a trace on a simulated fleet. */
#pragma once

int run_main(int argc, char **argv); /* arguments after the command; returns an exit code */
