/* attend_sm80.h - attention on the tensor cores of sm_80 and later: decode, prefill, encoders. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

/* attend() of gpu.h with all variants, except that paged K and V must already be stored. Kept keys
 * (attend.kept) cost their own tiles only, not those up to the window.
 *
 *    head_dim   64, 128, 256
 *    q, out     bf16 or fp16, rows 4-byte aligned
 *    k, v, kv   q's dtype (kv: or fp8), rows 16-byte aligned; k and v with equal strides
 *
 * Segments [0, r.n_single_token) have one row each: one kernel divides their keys evenly among the
 * SMs. A second kernel computes the other segments and divides their rows: a thread block has 64
 * packed rows (32 with heads of 256; attend_sm80_schedule.cuh) and all their keys.
 *
 * Scores, softmax and sums are fp32; weights are rounded to the dtype before the product with V
 * (and summed after rounding); out is rounded once. The same input gives the same bits. With
 * l->invariant both kernels compute in the same order for every grid: a row's bits depend on its
 * visible keys only, in any chunk and batch, with any block size. Otherwise the last bits depend on
 * where a thread block's share of the keys starts.
 *
 * Uses l->work for partial results when several SMs share a (segment, K/V head): two per thread
 * block, with l->invariant one per 256 keys of 16 packed rows; l->count to find the last block. If
 * either is too small, one SM computes a whole (segment, K/V head). Cost: reads K and V once per
 * (segment, K/V head, 16 packed rows); in longer segments once per thread block. One H200, bf16,
 * heads of 128, 4 per K/V head, GB/s of K and V: 64 sequences of 4k keys 4,300, 256 x 1k 4,200, 8 x
 * 4k 3,200; 1 x 1k takes 10.5 us. Prefill of 4k tokens: 171 TFLOP/s. */
K_API k_attend_kernel k_attend_sm80;
