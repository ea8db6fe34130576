/* kv_address.cuh - where a key or a value of the paged cache lies: gpu.h's kv_view, on the device.
 *
 * A head's tokens of one block are contiguous: tokens_per_block * head_dim elements. So who walks
 * along positions looks the block up once and then adds head_dim a token. kv_view stands in a
 * kernel's parameters; tokens_per_block is a power of two, so nothing here divides.
 */
#ifndef KERNELS_BASE_KV_ADDRESS_CUH
#define KERNELS_BASE_KV_ADDRESS_CUH

#include "gpu/gpu.h"

__device__ __forceinline__ uint32_t
kv_block_shift(const struct kv_view &v)
{
    return 31 - __clz((int)v.tokens_per_block);
}

/* The table's entry for a position. SLICE_NONE: there is no such block, touch nothing of it. */
__device__ __forceinline__ slice_id
kv_slice(const struct kv_view &v, uint32_t slot, uint32_t pos)
{
    return v.table[(size_t)slot * v.table_stride + (pos >> kv_block_shift(v))];
}

/* The key of (pos, head) in the slice at: head_dim elements of T. */
template <typename T>
__device__ __forceinline__ T *
kv_key(const struct kv_view &v, slice_id at, uint32_t pos, uint32_t head)
{
    uint32_t token = (head << kv_block_shift(v)) + (pos & (v.tokens_per_block - 1));

    return (T *)((char *)v.base + (size_t)at * v.slice_bytes) + (size_t)token * v.head_dim;
}

/* Bytes from a key to its value: the next slice, or the key itself where K = V is kept once. */
__device__ __forceinline__ size_t
kv_value_offset(const struct kv_view &v)
{
    return v.n_parts == 1 ? 0 : v.slice_bytes;
}

#endif
