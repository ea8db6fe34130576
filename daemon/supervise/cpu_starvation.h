/* cpu_starvation.h - how long a process was ready to run and got no processor.
 *
 * Who has not beaten for three seconds is hung, unless it could not run: on a machine that is busy
 * with others a worker may get a hundredth of a processor. Whoever is stopped, sleeps or spins is not starved.
 */
#ifndef DAEMON_SUPERVISE_CPU_STARVATION_H
#define DAEMON_SUPERVISE_CPU_STARVATION_H

#include "base/clock.h"

#include <sys/types.h>

struct cpu_starvation { /* zeroed: nothing is known */
    nsec at;            /* of the last look, 0: none */
    nsec ran, queued;
};

/* Nanoseconds of those since the last look, of the whole process: at most nine tenths of them, so that nobody is waited for
 * for ever. 0 at the first look, and of one that is not there. It reads two files of /proc for each thread. */
nsec cpu_starvation_since(struct cpu_starvation *s, pid_t pid, nsec now);

#endif
