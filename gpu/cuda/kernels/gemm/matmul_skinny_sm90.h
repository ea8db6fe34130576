/* matmul_skinny_sm90.h - y = x w^T for some rows on Hopper: the weights go by once, as fast as
 * memory gives them. */
#ifndef KERNELS_GEMM_MATMUL_SKINNY_SM90_H
#define KERNELS_GEMM_MATMUL_SKINNY_SM90_H

#include "gpu/cuda/kernels/base/kernel.h"

enum { MATMUL_SM90_ROWS = 64 };

/* gpu.h matmul() for x [M, K] and w [N, K] both bf16 or both fp16, rows 16-byte aligned, K a
 * multiple of 8, N of 4, M at most MATMUL_SM90_ROWS; y of x's dtype or fp32 with rows where four
 * elements begin; no bias, no beta. Refused where the tiles of w, 128 or 256 rows each, are more
 * than there are SMs, or with eight blocks each fewer than a fourth of them; where w has at most 4
 * M elements and M is at most 32; and to a lane that has a part of the device.
 *
 * A sum is cut into as many parts as a cluster has blocks, each in the order of K; these are added
 * in their order, in fp32, and rounded once. Into how many follows from N, K and the device, so a
 * row's bits do not depend on M or its place; an invariant lane is refused. Cost: reads w once, and
 * x once for every 128 to 256 rows of w, from L2. */
K_API cudaError_t k_matmul_skinny_sm90(const struct k_launch *l, struct tensor y, struct tensor x,
                                       struct tensor w, struct tensor bias, float beta);

/* gpu.h gate_matmul() under the same conditions; both is not touched, and nothing is rounded before
 * the product. */
K_API cudaError_t k_gate_matmul_skinny_sm90(const struct k_launch *l, struct tensor y,
                                            struct tensor both, struct tensor x, struct tensor w,
                                            enum act a);

#endif
