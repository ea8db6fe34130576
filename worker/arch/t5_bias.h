/* t5_bias.h - T5's relative position buckets, expanded to one bias per distance, on the host. */
#pragma once

#include "base/base.h"

struct t5_buckets {
    uint32_t n, max_distance; /* relative_attention_num_buckets, relative_attention_max_distance */
    bool both;                /* encoder: keys before and after the query; decoder: before only */
};

/* distance: key position - query position. */
uint32_t t5_bucket(struct t5_buckets b, int32_t distance);
/* The smallest distance, of either sign, in the last bucket. */
uint32_t t5_reach(struct t5_buckets b);
/* Sets out[n_heads][2 * reach + 1], entry distance + reach, from weight[n][n_heads] of the
 * checkpoint. */
void t5_bias(float *out, const float *weight, uint32_t n_heads, struct t5_buckets b);
