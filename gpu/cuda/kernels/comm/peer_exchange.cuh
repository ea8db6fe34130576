/* peer_exchange.cuh - how ranks speak through each other's memory: peer_exchange.h.
 *
 * A line is two words, each with its round beside it, or four bare ones. A kernel says which lines
 * of its block a thread has. All threads of a block take part in the same rounds, and between two
 * rounds there is a __syncthreads().
 */
#ifndef KERNELS_COMM_PEER_EXCHANGE_CUH
#define KERNELS_COMM_PEER_EXCHANGE_CUH

#include "gpu/cuda/kernels/comm/peer_exchange.h"

#include <cuda_runtime.h>

/* 0 is what memory holds that nobody has written. Even and odd go on alternating. */
__device__ __forceinline__ uint32_t
next_round(uint32_t t)
{
    return t == UINT32_MAX ? 2 : t + 1;
}

/* A channel's round so far. The block before it in its place may have been on another SM a moment
 * ago. */
__device__ __forceinline__ uint32_t
round_of(const struct exchange &e, uint32_t channel = blockIdx.x)
{
    return *(volatile uint32_t *)&e.round[channel];
}

/* Behind a __syncthreads(): all threads have read what they were to read of it. */
__device__ __forceinline__ void
end_round(const struct exchange &e, uint32_t round, uint32_t channel = blockIdx.x)
{
    if (threadIdx.x == 0) e.round[channel] = round;
}

/* A channel's lines that rank `from` sends to the rank whose memory is at base. */
__device__ __forceinline__ uint4 *
lines_at(void *base, const struct exchange &e, uint32_t round, uint32_t from,
         uint32_t channel = blockIdx.x)
{
    return (uint4 *)base +
           (size_t)((round % 2 * e.ranks + from) * K_EXCHANGE_BLOCKS + channel) * K_EXCHANGE_LINES;
}

/* A word and its round side by side: the machine stores and loads eight aligned bytes as one. */
__device__ __forceinline__ void
send_line(uint4 *to, uint32_t a, uint32_t b, uint32_t round)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(round),
                 "r"(b), "r"(round)
                 : "memory");
}

/* Not there yet: false. */
__device__ __forceinline__ bool
receive_line(const uint4 *from, uint32_t *a, uint32_t *b, uint32_t round)
{
    uint32_t round_a, round_b;

    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(*a), "=r"(round_a), "=r"(*b), "=r"(round_b)
                 : "l"(from)
                 : "memory");
    return round_a == round && round_b == round;
}

/* This block's bare lines, as lines_at(). */
__device__ __forceinline__ uint4 *
bare_at(void *base, const struct exchange &e, uint32_t round, uint32_t from)
{
    return lines_at((char *)base + K_EXCHANGE_AREA(e.ranks), e, round, from);
}

/* No word travels as 0: bits are turned over, and the one that is all ones, a NaN of every type,
 * goes as another NaN. */
__device__ __forceinline__ uint32_t
bare(uint32_t w)
{
    return w == UINT32_MAX ? 0x8000 : ~w;
}

__device__ __forceinline__ void
send_bare(uint4 *to, const uint32_t *w)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bare(w[0])),
                 "r"(bare(w[1])), "r"(bare(w[2])), "r"(bare(w[3]))
                 : "memory");
}

/* Not all there yet: false. */
__device__ __forceinline__ bool
receive_bare(const uint4 *from, uint32_t *w)
{
    uint4 v;

    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    w[0] = ~v.x;
    w[1] = ~v.y;
    w[2] = ~v.z;
    w[3] = ~v.w;
    return v.x && v.y && v.z && v.w;
}

/* What has been heard makes room, for a kernel after this one. */
__device__ __forceinline__ void
clear_bare(uint4 *at)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(at), "r"(0) : "memory");
}

#endif
