/* t5_bias.h - T5's relative position buckets, expanded to one number a distance. Pure, host only. */
#ifndef ARCH_T5_BIAS_H
#define ARCH_T5_BIAS_H

#include "base/base.h"

struct t5_buckets {
    uint32_t n, max_distance; /* relative_attention_num_buckets, relative_attention_max_distance */
    bool both;                /* encoder: keys on both sides; decoder: behind the query only */
};

/* The bucket of a key that far from its query: key position less query position. */
uint32_t t5_bucket(struct t5_buckets b, int32_t distance);
/* The least distance from which on the bucket is the last one, for either sign. */
uint32_t t5_reach(struct t5_buckets b);
/* out [n_heads][2 * reach + 1], entry distance + reach; weight [n][n_heads] as stored. */
void t5_bias(float *out, const float *weight, uint32_t n_heads, struct t5_buckets b);

#endif
