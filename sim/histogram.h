/* histogram.h - a histogram of durations with a relative error of 1 %. */
#pragma once
#include "base/base.h"

enum { HIST_STEPS = 64, HIST_BUCKETS = 64 * HIST_STEPS }; /* 64 buckets per power of two */

struct hist {
    uint64_t n, bucket[HIST_BUCKETS];
    double sum;
    nsec max;
};

void hist_add(struct hist *h, nsec t, uint64_t times);
/* Returns quantile q (0 .. 1) of the durations; 0 for an empty histogram. */
nsec hist_at(const struct hist *h, double q);
double hist_mean(const struct hist *h);
