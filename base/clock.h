/* clock.h - reads the monotonic clock and adds times, in nanoseconds. */
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

/* Returns now + duration; NSEC_NEVER if the sum overflows. */
static inline nsec
clock_after(nsec now, nsec duration)
{
    return duration > NSEC_NEVER - now ? NSEC_NEVER : now + duration;
}
