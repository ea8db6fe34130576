/* attend_generic.h - attention for every variant, in one simple kernel: the second opinion. */
#ifndef KERNELS_ATTENTION_ATTEND_GENERIC_H
#define KERNELS_ATTENTION_ATTEND_GENERIC_H

#include "gpu/cuda/kernels/base/kernel.h"

/* gpu.h's attend, all of it: paged, cross and encoder attention, window, softcap, bias, sinks,
 * masks.
 *
 * head_dim  at most 512 q, out    fp32, bf16 or fp16; any strides k, v      fp32, bf16 or fp16;
 * need not be q's dtype kv        the same or fp8
 *
 * Scores, softmax and sums are fp32 with expf and tanhf; one rounding, at out. For fp32 inputs the
 * error is that of fp32 sums. A row's bits depend on its own visible keys alone. Keys that no row
 * sees are not read. Cost: every (row, head) reads its keys for itself, one block each: simple, not
 * fast. */
K_API cudaError_t k_attend_generic(const struct k_launch *l, const struct attend *a,
                                   struct step_tokens r);

#endif
