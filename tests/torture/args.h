/* args.h - how long a torture lasts, on its command line: so that parts of it may run beside each other.
 *
 *     test_kill --kills 100000 --seed 7 'no_kill_of_a_worker_loses*'
 *
 * is one part of a million. Without options it is as long as `make check` can wait for.
 */
#ifndef TESTS_TORTURE_ARGS_H
#define TESTS_TORTURE_ARGS_H

#include "base/base.h"

struct torture_arg {
    const char *name; /* --name N; the last one's is NULL */
    uint32_t *value;  /* holds what it is without */
};

extern const char *torture_device; /* of real workers */

/* --device D, --seed S, --seconds N and the test's name, which may hold *, are every program's. Ends the program with
 * a line of help when it is called in another way. */
void torture_args(int argc, char **argv, const struct torture_arg *arg);

/* Is there more to do? Not once the seconds are over. Says now and then how far it is. */
bool torture_more(const char *what, uint32_t done, uint32_t all);

#endif
