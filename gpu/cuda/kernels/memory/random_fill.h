/* random_fill.h - normal numbers from a seed and an element's index, the same bits as
 * gpu/cpu/cpu_fill.c's: gpu.h.
 *
 * t    [n, d] fp32, bf16, fp16, or bytes, any stride; element (i, j) is number first + i * pitch +
 * j
 *
 * Source: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, SC11); Box and Muller, 1958. The
 * logarithm, sine and cosine are cpu_math.h's, operation by operation. Cost: arithmetic, some 60
 * operations an element.
 */
#ifndef KERNELS_MEMORY_RANDOM_FILL_H
#define KERNELS_MEMORY_RANDOM_FILL_H

#include "gpu/cuda/kernels/base/kernel.h"

K_API cudaError_t k_fill_random(const struct k_launch *l, struct tensor t, uint64_t seed,
                                uint64_t first, uint64_t pitch, float std);

#endif
