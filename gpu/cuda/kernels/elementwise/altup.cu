/* altup.cu - element-wise ops of Gemma 3n; see altup.h. mul and mix (the op altup): a thread has N
 * adjacent columns, four if rows are aligned; a thread block has THREADS * N columns of rows
 * blockIdx.y, blockIdx.y + gridDim.y, ... gaussian_topk and match_rms: a block has one row, a
 * thread every THREADS-th element of it.
 */
#include "gpu/cuda/kernels/elementwise/altup.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

namespace {

constexpr uint32_t THREADS = ROW_THREADS;
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t MAX_STREAMS = 8;

template <int N>
__global__ void
__launch_bounds__(THREADS) mul(struct tensor y, struct tensor x, struct tensor w)
{
    uint32_t at = (blockIdx.x * THREADS + threadIdx.x) * N;

    join_previous();
    if (at >= y.dim[1]) return;
    for (uint32_t i = blockIdx.y; i < y.dim[0]; i += gridDim.y) {
        float v[N], u[N];

        load_as<N>(v, x.dtype, row_at(x, i), at);
        if (w.data) {
            load_as<N>(u, w.dtype, row_at(w, w.dim[0] == 1 ? 0 : i), at);
            UNROLL for (int j = 0; j < N; j++) v[j] = mul_rn(v[j], u[j]);
        }
        store_as<N>(y.dtype, row_at(y, i), at, v);
    }
}

__global__ void
__launch_bounds__(THREADS) gaussian_topk(struct tensor x, float factor)
{
    __shared__ float part_mean[WARPS], part[WARPS];
    const uint32_t n = x.dim[1], row = blockIdx.x;
    float sum = 0;

    join_previous();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) sum = add_rn(sum, element(x, row, i));
    float mean = block_sum(sum, part_mean) / (float)n;

    sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        float off = add_rn(element(x, row, i), -mean);

        sum = fmaf(off, off, sum);
    }
    float edge = fmaf(__fsqrt_rn(block_sum(sum, part) / (float)n), factor, mean);

    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        float v[1] = { add_rn(element(x, row, i), -edge) };

        if (v[0] < 0) v[0] = 0;
        store_as<1>(x.dtype, row_at(x, row), i, v);
    }
}

__global__ void
__launch_bounds__(THREADS) match_rms(struct tensor y, struct tensor like, float least)
{
    __shared__ float part_want[WARPS], part[WARPS];
    const uint32_t n = y.dim[1];
    const float *from = (const float *)row_at(like, blockIdx.x);
    float *to = (float *)row_at(y, blockIdx.x), want = 0, have = 0;

    join_previous();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        want = fmaf(from[i], from[i], want);
        have = fmaf(to[i], to[i], have);
    }
    want = block_sum(want, part_want) / (float)n;
    have = block_sum(have, part) / (float)n;
    float k = __fsqrt_rn(want) / __fsqrt_rn(have > least ? have : least);

    for (uint32_t i = threadIdx.x; i < n; i += THREADS) to[i] = mul_rn(to[i], k);
}

template <int N>
__global__ void
__launch_bounds__(THREADS) mix(const __grid_constant__ struct altup a)
{
    const uint32_t n = a.n_streams, d = a.x.dim[1] / n;
    uint32_t at = (blockIdx.x * THREADS + threadIdx.x) * N;

    join_previous();
    if (at >= d) return;
    for (uint32_t i = blockIdx.y; i < a.x.dim[0]; i += gridDim.y) {
        const float *coef = (const float *)row_at(a.coef, i);
        float *x = (float *)row_at(a.x, i) + at, was[MAX_STREAMS][N], off[N];

        UNROLL for (uint32_t j = 0; j < MAX_STREAMS; j++)
            if (j < n) load<N>(was[j], x + (size_t)j * d);
        if (a.step == ALTUP_CORRECT) {
            float before[N];

            load<N>(off, (const float *)row_at(a.in, i) + at);
            load<N>(before, x + (size_t)a.active * d);
            UNROLL for (int e = 0; e < N; e++) off[e] = add_rn(off[e], -before[e]);
        }
        UNROLL for (uint32_t j = 0; j < MAX_STREAMS; j++) {
            float sum[N];

            if (j >= n) break;
            UNROLL for (int e = 0; e < N; e++) sum[e] = was[j][e];
            if (a.step == ALTUP_CORRECT) {
                UNROLL for (int e = 0; e < N; e++)
                    sum[e] = fmaf(add_rn(1, coef[j]), off[e], sum[e]);
            } else {
                UNROLL for (uint32_t k = 0; k < MAX_STREAMS; k++)
                    UNROLL for (int e = 0; e < N; e++)
                        if (k < n) sum[e] = fmaf(coef[j * n + k], was[k][e], sum[e]);
            }
            store<N>(x + (size_t)j * d, sum);
        }
    }
}

} /* namespace */

cudaError_t
k_mul(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w)
{
    uint32_t cols = y.dim[1];

    if (!is_float(y.dtype) || !is_float(x.dtype) || (w.data && !is_float(w.dtype)))
        return cudaErrorInvalidValue;
    return launch_rows(l, columns_fit(cols, 4, y, x, w), 4, mul<4>, mul<1>, y.dim[0], cols, y, x,
                       w);
}

cudaError_t
k_gaussian_topk(const struct k_launch *l, struct tensor x, float factor)
{
    if (!is_float(x.dtype)) return cudaErrorInvalidValue;
    if (x.dim[0] == 0 || x.dim[1] == 0) return cudaSuccess;
    return launch(gaussian_topk, x.dim[0], THREADS, 0, l->st, x, factor);
}

cudaError_t
k_match_rms(const struct k_launch *l, struct tensor y, struct tensor like, float least)
{
    if (y.dim[0] == 0 || y.dim[1] == 0) return cudaSuccess;
    return launch(match_rms, y.dim[0], THREADS, 0, l->st, y, like, least);
}

cudaError_t
k_altup(const struct k_launch *l, const struct altup *a)
{
    uint32_t d = a->x.dim[1] / a->n_streams;

    return launch_rows(l, columns_fit(d, 4, a->x, a->in), 4, mix<4>, mix<1>, a->x.dim[0], d, *a);
}
