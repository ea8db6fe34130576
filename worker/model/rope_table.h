/* rope_table.h - cos and sin of every position, made once on the host.
 *
 * Frequencies and angles are rounded to fp32 where transformers rounds them, so that at position 100,000
 * we are wrong by the same amount. Source: modeling_rope_utils.py of transformers 5.17.
 */
#ifndef MODEL_ROPE_TABLE_H
#define MODEL_ROPE_TABLE_H

#include "base/base.h"
#include "worker/model/config.h"

/* How many dims of a head rotate: even, at most head_dim; the table's row length. 0: the share in p
 * leaves none. */
uint32_t rope_dim(const struct rope_params *p, uint32_t head_dim);

/* inv_freq[rope_dim / 2], and what cos and sin are multiplied by. */
float rope_frequencies(const struct rope_params *p, uint32_t head_dim, float *inv_freq);

/* out [n_positions, rope_dim]: row = position, first rope_dim / 2 cosines, then as many sines. */
void rope_table(const struct rope_params *p, uint32_t head_dim, uint32_t n_positions, float *out);

#endif
