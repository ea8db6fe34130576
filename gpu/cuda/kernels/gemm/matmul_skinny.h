/* matmul_skinny.h - y = x w^T for up to 32 rows: reads the weights once, at memory bandwidth. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

enum { MATMUL_SMALL_ROWS = 32 };

/* matmul() of gpu.h. Refuses invariant lanes and everything outside of:
 *
 *    x [M, K], w [N, K]   both bf16 or both fp16, rows 16-byte aligned, K a multiple of 8
 *    M                    at most MATMUL_SMALL_ROWS; at most 16 if N is above 4,096, or if K is
 *                         above 2,048 and N is at most 16 per SM
 *    y, bias              y of x's dtype or fp32, any stride; bias of any float dtype
 *
 * A row's bits depend on that row and w only: not on M, the row's position, or the lane's SMs. They
 * differ from those of other candidates. Sums in fp32, rounded once, after bias and beta y. Cost:
 * reads w once, and x once per 16 or 32 rows of w, from L2. */
K_API k_matmul_kernel k_matmul_skinny;

/* act_matmul() of gpu.h for the shapes of k_matmul_skinny(); rounded once, after act. */
K_API k_act_matmul_kernel k_act_matmul_skinny;
/* gate_matmul() of gpu.h for the shapes of k_matmul_skinny(). Leaves the argument `both` (the
 * product before the gate) unwritten; only y is rounded. */
K_API k_gate_matmul_kernel k_gate_matmul_skinny;
