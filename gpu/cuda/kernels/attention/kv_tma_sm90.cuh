/* kv_tma_sm90.cuh - tensor maps of keys and values, on the host: what the copy engine is told of
 * the paged cache.
 *
 * K and V are {64 columns, 8 tokens, columns / 64, head * tokens / 8, slice}: one copy brings what
 * a block and a tile of keys share of a head, as atoms of the 128-byte swizzle, those of the same 8
 * tokens one behind the other. For heads of 64 {64 columns, token, 1, head, slice} says the same in
 * fewer pieces. What must not be read has slice -1, which lies outside of the tensor and so arrives
 * as zeros.
 */
#ifndef KERNELS_ATTENTION_KV_TMA_SM90_CUH
#define KERNELS_ATTENTION_KV_TMA_SM90_CUH

#include "gpu/cuda/kernels/base/tma_map.cuh"

namespace {

/* Of the cache; one copy brings box tokens of a block. */
template <int D>
bool
make_kv_maps(CUtensorMap *k, CUtensorMap *v, const struct kv_view *w, uint32_t box)
{
    const cuuint64_t tokens = w->tokens_per_block, rows = D == 64 ? tokens : 8;
    /* How many slices there are is the table's affair: every one below 2^31 is inside. */
    const cuuint64_t dim[5] = { 64, rows, D / 64, w->n_kv_heads * tokens / rows, 1u << 31 };
    const cuuint64_t stride[4] = { D * 2, 128, D * 2 * rows, w->slice_bytes };
    const cuuint32_t in[5] = { 64, D == 64 ? box : 8, D / 64, D == 64 ? 1 : box / 8, 1 };

    return make_map(k, w->dtype, w->base, 5, dim, stride, in) &&
           make_map(v, w->dtype, (char *)w->base + (w->n_parts == 1 ? 0 : w->slice_bytes), 5, dim,
                    stride, in);
}

} /* namespace */

#endif
