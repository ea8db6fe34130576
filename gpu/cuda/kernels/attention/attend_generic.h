/* attend_generic.h - attention of every variant in one simple kernel, the last candidate. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

/* attend() of gpu.h with all variants (paged, cross and encoder attention, window, softcap, bias,
 * sinks, masks), except that paged K and V must already be stored (a->k NO_TENSOR).
 *
 *    head_dim  at most 512
 *    q, out    fp32, bf16 or fp16; any strides
 *    k, v      fp32, bf16 or fp16; may differ from q's dtype
 *    kv        the same or fp8
 *
 * Scores, softmax and sums are fp32 with expf and tanhf; out is rounded once. For fp32 inputs the
 * error is the error of fp32 sums. A row's bits depend on its own visible keys only. Keys that no
 * row sees are not read. Not fast: one thread block per (row, head) reads its own keys. */
K_API k_attend_kernel k_attend_generic;
