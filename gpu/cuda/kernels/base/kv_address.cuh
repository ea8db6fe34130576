/* kv_address.cuh - device functions: the address of a key or value in the paged cache, as defined
 * at struct kv_view (gpu.h).
 *
 * The tokens of one head in one block are contiguous: tokens_per_block * head_dim elements. A loop
 * over positions therefore looks a block up once and then adds head_dim per token. tokens_per_block
 * is a power of two, so that these functions shift and mask instead of dividing.
 */
#pragma once
#include "gpu/gpu.h"

__device__ __forceinline__ uint32_t
kv_block_shift(const struct kv_view &v)
{
    return 31 - __clz((int)v.tokens_per_block);
}

/* Returns the slice of the block that contains position pos of the slot. SLICE_NONE: the slot has
 * no block there, and the caller must not access memory. */
__device__ __forceinline__ slice_id
kv_slice(const struct kv_view &v, uint32_t slot, uint32_t pos)
{
    return v.table[(size_t)slot * v.table_stride + (pos >> kv_block_shift(v))];
}

/* Returns the address of the key of (pos, head) in slice `at`: head_dim elements of T. */
template <typename T>
__device__ __forceinline__ T *
kv_key(const struct kv_view &v, slice_id at, uint32_t pos, uint32_t head)
{
    uint32_t token = (head << kv_block_shift(v)) + (pos & (v.tokens_per_block - 1));

    return (T *)((char *)v.base + (size_t)at * v.slice_bytes) + (size_t)token * v.head_dim;
}

/* Bytes from a key to its value: one slice, or 0 for a layer whose V is its K, stored once. */
__device__ __forceinline__ size_t
kv_value_offset(const struct kv_view &v)
{
    return v.n_parts == 1 ? 0 : v.slice_bytes;
}
