/* histograms.c - see histograms.h. */
#include "daemon/ledger/histograms.h"

static const int64_t TIME_UNIT = NSEC_MS / 10;

const struct histogram_info histogram_infos[N_HISTOGRAMS] = {
#define X(name, unit, sentence) { #name, sentence, HISTOGRAM_##unit },
    HISTOGRAMS(X)
#undef X
};

static const uint32_t limits[HISTOGRAM_BUCKETS] = {
    1,    2,     5,     10,    20,     50,     100,    200,     500,     1000,    2000,
    5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000,
};

uint64_t
histogram_limit(uint32_t i)
{
    return limits[i];
}

void
histogram_add(struct daemon *d, uint32_t model, enum histogram_id id, int64_t value)
{
    struct histogram *h;
    uint64_t v = (uint64_t)MAX(value, INT64_C(0));
    uint64_t unit = histogram_infos[id].unit == HISTOGRAM_TIME ? TIME_UNIT : 1;
    uint32_t i = 0;

    if (!d->histograms) return; /* in tests without a loop */
    h = &d->histograms->of[model][id];
    while (i < HISTOGRAM_BUCKETS && v > limits[i] * unit) i++;
    h->bucket[i]++;
    h->n++;
    h->sum += v;
}
