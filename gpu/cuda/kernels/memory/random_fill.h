/* random_fill.h - fills a tensor with normal numbers from a seed and each element's index, with the
 * bits of cpu_fill.c; see gpu/ops.h.
 *
 *   t    [n, d] fp32, bf16, fp16, or bytes, any stride; (i, j) has number first + i * pitch + j
 *
 * Source: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, SC11); Box and Muller, 1958. Logarithm,
 * sine and cosine repeat cpu_math.h operation by operation. Cost: about 60 operations per element.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

K_API k_fill_random_kernel k_fill_random;
