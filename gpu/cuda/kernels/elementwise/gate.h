/* gate.h - element by element: act, gate, add, scale: gpu.h.
 *
 * x, y, gate_up    fp32, bf16 or fp16 of one dtype, any strides; y may be x (gate: may be its first
 * half).
 *                    add's y may be fp32 beside any x
 *
 * Arithmetic in fp32, one rounding at the end. fp32 takes the exact exponential, division and tanh
 * (a few ulp); the 16-bit types take the fast ones, whose error (some 1e-6 of the result) does not
 * show in them. gelu(tanh) is x / (1 + exp(-2u)), which is 0.5 x (1 + tanh u) without the
 * cancellation. Cost: each byte read and written once.
 */
#ifndef KERNELS_ELEMENTWISE_GATE_H
#define KERNELS_ELEMENTWISE_GATE_H

#include "gpu/cuda/kernels/base/kernel.h"

K_API cudaError_t k_act(const struct k_launch *l, struct tensor y, struct tensor x, enum act a);
K_API cudaError_t k_gate(const struct k_launch *l, struct tensor y, struct tensor gate_up,
                         enum act a);
K_API cudaError_t k_add(const struct k_launch *l, struct tensor y, struct tensor x);
K_API cudaError_t k_scale(const struct k_launch *l, struct tensor x, float factor, float softcap);

#endif
