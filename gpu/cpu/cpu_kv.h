/* cpu_kv.h - addresses of keys and values in the paged KV cache, whose layout is in gpu.h. */
#pragma once
#include "gpu/gpu.h"

/* Returns the address of K of (slot, pos, head); NULL: the block table has no block there. */
static inline void *
kv_key(const struct kv_view *v, uint32_t slot, uint32_t pos, uint32_t head)
{
    uint32_t entry = pos / v->tokens_per_block;
    slice_id at;

    check(entry < v->table_stride);
    at = v->table[(size_t)slot * v->table_stride + entry];
    if (at == SLICE_NONE) return NULL;
    return (char *)v->base + (size_t)at * v->slice_bytes +
           dtype_bytes(v->dtype, ((size_t)head * v->tokens_per_block + pos % v->tokens_per_block) *
                                     v->head_dim);
}

/* Returns the bytes from a key to its value: one slice, or 0 if only K is stored (K = V). */
static inline size_t
kv_value_offset(const struct kv_view *v)
{
    return v->n_parts == 1 ? 0 : v->slice_bytes;
}
