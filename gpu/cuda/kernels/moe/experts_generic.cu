/* experts_generic.cu - expert_matmul for any dtype; see experts.h. A thread block computes PAIRS x
 * COLS elements of y, a thread EACH elements of one (row, expert) pair, ACROSS columns apart. STEP
 * elements of K of both operands are in shared memory as fp32; the products of each STEP are summed
 * separately and then added, as in matmul_generic.cu.
 */
#include "gpu/cuda/kernels/moe/experts.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/moe/experts.cuh"

namespace {

constexpr uint32_t PAIRS = 16;
constexpr uint32_t COLS = 64;
constexpr uint32_t STEP = 32;
constexpr uint32_t ACROSS = 16;
constexpr uint32_t EACH = COLS / ACROSS;
constexpr uint32_t THREADS = PAIRS * ACROSS;

/* Returns an element of w; MXFP4: a 4-bit code times the power of two of its run of MX_RUN. */
__device__ __forceinline__ float
weight(const struct tensor &w, size_t row, uint32_t col)
{
    size_t at = row * w.stride + col;

    if (w.dtype == DT_MXFP4) {
        uint32_t code = ((const uint8_t *)w.data)[at / 2] >> (at % 2 ? 4 : 0) & 15;
        uint32_t e = ((const uint8_t *)w.scale)[at / MX_RUN];
        float size = (code & 7) < 2
                         ? 0.5f * (code & 7)
                         : __uint_as_float(((code & 7) >> 1) + 126 << 23 | (code & 1) << 22);
        float scale = __uint_as_float(e == 255 ? 0x7fc00000 : e == 0 ? 0x00400000 : e << 23);

        return mul_rn(code & 8 ? -size : size, scale);
    }
    return element(w, 0, at);
}

__global__ void
__launch_bounds__(THREADS) experts_generic(const __grid_constant__ struct expert_matmul m,
                                           const __grid_constant__ struct pairs p)
{
    __shared__ float x_part[PAIRS][STEP + 1], w_part[COLS][STEP + 1];
    const uint32_t out = m.y.dim[1], k = m.x.dim[1], first_col = blockIdx.x * COLS;
    const uint32_t pair = threadIdx.x / ACROSS, col = threadIdx.x % ACROSS;
    float sum[EACH] = {};

    join_previous();
    const struct expert_tile t = find_tile(p, blockIdx.y, PAIRS);

    if (t.first == t.end) return;
    for (uint32_t from = 0; from < k; from += STEP) {
        float part[EACH] = {};

        __syncthreads();
        for (uint32_t i = threadIdx.x; i < PAIRS * STEP; i += THREADS) {
            uint32_t who = t.first + i / STEP, at = from + i % STEP;
            float v[1] = {};

            if (who < t.end && at < k)
                load_as<1>(v, m.x.dtype, m.x.data,
                           (size_t)(m.by_row ? p.row[who] : who) * m.x.stride + at);
            x_part[i / STEP][i % STEP] = v[0];
        }
        for (uint32_t i = threadIdx.x; i < COLS * STEP; i += THREADS) {
            uint32_t j = first_col + i / STEP, at = from + i % STEP;

            w_part[i / STEP][i % STEP] = j < out && at < k
                                             ? weight(m.w, (size_t)t.expert * out + j, at)
                                             : 0;
        }
        __syncthreads();
#pragma unroll 8
        for (uint32_t i = 0; i < STEP; i++)
            UNROLL for (uint32_t c = 0; c < EACH; c++)
                part[c] = fmaf(x_part[pair][i], w_part[col + c * ACROSS][i], part[c]);
        UNROLL for (uint32_t c = 0; c < EACH; c++) sum[c] = add_rn(sum[c], part[c]);
    }
    if (t.first + pair >= t.end) return;
    UNROLL for (uint32_t c = 0; c < EACH; c++) {
        uint32_t j = first_col + col + c * ACROSS;
        float v[1] = { sum[c] };

        if (j >= out) continue;
        if (m.bias.data) v[0] = add_rn(v[0], ((const float *)row_at(m.bias, t.expert))[j]);
        store_as<1>(m.y.dtype, row_at(m.y, t.first + pair), j, v);
    }
}

} /* namespace */

cudaError_t
k_experts_generic(const struct k_launch *l, const struct expert_matmul *m, const struct pairs *p)
{
    dim3 grid((m->y.dim[1] + COLS - 1) / COLS, most_tiles(p, PAIRS));

    if (!is_float(m->x.dtype) || !is_float(m->y.dtype) ||
        (m->w.dtype != DT_MXFP4 && !is_float(m->w.dtype)) || grid.y > 65535)
        return cudaErrorInvalidValue;
    if (grid.y == 0) return cudaSuccess;
    return launch(experts_generic, grid, THREADS, 0, l->st, *m, *p);
}
