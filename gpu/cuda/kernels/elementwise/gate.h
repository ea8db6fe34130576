/* gate.h - element-wise ops: act, gate, add, scale; see gpu/ops.h.
 *
 *   x, y, gate_up    fp32, bf16 or fp16 of one dtype, any strides; y may be x. gate: y may be
 *                    the first half of gate_up's columns. add: y may be fp32 with any dtype of x
 *
 * Arithmetic in fp32, rounded once. fp32 uses the exact exponential and division (a few ulp).
 * 16-bit dtypes use the fast ones, whose error (about 1e-6 relative) is below their rounding. erf
 * and tanh are the exact functions for every dtype. gelu(tanh) is x / (1 + exp(-2u)), which equals
 * 0.5 x (1 + tanh u) without its cancellation. Cost: each byte is read and written once.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

K_API k_act_kernel k_act;
K_API k_gate_kernel k_gate;
K_API k_add_kernel k_add;
K_API k_scale_kernel k_scale;
