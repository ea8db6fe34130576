/* experts.h - y = x w[expert]^T for pairs sorted by expert: expert_matmul of gpu.h. */
#ifndef KERNELS_MOE_EXPERTS_H
#define KERNELS_MOE_EXPERTS_H

#include "gpu/cuda/kernels/base/kernel.h"

/* Any float dtype of x and w, and MXFP4 beside any x; exact fp32 arithmetic, one rounding at the
 * end. A pair's bits depend on its row and its expert alone. Cost: no tensor cores. */
K_API cudaError_t k_experts_generic(const struct k_launch *l, const struct expert_matmul *m,
                                    const struct pairs *p);

/* x bf16 or fp16 with w of that dtype, or x bf16 with MXFP4, whose values are exact there; K a
 * multiple of 32; rows of x and w on 16 bytes. Sums in fp32 on the tensor cores of sm_80 and up,
 * one rounding. A pair's bits depend on its row and its expert alone, in any company. Weights are
 * expanded in registers. Cost: each expert's weights are read once for 8 to 64 of its pairs, from
 * L2 beyond that. */
K_API cudaError_t k_experts_sm80(const struct k_launch *l, const struct expert_matmul *m,
                                 const struct pairs *p);

#endif
