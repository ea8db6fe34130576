/* attend_prefill_sm90.h - attention of many rows a run (prefill, encoders) on Hopper. */
#ifndef KERNELS_ATTENTION_ATTEND_PREFILL_SM90_H
#define KERNELS_ATTENTION_ATTEND_PREFILL_SM90_H

#include "gpu/cuda/kernels/base/kernel.h"

/* attend() of gpu.h for runs [r.n_single_token, r.n_segments): the others are another kernel's.
 *
 * Takes head dim 64, 128, 256; q, out and the cache (or k and v) of one dtype, bf16 or fp16, with
 * rows at multiples of 16 bytes; blocks of 8 tokens or more; every variant but a.mask and keys kept
 * beside a window. Refuses the rest, steps of one row a run (generation: a block here computes 128
 * rows or more), and everything on a lane whose bits must not depend on company.
 *
 * S = Q K^T and the softmax in fp32, P rounded to the inputs' dtype, O in fp32, one rounding at the
 * end. A row's sum goes over tiles of KEYS positions (attend_prefill_sm90_tiles.h), from its tile's
 * last key down to the first: the same bits whatever rides along, but not those of another kernel.
 * Reads no block of which a tile's rows see nothing; within a block read, rows of K and V that no
 * row of the tile sees may be anything, NaN too.
 *
 * Uses l->count[0..1]. Cost: 4 head_dim FLOP a (row, head, key), of keys in whole tiles;
 * docs/perf.md. Source: Shah et al., FlashAttention-3, 2024: producer and consumer warps, softmax
 * beside the next product, warpgroups that take turns. Differs: paged by tensor maps whose last
 * dimension is the slice. */
K_API cudaError_t k_attend_prefill_sm90(const struct k_launch *l, const struct attend *a,
                                        struct step_tokens r);

#endif
