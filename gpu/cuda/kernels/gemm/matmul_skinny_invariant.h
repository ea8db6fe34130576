/* matmul_skinny_invariant.h - y = x w^T for a handful of rows, every sum in the order of K: the
 * bits of a matmul of many rows. */
#ifndef KERNELS_GEMM_MATMUL_SKINNY_INVARIANT_H
#define KERNELS_GEMM_MATMUL_SKINNY_INVARIANT_H

#include "gpu/cuda/kernels/base/kernel.h"

enum { MATMUL_LINE_ROWS = 16, MATMUL_LINE_WARPS = 4 };

/* For x [M, K] and w [N, K] both bf16 or both fp16, rows 16-byte aligned, K a multiple of 16, M at
 * most MATMUL_LINE_ROWS, N at most 16 MATMUL_LINE_WARPS a SM of the lane; y of x's dtype or fp32,
 * any stride. A sum takes K in order, sixteen elements an instruction, in one accumulator, and is
 * rounded once: so it has the bits of those of cuBLASLt's algorithms that do so too (cuda_blas.c
 * knows which). Cost: reads w once, and x once for every 16 rows of w, from L2. */
K_API cudaError_t k_matmul_skinny_invariant(const struct k_launch *l, struct tensor y,
                                            struct tensor x, struct tensor w);

#endif
