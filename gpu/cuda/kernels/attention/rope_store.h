/* rope_store.h - norm, rotate and store a step's q, k and v in one pass: gpu.h.
 *
 * q, k, v          fp32, bf16 or fp16, one dtype; any strides q_norm, k_norm   fp32, bf16 or fp16
 * kv               fp32, bf16, fp16 or fp8, whatever q is; any head_dim and number of tokens a
 * block
 *
 * All in fp32 from load to store, one rounding, into q and into the cache. A head's bits depend on
 * the head and its position alone. A row of SLOT_NONE stores nothing. A position beyond cos_sin, or
 * without a block, of a row that has a slot: the lane fails and nothing is stored there. Cost: q, k
 * and v read once, q and the cache written once.
 */
#ifndef KERNELS_ATTENTION_ROPE_STORE_H
#define KERNELS_ATTENTION_ROPE_STORE_H

#include "gpu/cuda/kernels/base/kernel.h"

K_API cudaError_t k_rope_store(const struct k_launch *l, const struct rope_store *s,
                               struct step_tokens r);

#endif
