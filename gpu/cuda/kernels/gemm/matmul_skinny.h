/* matmul_skinny.h - y = x w^T for a handful of rows: the weights go by once, as fast as memory
 * gives them. */
#ifndef KERNELS_GEMM_MATMUL_SKINNY_H
#define KERNELS_GEMM_MATMUL_SKINNY_H

#include "gpu/cuda/kernels/base/kernel.h"

enum { MATMUL_SMALL_ROWS = 32 };

/* gpu.h matmul() for x [M, K] and w [N, K] both bf16 or both fp16, rows 16-byte aligned, K a
 * multiple of 8, M at most MATMUL_SMALL_ROWS, but 16 where N is beyond 4,096, or K beyond 2,048 and
 * half of the SMs would have no tile; y of x's dtype or fp32, any stride; bias of y's or w's dtype
 * or fp32.
 *
 * A row's bits depend on that row and w alone: not on M, its place, or the lane's SMs. They are not
 * those of another candidate, so an invariant lane is refused. Sums in fp32, one rounding at the
 * end, after bias and beta y. Cost: reads w once, and x once for every 16 to 64 rows of w, from L2.
 */
K_API cudaError_t k_matmul_skinny(const struct k_launch *l, struct tensor y, struct tensor x,
                                  struct tensor w, struct tensor bias, float beta);

/* gpu.h act_matmul() under the same conditions, rounded once, after act. */
K_API cudaError_t k_act_matmul_skinny(const struct k_launch *l, struct tensor y, struct tensor x,
                                      struct tensor w, struct tensor bias, enum act a);
/* gpu.h gate_matmul() under the same conditions; both is not touched, and nothing is rounded before
 * the product. */
K_API cudaError_t k_gate_matmul_skinny(const struct k_launch *l, struct tensor y,
                                       struct tensor both, struct tensor x, struct tensor w,
                                       enum act a);

#endif
