/* gate.cu - element-wise ops; see gate.h. A thread has N adjacent elements of a row: 16 bytes, or
 * one element if rows are not aligned. A thread block has ROW_THREADS * N columns of rows
 * blockIdx.y, blockIdx.y + gridDim.y, ...
 */
#include "gpu/cuda/kernels/elementwise/gate.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/elementwise/act.cuh"

namespace {

/* y = act(x), times the element of x `times` columns to the right (op gate) unless times is 0. */
template <typename T, int N>
__global__ void
__launch_bounds__(ROW_THREADS) act(struct tensor y, struct tensor x, uint32_t times, enum act act)
{
    uint32_t at = (blockIdx.x * ROW_THREADS + threadIdx.x) * N;

    join_previous();
    if (at >= y.dim[1]) return;
    for (uint32_t i = blockIdx.y; i < y.dim[0]; i += gridDim.y) {
        const T *from = (const T *)row_at(x, i) + at;
        float v[N], m[N];

        load<N>(v, from);
        if (times) load<N>(m, from + times);
        UNROLL for (int j = 0; j < N; j++) {
            v[j] = activate<sizeof(T) == 4>(v[j], act);
            if (times) v[j] *= m[j];
        }
        store<N>((T *)row_at(y, i) + at, v);
    }
}

/* The op gate with ACT_SWIGLU_CLAMPED, where gate and up are interleaved. */
template <typename T, int N>
__global__ void
__launch_bounds__(ROW_THREADS) swiglu_clamped(struct tensor y, struct tensor x)
{
    uint32_t at = (blockIdx.x * ROW_THREADS + threadIdx.x) * N;

    join_previous();
    if (at >= y.dim[1]) return;
    for (uint32_t i = blockIdx.y; i < y.dim[0]; i += gridDim.y) {
        const T *from = (const T *)row_at(x, i) + 2 * at;
        float v[2][N], out[N];

        load<N>(v[0], from);
        load<N>(v[1], from + N);
        UNROLL for (int j = 0; j < N; j++) {
            float gate = fminf((&v[0][0])[2 * j], 7.0f);
            float up = fmaxf(fminf((&v[0][0])[2 * j + 1], 7.0f), -7.0f);

            out[j] = sigmoid_times<sizeof(T) == 4>((up + 1.0f) * gate, 1.702f * gate);
        }
        store<N>((T *)row_at(y, i) + at, out);
    }
}

template <typename Y, typename X, int N>
__global__ void
__launch_bounds__(ROW_THREADS) add(struct tensor y, struct tensor x)
{
    uint32_t at = (blockIdx.x * ROW_THREADS + threadIdx.x) * N;

    join_previous();
    if (at >= y.dim[1]) return;
    for (uint32_t i = blockIdx.y; i < y.dim[0]; i += gridDim.y) {
        Y *to = (Y *)row_at(y, i) + at;
        float v[N], u[N];

        load<N>(v, to);
        load<N>(u, (const X *)row_at(x, i) + at);
        UNROLL for (int j = 0; j < N; j++) v[j] = add_rn(v[j], u[j]);
        store<N>(to, v);
    }
}

template <typename T, int N>
__global__ void
__launch_bounds__(ROW_THREADS) scale(struct tensor x, float factor, float softcap)
{
    uint32_t at = (blockIdx.x * ROW_THREADS + threadIdx.x) * N;

    join_previous();
    if (at >= x.dim[1]) return;
    for (uint32_t i = blockIdx.y; i < x.dim[0]; i += gridDim.y) {
        T *to = (T *)row_at(x, i) + at;
        float v[N];

        load<N>(v, to);
        UNROLL for (int j = 0; j < N; j++) {
            v[j] *= factor;
            if (softcap != 0) v[j] = softcap * tanhf(v[j] / softcap);
        }
        store<N>(to, v);
    }
}

cudaError_t
act_any(const struct k_launch *l, struct tensor y, struct tensor x, uint32_t times, enum act a)
{
    if (y.dtype != x.dtype || (unsigned)a > ACT_GELU_TANH) return cudaErrorInvalidValue;
    WITH_FLOAT(T, y.dtype, {
        constexpr uint32_t N = 16 / sizeof(T);

        return launch_rows(l, columns_fit(y.dim[1], N, y, x), N, act<T, N>, act<T, 1>, y.dim[0],
                           y.dim[1], y, x, times, a);
    });
    return cudaSuccess;
}

template <typename Y, typename X>
cudaError_t
add_as(const struct k_launch *l, const struct tensor &y, const struct tensor &x)
{
    constexpr uint32_t N = 16 / sizeof(Y);

    return launch_rows(l, columns_fit(y.dim[1], N, y, x), N, add<Y, X, N>, add<Y, X, 1>, y.dim[0],
                       y.dim[1], y, x);
}

} /* namespace */

cudaError_t
k_act(const struct k_launch *l, struct tensor y, struct tensor x, enum act a)
{
    return act_any(l, y, x, 0, a);
}

cudaError_t
k_gate(const struct k_launch *l, struct tensor y, struct tensor gate_up, enum act a)
{
    if (a != ACT_SWIGLU_CLAMPED) return act_any(l, y, gate_up, y.dim[1], a);
    if (y.dtype != gate_up.dtype) return cudaErrorInvalidValue;
    WITH_FLOAT(T, y.dtype, {
        constexpr uint32_t N = 16 / sizeof(T);

        return launch_rows(l, columns_fit(y.dim[1], N, y, gate_up), N, swiglu_clamped<T, N>,
                           swiglu_clamped<T, 1>, y.dim[0], y.dim[1], y, gate_up);
    });
    return cudaSuccess;
}

cudaError_t
k_add(const struct k_launch *l, struct tensor y, struct tensor x)
{
    WITH_FLOAT(X, x.dtype, {
        if (y.dtype == DT_F32) return add_as<float, X>(l, y, x);
        if (y.dtype == x.dtype) return add_as<X, X>(l, y, x);
    });
    return cudaErrorInvalidValue;
}

cudaError_t
k_scale(const struct k_launch *l, struct tensor x, float factor, float softcap)
{
    WITH_FLOAT(T, x.dtype, {
        constexpr uint32_t N = 16 / sizeof(T);

        return launch_rows(l, columns_fit(x.dim[1], N, x), N, scale<T, N>, scale<T, 1>, x.dim[0],
                           x.dim[1], x, factor, softcap);
    });
    return cudaSuccess;
}
