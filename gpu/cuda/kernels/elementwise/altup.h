/* altup.h - what Gemma 3n and 4 do to rows besides: times, sparsify, level, altup of gpu.h.
 *
 * every tensor    fp32, bf16 or fp16 where gpu.h does not say fp32; any strides
 *
 * Arithmetic in fp32, one rounding at the end; sums over a row in one fixed order, so a row's bits
 * are its own. Cost: times and altup read and write each byte once; sparsify reads a row three
 * times, level twice.
 */
#ifndef KERNELS_ELEMENTWISE_ALTUP_H
#define KERNELS_ELEMENTWISE_ALTUP_H

#include "gpu/cuda/kernels/base/kernel.h"

K_API cudaError_t k_mul(const struct k_launch *l, struct tensor y, struct tensor x,
                        struct tensor w);
K_API cudaError_t k_gaussian_topk(const struct k_launch *l, struct tensor x, float factor);
K_API cudaError_t k_match_rms(const struct k_launch *l, struct tensor y, struct tensor like,
                              float least);
K_API cudaError_t k_altup(const struct k_launch *l, const struct altup *a);

#endif
