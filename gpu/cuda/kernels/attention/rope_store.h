/* rope_store.h - normalizes, rotates and stores a step's q, k and v in one pass; see gpu.h.
 *
 *    q, k, v          fp32, bf16 or fp16, one dtype; any strides
 *    q_norm, k_norm   fp32, bf16 or fp16
 *    kv               fp32, bf16, fp16 or fp8, with any q dtype; head_dim up to 512; any block size
 *
 * Arithmetic is fp32 from load to store, with one rounding, into q and into the cache. A head's
 * bits depend on the head and its position only. A row with SLOT_NONE stores nothing in the cache.
 * A row with a slot makes the lane fail if its position is outside cos_sin (then its q and k are
 * not written) or has no block (then k and v are not). Cost: q, k and v are read, q and the cache
 * written, once.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

K_API k_rope_store_kernel k_rope_store;
