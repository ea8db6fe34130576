/* args.h - command line that sets how long a torture test lasts, so that parts can run in parallel.
 *
 *     test_kill --kills 100000 --seed 7 'killed_worker_loses*'
 *
 * is one part of a million kills. Without options a test is as long as `make check` allows.
 */
#pragma once
#include "base/base.h"

struct torture_arg {
    const char *name; /* --name N; the last entry has NULL */
    uint32_t *value;  /* initialized with the default */
};

extern const char *torture_device; /* device of real workers */

/* Every program has --device D, --seed S, --seconds N and a test name, which may contain *. Other
 * arguments end the program with a usage line. */
void torture_args(int argc, char **argv, const struct torture_arg *arg);

/* Returns true while more is to be done and --seconds have not passed. Prints progress every 60
 * s. */
bool torture_more(const char *what, uint32_t done, uint32_t all);
