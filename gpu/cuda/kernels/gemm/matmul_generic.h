/* matmul_generic.h - y = x w^T for every float dtype, stride and alignment: simple, and the second
 * opinion. */
#ifndef KERNELS_GEMM_MATMUL_GENERIC_H
#define KERNELS_GEMM_MATMUL_GENERIC_H

#include "gpu/cuda/kernels/base/kernel.h"

/* gpu.h matmul(); x, w, bias and y may each be fp32, bf16 or fp16. Exact fp32 arithmetic (no TF32),
 * sums over K in a fixed order: a row's bits depend on that row and w alone. One rounding at the
 * end. Cost: no tensor cores; a tenth or so of the fp32 rate. */
K_API cudaError_t k_matmul_generic(const struct k_launch *l, struct tensor y, struct tensor x,
                                   struct tensor w, struct tensor bias, float beta);
/* gpu.h act_matmul(): the product, rounded to y's dtype, then act. */
K_API cudaError_t k_act_matmul_generic(const struct k_launch *l, struct tensor y, struct tensor x,
                                       struct tensor w, struct tensor bias, enum act a);
/* gpu.h gate_matmul(): both = x w^T, rounded to its dtype, then gate. */
K_API cudaError_t k_gate_matmul_generic(const struct k_launch *l, struct tensor y,
                                        struct tensor both, struct tensor x, struct tensor w,
                                        enum act a);

/* y = product + bias + beta y, rounded once: [n, d], bias [d]; product fp32, the others each a
 * float dtype. For matmuls that cannot take such a bias along. */
K_API cudaError_t k_add_bias(const struct k_launch *l, struct tensor y, struct tensor product,
                             struct tensor bias, float beta);
/* y = act(product + bias), the same way. */
K_API cudaError_t k_add_bias_act(const struct k_launch *l, struct tensor y, struct tensor product,
                                 struct tensor bias, enum act a);

#endif
