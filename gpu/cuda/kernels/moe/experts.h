/* experts.h - expert_matmul of gpu.h: y = x w[expert]^T for sorted (row, expert) pairs. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

/* Takes any float dtype of x and w, and MXFP4 w with any x. Exact fp32 arithmetic, rounded once. A
 * pair's bits depend on its row and its expert only. Cost: no tensor cores. */
K_API k_expert_matmul_kernel k_experts_generic;

/* Takes x bf16 or fp16 with w of that dtype, or x bf16 with MXFP4, whose values bf16 represents
 * exactly; K a multiple of 32; rows of x and w 16-byte aligned. Sums in fp32 on the tensor cores of
 * sm_80 and later, rounded once. A pair's bits depend on its row and its expert only. Weights are
 * expanded in registers. Cost: reads each expert's weights once per 8 to 64 of its pairs, after the
 * first time from L2. */
K_API k_expert_matmul_kernel k_experts_sm80;
