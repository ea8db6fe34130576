/* t5_bias.h - T5's relative position biases: expands one bias per bucket to one per distance. */
#pragma once
#include "base/base.h"

struct t5_buckets {
    uint32_t n, max_distance; /* relative_attention_num_buckets, relative_attention_max_distance */
    bool both;                /* encoder: keys before and after the query; decoder: before only */
};

/* Returns the bucket of a distance, which is key position - query position. */
uint32_t t5_bucket(struct t5_buckets b, int32_t distance);
/* Returns the smallest distance, of either sign, in the last bucket, which has all larger ones. */
uint32_t t5_reach(struct t5_buckets b);
/* Sets out[n_heads][2 * reach + 1] to the bias of each distance from -reach to reach. weight: the
 * biases of the buckets, [n][n_heads], in the checkpoint. */
void t5_bias(float *out, const float *weight, uint32_t n_heads, struct t5_buckets b);
