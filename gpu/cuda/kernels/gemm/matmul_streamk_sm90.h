/* matmul_streamk_sm90.h - y = x w^T for some rows on a part of Hopper: the weights go by once, cut
 * evenly among its SMs. */
#ifndef KERNELS_GEMM_MATMUL_STREAMK_SM90_H
#define KERNELS_GEMM_MATMUL_STREAMK_SM90_H

#include "gpu/cuda/kernels/base/kernel.h"

enum { MATMUL_RING_ROWS = 64 };

/* gpu.h matmul() for x [M, K] and w [N, K] both bf16 or both fp16, rows 16-byte aligned, K a
 * multiple of 8, N of 4, M 17 to MATMUL_RING_ROWS on a lane that has a part of the device, 9 and
 * more on one of fewer than 96 SMs; y of x's dtype or fp32 with rows where four elements begin; no
 * bias, no beta. Refused where w has at most 4 M elements and M is at most 32.
 *
 * A sum is cut into parts of K, each added in its order; these are added in their order, in fp32,
 * and rounded once. Where it is cut follows from N, K and the lane's SMs, so a row's bits do not
 * depend on M or its place; an invariant lane is refused.
 *
 * Takes l->work for sums of tiles that several blocks share, two a block, and l->count for who is
 * last; with too little of either it refuses. Cost: reads w once, and x once for every 128 or 256
 * rows of w, from L2; docs/perf-kernels.md has times. */
K_API cudaError_t k_matmul_streamk_sm90(const struct k_launch *l, struct tensor y, struct tensor x,
                                        struct tensor w, struct tensor bias, float beta);

/* gpu.h gate_matmul() under the same conditions, N a multiple of 8; both is not touched, and
 * nothing is rounded before the product. */
K_API cudaError_t k_gate_matmul_streamk_sm90(const struct k_launch *l, struct tensor y,
                                             struct tensor both, struct tensor x, struct tensor w,
                                             enum act a);

#endif
