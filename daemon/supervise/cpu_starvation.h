/* cpu_starvation.h - how long a process was runnable and got no processor.
 *
 * A worker without a heartbeat for 3 s counts as hung. On an overloaded host a worker may get 1 %
 * of a processor; that time does not count. A stopped, sleeping or spinning process is not starved.
 */
#pragma once

#include "base/clock.h"

#include <sys/types.h>

struct cpu_starvation { /* all zero: no measurement yet */
    nsec at;            /* of the last call; 0: none */
    nsec ran, queued;
};

/* Nanoseconds of starvation of the whole process since the last call, capped at 90 % of the
 * interval so that a starved worker still times out. 0 at the first call and for a missing process.
 * Reads 2 files of /proc for each thread. */
nsec cpu_starvation_since(struct cpu_starvation *s, pid_t pid, nsec now);
