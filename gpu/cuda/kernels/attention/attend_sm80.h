/* attend_sm80.h - attention on the tensor cores of sm_80 and up: generation, prefill, encoders. */
#ifndef KERNELS_ATTENTION_ATTEND_SM80_H
#define KERNELS_ATTENTION_ATTEND_SM80_H

#include "gpu/cuda/kernels/base/kernel.h"

/* gpu.h's attend, all of it, for the shapes below. Keys kept beside a window cost their own tiles,
 * nothing in between.
 *
 * head_dim  64, 128, 256 q, out    bf16 or fp16, rows 4-byte aligned k, v, kv  of the same dtype,
 * rows 16-byte aligned; k and v with the same stride. kv: or fp8
 *
 * Runs [0, r.n_single_token) go to a kernel that shares out their keys evenly over the SMs, the
 * others to one that shares out rows: 64 packed rows a block (32 for heads of 256), all their keys.
 *
 * Scores, softmax and sums are fp32, weights are rounded to the dtype before they meet V (their sum
 * is that of the rounded ones), out is rounded once. With l->invariant both kernels take the same
 * steps in the same order, whatever the grid: a row's bits depend on its visible keys alone, in any
 * chunk and company, with any block size. Without, the last bits depend on where shares begin. The
 * same input gives the same bits either way.
 *
 * Takes l->work for what several SMs find of one (run, K/V head): two partial results a block, with
 * l->invariant one for each 256 tokens of a head; l->count for who is last. With too little of
 * either, a (run, K/V head) stays with one SM. Cost: reads K and V once a (run, K/V head, 16 packed
 * rows); more rows, once a block. One H200, bf16, GB/s of K and V: 64 x 4k with 4 heads a K/V head
 * of 128 4,300, 256 x 1k 4,200, 8 x 4k 3,200; 1 x 1k takes 10.5 us. Prefill of 4k: 171 TFLOP/s. */
K_API cudaError_t k_attend_sm80(const struct k_launch *l, const struct attend *a,
                                struct step_tokens r);

#endif
