/* attend_mma.h - attention on the tensor cores of sm_80 and up: generation, prefill, encoders. */
#ifndef CUDA_KERNELS_ATTEND_MMA_H
#define CUDA_KERNELS_ATTEND_MMA_H

#include "gpu/cuda/kernels/kernel.h"

/* gpu.h's attend, all of it, for
 *
 *   head_dim  64, 128, 256
 *   q, out    bf16 or fp16, rows 4-byte aligned
 *   k, v, kv  of the same dtype, rows 16-byte aligned; k and v with the same stride
 *
 * Runs [0, r.n_single) go to a kernel that shares out their keys evenly over the SMs, the others to one
 * that shares out rows. Both do the same arithmetic in the same order, whatever the grid, so that a
 * row's bits depend on its visible keys alone: the same in either kernel, in any chunk and company, with
 * any block size. Scores, softmax and sums are fp32, weights are rounded to the dtype before they meet V
 * (their sum is that of the rounded ones), out is rounded once.
 *
 * Takes l->work for the partial results of runs that several SMs share, l->count for who is last. Too
 * little work memory, or more runs times K/V heads than counters: whole (run, K/V head)s an SM.
 * Cost: reads K and V once a (run, K/V head, 16 packed rows); numbers in docs/perf.md. */
K_API cudaError_t k_attend_mma(const struct k_lane *l, const struct attend *a, struct rows r);

#endif
