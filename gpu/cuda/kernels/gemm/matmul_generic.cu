/* matmul_generic.cu - y = x w^T for any dtype; see matmul_generic.h. A thread block computes SIDE x
 * SIDE elements of y, a thread 4 x 4 of them, 16 apart. STEP elements of K of both operands are in
 * shared memory as fp32. The products of each STEP are summed separately and then added: two
 * levels, so that the error grows with STEP + K / STEP instead of K.
 */
#include "gpu/cuda/kernels/gemm/matmul_generic.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/elementwise/act.cuh"
#include "gpu/cuda/kernels/elementwise/gate.h"

namespace {

constexpr uint32_t SIDE = 64;
constexpr uint32_t STEP = 32;
constexpr uint32_t ACROSS = 16;
constexpr uint32_t EACH = SIDE / ACROSS;
constexpr uint32_t THREADS = ACROSS * ACROSS;
static_assert(THREADS == ROW_THREADS, "add_bias is launched by launch_rows()");

/* Loads STEP elements from k on of SIDE rows from `first` on; zeros outside of the tensor. */
__device__ __forceinline__ void
stage(float (*to)[STEP + 1], const struct tensor &t, uint32_t first, uint32_t k)
{
    for (uint32_t i = threadIdx.x; i < SIDE * STEP; i += THREADS) {
        uint32_t row = first + i / STEP, at = k + i % STEP;
        bool there = row < t.dim[0] && at < t.dim[1];

        to[i / STEP][i % STEP] = there ? element(t, 0, (size_t)row * t.stride + at) : 0;
    }
}

__global__ void
__launch_bounds__(THREADS) matmul_generic(struct tensor y, struct tensor x, struct tensor w,
                                          struct tensor bias, float beta)
{
    __shared__ float x_part[SIDE][STEP + 1], w_part[SIDE][STEP + 1];
    const uint32_t first_token = blockIdx.y * SIDE, first_col = blockIdx.x * SIDE;
    const uint32_t row = threadIdx.x / ACROSS, col = threadIdx.x % ACROSS;
    float sum[EACH][EACH] = {};

    join_previous();
    for (uint32_t k = 0; k < x.dim[1]; k += STEP) {
        float part[EACH][EACH] = {};

        __syncthreads();
        stage(x_part, x, first_token, k);
        stage(w_part, w, first_col, k);
        __syncthreads();
#pragma unroll 8
        for (uint32_t i = 0; i < STEP; i++) {
            float a[EACH], b[EACH];

            UNROLL for (uint32_t j = 0; j < EACH; j++) a[j] = x_part[row + j * ACROSS][i];
            UNROLL for (uint32_t j = 0; j < EACH; j++) b[j] = w_part[col + j * ACROSS][i];
            UNROLL for (uint32_t r = 0; r < EACH; r++)
                UNROLL for (uint32_t c = 0; c < EACH; c++)
                    part[r][c] = fmaf(a[r], b[c], part[r][c]);
        }
        UNROLL for (uint32_t r = 0; r < EACH; r++)
            UNROLL for (uint32_t c = 0; c < EACH; c++) sum[r][c] = add_rn(sum[r][c], part[r][c]);
    }
    UNROLL for (uint32_t r = 0; r < EACH; r++)
        UNROLL for (uint32_t c = 0; c < EACH; c++) {
            uint32_t i = first_token + row + r * ACROSS, j = first_col + col + c * ACROSS;
            size_t at = (size_t)i * y.stride + j;
            float v[1] = { sum[r][c] };

            if (i >= y.dim[0] || j >= y.dim[1]) continue;
            if (bias.data) v[0] = add_rn(v[0], element(bias, 0, j));
            if (beta != 0) v[0] = fmaf(beta, element(y, 0, at), v[0]);
            store_as<1>(y.dtype, y.data, at, v);
        }
}

/* y = product + bias + beta y, then act if ACTS; a thread has N adjacent columns. */
template <bool ACTS, int N>
__global__ void
__launch_bounds__(THREADS)
    add_bias(struct tensor y, struct tensor product, struct tensor bias, float beta, enum act act)
{
    uint32_t j = (blockIdx.x * THREADS + threadIdx.x) * N;
    float b[N];

    if (j < y.dim[1]) load_as<N>(b, bias.dtype, bias.data, j);
    join_previous();
    if (j >= y.dim[1]) return;
    for (uint32_t i = blockIdx.y; i < y.dim[0]; i += gridDim.y) {
        size_t at = (size_t)i * y.stride + j;
        float v[N], old[N];

        load<N>(v, (const float *)product.data + (size_t)i * product.stride + j);
        if (beta != 0) load_as<N>(old, y.dtype, y.data, at);
        UNROLL for (int n = 0; n < N; n++) {
            v[n] = add_rn(v[n], b[n]);
            if (beta != 0) v[n] = fmaf(beta, old[n], v[n]);
            if (ACTS) v[n] = activate<true>(v[n], act);
        }
        store_as<N>(y.dtype, y.data, at, v);
    }
}

template <bool ACTS>
cudaError_t
queue_bias(const struct k_launch *l, const struct tensor &y, const struct tensor &product,
           struct tensor bias, float beta, enum act act)
{
    if (!is_float(y.dtype) || !is_float(bias.dtype) || product.dtype != DT_F32)
        return cudaErrorInvalidValue;
    bias.dim[0] = 1;
    return launch_rows(l, columns_fit(y.dim[1], 4, y, product, bias), 4, add_bias<ACTS, 4>,
                       add_bias<ACTS, 1>, y.dim[0], y.dim[1], y, product, bias, beta, act);
}

} /* namespace */

cudaError_t
k_matmul_generic(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w,
                 struct tensor bias, float beta)
{
    dim3 grid((w.dim[0] + SIDE - 1) / SIDE, (x.dim[0] + SIDE - 1) / SIDE);

    if (!is_float(y.dtype) || !is_float(x.dtype) || !is_float(w.dtype) ||
        (bias.data && !is_float(bias.dtype)) || grid.y > 65535)
        return cudaErrorInvalidValue;
    if (x.dim[0] == 0) return cudaSuccess;
    return launch(matmul_generic, grid, THREADS, 0, l->st, y, x, w, bias, beta);
}

cudaError_t
k_act_matmul_generic(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w,
                     struct tensor bias, enum act a)
{
    cudaError_t r = k_matmul_generic(l, y, x, w, bias, 0);

    return r == cudaSuccess ? k_act(l, y, y, a) : r;
}

cudaError_t
k_gate_matmul_generic(const struct k_launch *l, struct tensor y, struct tensor both,
                      struct tensor x, struct tensor w, enum act a)
{
    cudaError_t r = k_matmul_generic(l, both, x, w, NO_TENSOR, 0);

    return r == cudaSuccess ? k_gate(l, y, both, a) : r;
}

cudaError_t
k_add_bias(const struct k_launch *l, struct tensor y, struct tensor product, struct tensor bias,
           float beta)
{
    return queue_bias<false>(l, y, product, bias, beta, ACT_RELU);
}

cudaError_t
k_add_bias_act(const struct k_launch *l, struct tensor y, struct tensor product, struct tensor bias,
               enum act a)
{
    return queue_bias<true>(l, y, product, bias, 0, a);
}
