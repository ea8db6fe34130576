/* rope_store.h - normalizes, rotates and stores a step's q, k and v in one pass; see gpu.h.
 *
 *    q, k, v          fp32, bf16 or fp16, one dtype; any strides
 *    q_norm, k_norm   fp32, bf16 or fp16
 *    kv               fp32, bf16, fp16 or fp8, for any dtype of q; any head_dim and block size
 *
 * Arithmetic is fp32 from load to store, with one rounding, into q and into the cache. A head's
 * bits depend on the head and its position only. A row with SLOT_NONE stores nothing. If a row with
 * a slot has a position outside cos_sin, or no block, the lane fails and nothing is stored for the
 * row. Cost: reads q, k and v once, writes q and the cache once.
 */
#pragma once

#include "gpu/cuda/kernels/base/kernel.h"

K_API k_rope_store_kernel k_rope_store;
