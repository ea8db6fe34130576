/* altup.h - ops of Gemma 3n and 4: mul, gaussian_topk, match_rms, altup; see gpu.h.
 *
 *   tensors    fp32, bf16 or fp16 where gpu.h does not require fp32; any strides
 *
 * Arithmetic in fp32, rounded once. Sums over a row have one fixed order, so that a row's bits do
 * not depend on other rows. Cost: mul and altup read and write each byte once; gaussian_topk reads
 * a row three times, match_rms twice.
 */
#pragma once

#include "gpu/cuda/kernels/base/kernel.h"

K_API cudaError_t k_mul(const struct k_launch *l, struct tensor y, struct tensor x,
                        struct tensor w);
K_API cudaError_t k_gaussian_topk(const struct k_launch *l, struct tensor x, float factor);
K_API cudaError_t k_match_rms(const struct k_launch *l, struct tensor y, struct tensor like,
                              float least);
K_API cudaError_t k_altup(const struct k_launch *l, const struct altup *a);
