/* attend_decode_sm90.h - decode attention on Hopper; lanes with fewer than 96 SMs try
 * attend_decode_ring_sm90 first. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

/* attend() of gpu.h for segments that all have one row (r.n_single_token == r.n_segments). Also for
 * segments that all have at most eight rows (r.longest), if each row sees all keys of its segment,
 * there is no bias, and there is one head per K/V head: beams over their encoder input.
 *
 *    layout   paged; no mask; no kept keys (attend.kept); blocks of 16 tokens or more; K and V to
 *             store (a->k, a->v) with one segment only
 *    head_dim 64, 128; 128 only if there are at most as many units (segment, K/V head, group of
 *             up to 8 heads) as SMs, because attend_sm80 is faster for more
 *    dtype    q, out and cache of one dtype, bf16 or fp16; rows 16-byte aligned
 *    lane     not invariant, because sums start where a thread block's share of the keys starts
 *
 * Refuses everything else. The same input gives the same bits. Scores, softmax and sums are fp32;
 * weights are rounded to the dtype before the product with V (their sum is not); out is rounded
 * once. Parts of a cache block that no row sees may hold anything, NaN included.
 *
 * Uses l->work for partial results when several thread blocks share a unit, two per block, and
 * l->count to find the last block; refuses if either is too small. Cost: reads K and V once per
 * unit; docs/lab/serving.md has times. */
K_API k_attend_kernel k_attend_decode_sm90;
