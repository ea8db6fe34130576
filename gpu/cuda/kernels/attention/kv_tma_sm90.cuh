/* kv_tma_sm90.cuh - tensor maps of the paged K and V for TMA, made on the host, and what the
 * kernels that use these maps share.
 *
 * The maps of K and V are {64 columns, 8 tokens, columns / 64, head * tokens / 8, slice}. One copy
 * loads the tokens that a cache block and a tile of keys have in common, for one head, as atoms of
 * the 128-byte swizzle; the atoms of the same 8 tokens are consecutive. For heads of 64 the map {64
 * columns, token, 1, head, slice} gives the same layout with a larger inner box. Keys that must not
 * be read get slice -1, outside of the tensor, so that they arrive as zeros.
 */
#pragma once
#include "gpu/cuda/kernels/base/tma_map.cuh"

namespace {

/* Makes the maps of the cache; one copy loads `box` tokens of a block. */
template <int D>
bool
make_kv_maps(CUtensorMap *k, CUtensorMap *v, const struct kv_view *w, uint32_t box)
{
    const cuuint64_t tokens = w->tokens_per_block, rows = D == 64 ? tokens : 8;
    /* Slices are not checked here: the map allows every slice below 2^31. */
    const cuuint64_t dim[5] = { 64, rows, D / 64, w->n_kv_heads * tokens / rows, 1u << 31 };
    const cuuint64_t stride[4] = { D * 2, 128, D * 2 * rows, w->slice_bytes };
    const cuuint32_t in[5] = { 64, D == 64 ? box : 8, D / 64, D == 64 ? 1 : box / 8, 1 };

    return make_map(k, w->dtype, w->base, 5, dim, stride, in) &&
           make_map(v, w->dtype, (char *)w->base + (w->n_parts == 1 ? 0 : w->slice_bytes), 5, dim,
                    stride, in);
}

/* Coordinates of one lane's copy in these maps: its share of a tile. */
struct box {
    int row, group, slice;
};

/* Zeroes the rows of a tile of V below `first` and from `end` on, because a weight of 0 times NaN
 * is NaN. The 128 threads of a warpgroup call it. */
template <int KEYS, int D>
__device__ __forceinline__ void
zero_values(unsigned char *v, int first, int end, int thread)
{
    uint4 *vec = (uint4 *)v; /* whole rows of a key, so the swizzle does not matter */

    for (int i = thread; i < KEYS * D / 8; i += 128) {
        int key = i / D * 8 + i / 8 % 8;

        if (key < first || key >= end) vec[i] = make_uint4(0, 0, 0, 0);
    }
}

} /* namespace */
