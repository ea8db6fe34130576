/* histogram.c - a histogram with logarithmic buckets: see histogram.h. */
#include "sim/histogram.h"

static uint32_t
bucket_of(uint64_t t)
{
    uint32_t power;

    if (t < HIST_STEPS) return (uint32_t)t;
    power = 63 - (uint32_t)__builtin_clzll(t); /* 6 and up */
    return (power - 5) * HIST_STEPS + (uint32_t)(t >> (power - 6) & (HIST_STEPS - 1));
}

/* Returns the middle of the range of durations that bucket b counts. */
static nsec
bucket_time(uint32_t b)
{
    uint32_t power = b / HIST_STEPS + 5;

    if (b < HIST_STEPS) return b;
    return (nsec)(((uint64_t)HIST_STEPS + b % HIST_STEPS) << (power - 6)) +
           (nsec)((UINT64_C(1) << (power - 6)) / 2);
}

void
hist_add(struct hist *h, nsec t, uint64_t times)
{
    if (t < 0) t = 0;
    h->bucket[bucket_of((uint64_t)t)] += times;
    h->n += times;
    h->sum += (double)t * (double)times;
    h->max = MAX(h->max, t);
}

nsec
hist_at(const struct hist *h, double q)
{
    uint64_t below = 0, want = (uint64_t)(q * (double)h->n + 0.5);

    want = MAX(want, UINT64_C(1));
    for (uint32_t b = 0; b < HIST_BUCKETS; b++) {
        below += h->bucket[b];
        if (below >= want) return MIN(bucket_time(b), h->max);
    }
    return 0;
}

double
hist_mean(const struct hist *h)
{
    return h->n ? h->sum / (double)h->n : 0;
}
