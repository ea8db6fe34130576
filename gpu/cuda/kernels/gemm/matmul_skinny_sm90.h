/* matmul_skinny_sm90.h - y = x w^T for up to 64 rows on Hopper: reads w once. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

enum { MATMUL_SM90_ROWS = 64 };

/* matmul() of gpu.h. Refuses everything outside of:
 *
 *    x [M, K], w [N, K]   both bf16 or both fp16, rows 16-byte aligned, K a multiple of 8, N of 4
 *    M                    33 (1 if w has more than 4 Mi elements) to MATMUL_SM90_ROWS
 *    y                    of x's dtype or fp32, rows aligned to four elements; no bias, no beta
 *    N                    at most one tile of w (128 or 256 rows) per SM; with up to eight thread
 *                         blocks per tile at least a quarter of the SMs have work
 *    lane                 whole device, not invariant
 *
 * A sum is divided into as many parts of K as a cluster has blocks, each added in the order of K;
 * the parts are added in order, in fp32, and rounded once. The division follows from N, K and the
 * device, so that a row's bits do not depend on M or the row's position. Cost: reads w once, and x
 * once per 128 or 256 rows of w, from L2. */
K_API k_matmul_kernel k_matmul_skinny_sm90;

/* gate_matmul() of gpu.h, under the conditions of k_matmul_skinny_sm90(). Leaves the argument
 * `both` (the product before the gate) unwritten; only y is rounded. */
K_API k_gate_matmul_kernel k_gate_matmul_skinny_sm90;
