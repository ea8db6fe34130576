/* matmul_skinny_invariant.h - y = x w^T for up to 16 rows, with the bits of a matmul of many
 * rows. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

enum { MATMUL_LINE_ROWS = 16, MATMUL_LINE_WARPS = 4 };

/* Computes y = x w^T. Refuses everything outside of:
 *
 *    x [M, K], w [N, K]   both bf16 or both fp16, rows 16-byte aligned, K a multiple of 16
 *    M, N                 M at most MATMUL_LINE_ROWS, N at most 16 MATMUL_LINE_WARPS per SM
 *    y                    of x's dtype or fp32, any stride
 *
 * A sum adds K in order, 16 elements per instruction, in one accumulator, and is rounded once. It
 * therefore equals the sums of cuBLASLt algorithms that do the same (cuda_blas.c selects them).
 * Cost: reads w once, and x once per 16 rows of w, from L2. */
K_API cudaError_t k_matmul_skinny_invariant(const struct k_launch *l, struct tensor y,
                                            struct tensor x, struct tensor w);
