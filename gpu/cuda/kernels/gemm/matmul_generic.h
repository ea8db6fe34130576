/* matmul_generic.h - y = x w^T for every float dtype, stride and alignment; simple reference. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

/* matmul() of gpu.h; x, w, bias and y may each be fp32, bf16 or fp16. Exact fp32 arithmetic (no
 * TF32). Sums over K have a fixed order: a row's bits depend on that row and w only. Rounded once.
 * Cost: no tensor cores; about 10 % of the fp32 rate. */
K_API k_matmul_kernel k_matmul_generic;
/* act_matmul() of gpu.h: writes the product to y, then applies act: y is rounded twice. */
K_API k_act_matmul_kernel k_act_matmul_generic;
/* gate_matmul() of gpu.h: writes x w^T to `both`, then applies the gate: y is rounded twice. */
K_API k_gate_matmul_kernel k_gate_matmul_generic;

/* y = product + bias + beta y, rounded once. y and product are [n, d], bias is [d]; product is
 * fp32, the others each have any float dtype. For matmuls that cannot add a bias in fp32. */
K_API cudaError_t k_add_bias(const struct k_launch *l, struct tensor y, struct tensor product,
                             struct tensor bias, float beta);
/* y = act(product + bias), rounded once, with the same dtypes. */
K_API cudaError_t k_add_bias_act(const struct k_launch *l, struct tensor y, struct tensor product,
                                 struct tensor bias, enum act a);
