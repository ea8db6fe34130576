/* fill.h - normal numbers from a seed and an element's index, the same bits as gpu/cpu/cpu_fill.c's: gpu.h.
 *
 *   t    [n, d] fp32, bf16 or fp16, any stride; element i is i = row * d + column
 *
 * Source: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, SC11); Box and Muller, 1958. The logarithm, sine
 * and cosine are cpu_math.h's, operation by operation. Cost: arithmetic, some 60 operations an element. */
#ifndef CUDA_KERNELS_FILL_H
#define CUDA_KERNELS_FILL_H

#include "gpu/cuda/kernels/kernel.h"

K_API cudaError_t k_fill_random(const struct k_lane *l, struct tensor t, uint64_t seed, float std);

#endif
