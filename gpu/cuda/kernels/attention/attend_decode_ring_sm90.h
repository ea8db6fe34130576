/* attend_decode_ring_sm90.h - decode attention of many sequences on Hopper, with TMA and wgmma. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

/* attend() of gpu.h for two segments or more. Either (1) all segments have one row
 * (r.n_single_token == r.n_segments), or (2) all segments have at most eight rows (r.longest), each
 * row sees all keys of its segment, there is no bias, and there is one head per K/V head.
 *
 *    layout   paged; no mask, kept keys (a->kept) or K and V to store; blocks of 8 tokens or more
 *    head_dim 64, 128, 256
 *    dtype    q, out and cache of one dtype, bf16 or fp16; rows of q and out 16-byte aligned
 *    lane     fewer than 96 SMs, not invariant
 *
 * Refuses everything else. Numerics, use of l->work and l->count, and cost: attend_decode_sm90.h.
 * Times: docs/lab/kernels.md. */
K_API k_attend_kernel k_attend_decode_ring_sm90;
