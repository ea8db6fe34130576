/* rope_table.h - cos and sin of every position, computed once on the host.
 *
 * Frequencies and angles are rounded to fp32 where transformers rounds them, so that both have the
 * same error at position 100,000. Source: modeling_rope_utils.py of transformers 5.17.
 */
#pragma once

#include "base/base.h"
#include "worker/model/config.h"

/* Returns the number of dims of a head that rotate (even, at most head_dim), the row length of the
 * table. 0: p->partial is too small. */
uint32_t rope_dim(const struct rope_params *p, uint32_t head_dim);

/* Sets inv_freq[rope_dim / 2]. Returns the factor of cos and sin. */
float rope_frequencies(const struct rope_params *p, uint32_t head_dim, float *inv_freq);

/* out [n_positions, rope_dim]: rope_dim / 2 cosines, then rope_dim / 2 sines. */
void rope_table(const struct rope_params *p, uint32_t head_dim, uint32_t n_positions, float *out);
