/* experts.cuh - divides expert_matmul's sorted (row, expert) pairs into tiles, one per block. */
#pragma once
#include "gpu/gpu.h"

/* Sorted pairs [first, end) of one expert; empty if there is no such tile. */
struct expert_tile {
    uint32_t expert, first, end;
};

/* Returns tile `index` of all tiles, in the order of experts; a tile has `size` pairs, the last of
 * an expert may have fewer. All threads of a warp call it with the same arguments. */
__device__ __forceinline__ struct expert_tile
find_tile(const struct pairs &p, uint32_t index, uint32_t size)
{
    const uint32_t lane = threadIdx.x % 32;
    struct expert_tile t = {};

    for (uint32_t from = 0; from < p.n_experts; from += 32) {
        uint32_t e = from + lane < p.n_experts ? from + lane : p.n_experts - 1;
        uint32_t first = p.first[e], end = p.first[e + 1], before, all;
        uint32_t tiles = from + lane < p.n_experts ? (end - first + size - 1) / size : 0;

        before = tiles; /* the loop adds the tiles of the experts of lower lanes */
        UNROLL for (int step = 1; step < 32; step *= 2) {
            uint32_t v = __shfl_up_sync(~0u, before, step);

            if (lane >= (uint32_t)step) before += v;
        }
        all = __shfl_sync(~0u, before, 31);
        before -= tiles;
        if (index < all) {
            uint32_t whose = __ballot_sync(~0u, index >= before && index < before + tiles);
            int owner = __ffs((int)whose) - 1;

            t.expert = from + (uint32_t)owner;
            t.first = __shfl_sync(~0u, first, owner) +
                      (index - __shfl_sync(~0u, before, owner)) * size;
            t.end = min(t.first + size, __shfl_sync(~0u, end, owner));
            return t;
        }
        index -= all;
    }
    return t;
}

/* The maximum number of tiles for any choice of experts. */
static inline uint32_t
most_tiles(const struct pairs *p, uint32_t size)
{
    uint32_t n = p->n_tokens * p->n_top;

    return n / size + (p->n_experts < n ? p->n_experts : n);
}
