/* clock.h - monotonic time, as durations and deadlines in nanoseconds. */
#pragma once

#include "base/base.h"

#include <time.h>

#define NSEC_US ((nsec)1000)
#define NSEC_MS ((nsec)1000000)
#define NSEC_S ((nsec)1000000000)

static inline nsec
clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (nsec)t.tv_sec * NSEC_S + t.tv_nsec;
}

/* now + duration, or NSEC_NEVER if the sum exceeds it. */
static inline nsec
clock_after(nsec now, nsec duration)
{
    return duration > NSEC_NEVER - now ? NSEC_NEVER : now + duration;
}
