/* cpu_starvation.h - measures how long a process was runnable but got no processor.
 *
 * A worker without a heartbeat for 3 s counts as hung. On an overloaded host a worker may get 1 %
 * of a processor; lagand subtracts the starvation from the silence. A stopped, sleeping or spinning
 * process is not starved. */
#pragma once
#include "base/clock.h"

#include <sys/types.h>

struct cpu_starvation { /* all zero: no measurement yet */
    nsec at;            /* time of the last call; 0: no call yet */
    nsec ran, queued;   /* of all threads, at time `at`: processor time, run queue time */
};

/* Returns the nanoseconds in which process pid was starved since the last call, at most 90 % of
 * that interval, so that a starved worker still times out. Returns 0 at the first call and if there
 * is no such process. Reads 2 files of /proc for each thread. */
nsec cpu_starvation_since(struct cpu_starvation *s, pid_t pid, nsec now);
