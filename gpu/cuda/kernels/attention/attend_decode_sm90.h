/* attend_decode_sm90.h - decode attention on Hopper; on fewer than 96 SMs attend_decode_ring_sm90
 * comes first. */
#pragma once

#include "gpu/cuda/kernels/base/kernel.h"

/* attend() of gpu.h for segments that all have one row (r.n_single_token == r.n_segments), or that
 * all have at most eight rows (r.longest), see all keys, have no bias, and have one head per K/V
 * head: beams over their encoder input.
 *
 *    layout   paged; no mask; no kept keys; blocks of 16 tokens or more; K and V to store
 *             (a->k, a->v) with one segment only
 *    head_dim 64, 128; not 128 with more (segment, K/V head) pairs than SMs (attend_sm80 is faster)
 *    dtype    q, out and cache of one dtype, bf16 or fp16; rows 16-byte aligned
 *    lane     not invariant, because sums start where a block's share of the keys starts
 *
 * Refuses everything else. The same input gives the same bits. Scores, softmax and sums are fp32;
 * weights are rounded to the dtype before the product with V (their sum is not); out is rounded
 * once. Unseen parts of a block may hold anything, NaN included.
 *
 * Uses l->work for partial results when several blocks share a (segment, K/V head), two per block,
 * and l->count to find the last block; refuses if either is too small. Cost: reads K and V once per
 * (segment, K/V head, 8 heads that share it); docs/lab/serving.md has times. */
K_API k_attend_kernel k_attend_decode_sm90;
