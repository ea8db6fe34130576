/* attend_sm80_load.cuh - copies tiles of K and V from memory into the ring (see attend_sm80.cu).
 *
 * S is a kernel's shape: T, NARROW (K and V are fp8 in the cache, widened on the way), D, THREADS
 * and HALF (bytes of K, or of V, of one tile).
 */
#pragma once
#include "gpu/cuda/kernels/attention/attend_sm80_schedule.cuh"
#include "gpu/cuda/kernels/base/kv_address.cuh"
#include "gpu/cuda/kernels/base/sm80.cuh"

#include <cuda_fp8.h>

namespace attend_sm80 {

/* Returns two fp8 elements as T, exactly. */
template <typename T> __device__ __forceinline__ uint32_t widen_pair(uint32_t x);

template <>
__device__ __forceinline__ uint32_t
widen_pair<__half>(uint32_t x)
{
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)x, __NV_E4M3);

    return h.x | (uint32_t)h.y << 16;
}

template <>
__device__ __forceinline__ uint32_t
widen_pair<__nv_bfloat16>(uint32_t x)
{
    __half2 h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)x, __NV_E4M3);

    return pack<__nv_bfloat16>(__low2float(h), __high2float(h));
}

template <typename T>
__device__ __forceinline__ uint4
widen(uint2 x)
{
    return make_uint4(widen_pair<T>(x.x & 0xffff), widen_pair<T>(x.x >> 16),
                      widen_pair<T>(x.y & 0xffff), widen_pair<T>(x.y >> 16));
}

/* Widens eight elements at one shared-memory address to 16 bytes at another. */
template <typename T>
__device__ __forceinline__ void
widen_shared(uint32_t to, uint32_t from)
{
    uint2 x;

    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
    uint4 y = widen<T>(x);
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(y.x), "r"(y.y), "r"(y.z),
                 "r"(y.w)
                 : "memory");
}

/* Copies 8 bytes to shared memory, or stores zeros if not real. */
__device__ __forceinline__ void
copy_half(uint32_t to, const void *from, bool real)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from),
                 "r"(real ? 8 : 0)
                 : "memory");
}

/* Location of a tile's keys. Only its keys [first, first + n) and [0, kept) are read. */
struct source {
    int32_t block; /* of key 0; if blocks have under 64 tokens, lane i: the tile's i-th block */
    uint32_t offset, first, n, kept;
};

__device__ __forceinline__ struct source
find_source(const struct job &j, const struct walk &w)
{
    struct source s;
    int32_t pos = w.tile * TILE, low = max(w.low, pos), high = min(w.high, pos + TILE);
    int32_t kept = w.kept(j), at = pos;

    s.first = (uint32_t)(low - pos);
    s.n = (uint32_t)max(high - low, 0);
    s.kept = (uint32_t)max(kept - pos, 0);
    if (s.kept >= TILE) s.first = 0, s.n = TILE, low = pos, high = pos + TILE;
    if (!j.a.kv.table) {
        s.block = (int32_t)w.segment.first_token + pos - w.segment.first_pos;
        s.offset = w.kv_head * j.a.head_dim * 2;
        return s;
    }
    if (j.shift < 6) { /* the seen part of the block that this lane looks up */
        at = pos + (int32_t)((threadIdx.x % 32) << j.shift);
        low = max(low, at);
        high = min(high, at + (1 << j.shift));
    }
    if (low < high) at = low;
    s.block = low < high || at < kept ? (int32_t)kv_slice(j.a.kv, w.segment.slot, (uint32_t)at) : 0;
    s.offset = ((w.kv_head << j.shift) + ((uint32_t)pos & ((1u << j.shift) - 1))) * j.key_bytes;
    return s;
}

/* The copies, which run ahead of the computation. A thread copies chunk threadIdx.x % CHUNKS of
 * every ROWS-th key. Nearly all tiles are whole and need one or two instructions per address; in
 * partial tiles every key is tested. */
template <class S> struct copies {
    static constexpr uint32_t KEY = S::D * 2, CHUNKS = S::D / 8, ROWS = S::THREADS / CHUNKS;
    static constexpr uint32_t PASSES = TILE / ROWS;
    static constexpr uint32_t STORED = S::NARROW ? S::D : KEY, CHUNK = STORED / CHUNKS;

    struct walk w;      /* position of the tile of k */
    struct source k, v; /* what queue() copies next */
    bool more_v;
    const char *base;    /* this thread's chunk of block 0 */
    uint32_t row, to_us; /* this thread's first key; its chunk of that key in a tile of the ring */
    uint32_t came_to;    /* the same for fp8 before widening */

    __device__ __forceinline__ copies(const struct job &j, const struct walk &from)
        : w(from), k(find_source(j, from)), more_v(false), row(threadIdx.x / CHUNKS)
    {
        uint32_t chunk = threadIdx.x % CHUNKS;

        base = j.base + chunk * CHUNK;
        to_us = row * KEY + ((chunk ^ (row & 7)) << 4);
        came_to = row * STORED + chunk * CHUNK;
    }

    /* Address of the i-th chunk. ROWS is a power of two above row: row + i ROWS = row ^ i ROWS. */
    static __device__ __forceinline__ uint32_t place(uint32_t to, uint32_t i)
    {
        return (to ^ (i * ROWS % 8 << 4)) + i * ROWS * KEY;
    }

    static __device__ __forceinline__ void bring(uint32_t to, uint32_t i, const char *from)
    {
        if constexpr (S::NARROW)
            copy_half(to + i * ROWS * STORED, from, true);
        else
            copy_async(place(to, i), from);
    }

    static __device__ __forceinline__ void bring_or_zero(uint32_t to, uint32_t i, const char *from,
                                                         bool real)
    {
        if constexpr (S::NARROW)
            copy_half(to + i * ROWS * STORED, from, real);
        else
            copy_async_or_zero(place(to, i), from, real);
    }

    __device__ __forceinline__ void copy(const struct job &j, const struct source &s,
                                         const char *from, uint32_t to) const
    {
        from += s.offset;
        to += S::NARROW ? came_to : to_us;
        if (s.n == TILE && j.shift >= 6) {
            from += (int64_t)s.block * j.block_bytes + row * j.key_bytes;
            UNROLL for (uint32_t i = 0; i < PASSES; i++)
                bring(to, i, from + i * (ROWS * j.key_bytes));
        } else if (s.n == TILE) {
            uint32_t in_block = (1u << j.shift) - 1;

            UNROLL for (uint32_t i = 0; i < PASSES; i++) {
                uint32_t key = i * ROWS + row;
                int32_t block = __shfl_sync(~0u, s.block, key >> j.shift);

                bring(to, i, from + (int64_t)block * j.block_bytes + (key & in_block) * STORED);
            }
        } else {
            uint32_t in_block = j.shift < 6 ? (1u << j.shift) - 1 : TILE - 1;

#pragma unroll 1
            for (uint32_t i = 0; i < PASSES; i++) {
                uint32_t key = i * ROWS + row;
                int32_t block = __shfl_sync(~0u, s.block, j.shift < 6 ? key >> j.shift : 0);

                bring_or_zero(
                    to, i, from + (int64_t)block * j.block_bytes + (key & in_block) * j.key_bytes,
                    key - s.first < s.n || key < s.kept);
            }
        }
    }

    /* Queues V of one tile and K of the next into a pair of the ring. */
    __device__ __forceinline__ void queue(const struct job &j, uint32_t to)
    {
        if (more_v) copy(j, v, base + j.value_at, to + TILE * STORED);
        more_v = w.left > 0;
        if (more_v) {
            copy(j, k, base, to);
            v = k;
            step<S::ROWS, S::SINGLE>(j, w);
            if (w.left > 0) k = find_source(j, w);
        }
        copy_commit();
    }

    /* Widens an arrived pair of fp8 tiles; where no key was copied the result is arbitrary. */
    __device__ __forceinline__ void widen_tiles(uint32_t from, uint32_t to) const
    {
        UNROLL for (uint32_t half = 0; half < 2; half++)
            UNROLL for (uint32_t i = 0; i < PASSES; i++)
                widen_shared<typename S::T>(place(to + half * S::HALF + to_us, i),
                                            from + half * TILE * STORED + came_to +
                                                i * ROWS * STORED);
    }
};

} /* namespace attend_sm80 */
