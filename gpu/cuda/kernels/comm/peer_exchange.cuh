/* peer_exchange.cuh - device functions of peer_exchange.h: rounds, lines and bare lines of a
 * channel.
 *
 * The kernel decides which lines of its channel a thread has. All threads of a block take part in
 * the same rounds, with a __syncthreads() between two rounds.
 */
#pragma once
#include "gpu/cuda/kernels/comm/peer_exchange.h"

#include <cuda_runtime.h>

/* Returns the round after t: never 0, the initial content; even and odd alternate. */
__device__ __forceinline__ uint32_t
next_round(uint32_t t)
{
    return t == UINT32_MAX ? 2 : t + 1;
}

/* Returns the channel's last round. volatile: its previous block may have run on another SM. */
__device__ __forceinline__ uint32_t
round_of(const struct exchange &e, uint32_t channel = blockIdx.x)
{
    return *(volatile uint32_t *)&e.round[channel];
}

/* Stores the channel's last round. Only after a __syncthreads(): all threads have read it. */
__device__ __forceinline__ void
end_round(const struct exchange &e, uint32_t round, uint32_t channel = blockIdx.x)
{
    if (threadIdx.x == 0) e.round[channel] = round;
}

/* Returns the channel's lines that rank `from` sends to the rank whose memory is at base. */
__device__ __forceinline__ uint4 *
lines_at(void *base, const struct exchange &e, uint32_t round, uint32_t from,
         uint32_t channel = blockIdx.x)
{
    return (uint4 *)base +
           (size_t)((round % 2 * e.ranks + from) * K_EXCHANGE_BLOCKS + channel) * K_EXCHANGE_LINES;
}

/* Stores a line: a and b, each next to its round; 8 aligned bytes are stored undivided. */
__device__ __forceinline__ void
send_line(uint4 *to, uint32_t a, uint32_t b, uint32_t round)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(round),
                 "r"(b), "r"(round)
                 : "memory");
}

/* Loads a line into *a and *b. Returns false if it has not arrived. */
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

/* Returns the bare lines of channel blockIdx.x; otherwise as lines_at(). */
__device__ __forceinline__ uint4 *
bare_at(void *base, const struct exchange &e, uint32_t round, uint32_t from)
{
    return lines_at((char *)base + K_EXCHANGE_AREA(e.ranks), e, round, from);
}

/* Makes a word of a bare line nonzero: inverts the bits. All ones, a NaN, would become 0 and are
 * sent as another NaN instead. */
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

/* Loads a bare line into w[4]. Returns false if not all of its words have arrived. */
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

/* Clears a received bare line, for a later kernel. */
__device__ __forceinline__ void
clear_bare(uint4 *at)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(at), "r"(0) : "memory");
}
