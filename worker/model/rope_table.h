/* rope_table.h - computes the table of cos and sin for rotary position embedding on the host.
 *
 * A table has one row for each position: a cosine and a sine for each pair of dims that rotates.
 * Frequencies and angles are rounded to fp32 where transformers rounds them, so that both have the
 * same error at position 100,000. Source: modeling_rope_utils.py of transformers 5.17. */
#pragma once
#include "base/base.h"
#include "worker/model/config.h"

/* Returns the number of dims of a head that the table covers (even, at most head_dim), which is its
 * row length. 0: p->partial is too small. */
uint32_t rope_dim(const struct rope_params *p, uint32_t head_dim);

/* Sets inv_freq[rope_dim() / 2], the angles at position 1. n_positions: positions that the model
 * serves; LONGROPE depends on it. p->n_divisors of LONGROPE must be rope_dim() / 2. Returns the
 * factor of cos and sin. */
float rope_frequencies(const struct rope_params *p, uint32_t head_dim, uint32_t n_positions,
                       float *inv_freq);

/* Fills out[n_positions][rope_dim()]; a row is rope_dim() / 2 cosines, then as many sines. */
void rope_table(const struct rope_params *p, uint32_t head_dim, uint32_t n_positions, float *out);
