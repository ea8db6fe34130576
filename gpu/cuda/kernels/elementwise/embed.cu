/* embed.cu - looks up token embeddings; see embed.h. A thread has four columns of a row (x is
 * mostly fp32: 16 bytes), or one if rows are not aligned; a thread block has THREADS * N columns of
 * one row.
 */
#include "gpu/cuda/kernels/elementwise/embed.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

namespace {

constexpr uint32_t THREADS = 256;

template <typename T, int N>
__global__ void
__launch_bounds__(THREADS)
    embed(struct tensor x, struct tensor table, const int32_t *token, float scale)
{
    uint32_t row = blockIdx.x, at = (blockIdx.y * THREADS + threadIdx.x) * N;
    float v[N] = { 0 };

    join_previous();
    if (at >= x.dim[1]) return;
    int32_t t = token[row];

    if (t >= (int32_t)table.dim[0]) t = 0;
    if (t >= 0) {
        load<N>(v, (const T *)row_at(table, (uint32_t)t) + at);
        UNROLL for (int j = 0; j < N; j++) v[j] *= scale;
    }
    store_as<N>(x.dtype, row_at(x, row), at, v);
}

} /* namespace */

cudaError_t
k_embed(const struct k_launch *l, struct tensor x, struct tensor table, const int32_t *token,
        float scale)
{
    uint32_t n = x.dim[0], d = x.dim[1];

    if (!is_float(x.dtype)) return cudaErrorInvalidValue;
    WITH_FLOAT(T, table.dtype, {
        if (n == 0 || d == 0) return cudaSuccess;
        if (d % 4 == 0 && rows_fit(x, 4) && rows_fit(table, 4))
            return launch(embed<T, 4>, dim3(n, (d / 4 + THREADS - 1) / THREADS), THREADS, 0, l->st,
                          x, table, token, scale);
        return launch(embed<T, 1>, dim3(n, (d + THREADS - 1) / THREADS), THREADS, 0, l->st, x,
                      table, token, scale);
    });
    return cudaSuccess;
}
