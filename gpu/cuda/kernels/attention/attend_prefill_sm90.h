/* attend_prefill_sm90.h - attention of segments with many rows (prefill, encoders) on Hopper. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

/* attend() of gpu.h for segments [r.n_single_token, r.n_segments); another kernel computes the
 * others.
 *
 *    variants  all but a.mask and kept keys (a.kept); scale above 0; bias_reach at most 512;
 *              blocks of 8 tokens or more, with K and V already stored
 *    head_dim  64, 128, 256
 *    dtype     q, out and cache (or k and v) of one dtype, bf16 or fp16; rows 16-byte aligned
 *    lane      not invariant, because a segment of one row gets other bits from another kernel
 *
 * Refuses everything else, and steps with one row per segment (decode), because a thread block
 * computes 128 rows or more. S = Q K^T and the softmax are fp32, P is rounded to the input dtype, O
 * is fp32, rounded once. A row's sum runs over tiles of KEYS positions
 * (attend_prefill_sm90_tiles.h), from the last key of the row's item
 * (attend_prefill_sm90_schedule.cuh) down to the first: the same bits in any batch, but not those
 * of another kernel. Does not read a cache block that no row of the item sees. In a block that is
 * read, keys and values that no row of the item sees may hold anything, NaN included.
 *
 * Uses l->count[0..1]. Cost: 4 head_dim FLOP per (row, head, key), with keys in whole tiles;
 * docs/lab/serving.md. Source: Shah et al., FlashAttention-3, 2024: producer and consumer warps,
 * softmax concurrent with the next product, alternating warpgroups. Differs: paged by tensor maps
 * whose last dimension is the slice. */
K_API k_attend_kernel k_attend_prefill_sm90;
