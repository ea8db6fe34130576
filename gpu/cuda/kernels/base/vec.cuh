/* vec.cuh - shared by kernels that work row by row: vector loads and stores, conversions, sums in a
 * fixed order.
 *
 * Arithmetic is in fp32. N elements of a type are loaded or stored at once, in words of at most 16
 * bytes; N = 1 is for unaligned data. Where a kernel guarantees bits, it names the operation that
 * rounds: mul_rn(), add_rn() and fmaf(), never a * b + c, which the compiler may or may not
 * contract.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <type_traits>

/* Runs a statement with T defined as the C++ type of a dtype. Makes the calling function refuse
 * other dtypes than fp32, bf16 and fp16. */
#define FLOAT_CASE(value, type, T, ...) \
    case value: { \
        typedef type T; \
        __VA_ARGS__; \
        break; \
    }
#define WITH_FLOAT(T, dtype, ...) \
    switch (dtype) { \
        FLOAT_CASE(DT_F32, float, T, __VA_ARGS__) \
        FLOAT_CASE(DT_BF16, __nv_bfloat16, T, __VA_ARGS__) \
        FLOAT_CASE(DT_F16, __half, T, __VA_ARGS__) \
    default: \
        return cudaErrorInvalidValue; \
    }

/* Returns f(x, d): x is a value of the 16-bit type t, d an integral_constant of head_dim. Refuses
 * other head dims than 64, 128 and 256. */
template <typename F>
static inline cudaError_t
with_head_dim(enum dtype t, uint32_t head_dim, F f)
{
    auto typed = [&](auto dim) {
        return t == DT_BF16 ? f(__nv_bfloat16(), dim) : f(__half(), dim);
    };

    switch (head_dim) {
    case 64:
        return typed(std::integral_constant<int, 64>());
    case 128:
        return typed(std::integral_constant<int, 128>());
    case 256:
        return typed(std::integral_constant<int, 256>());
    default:
        return cudaErrorInvalidValue;
    }
}

static inline bool
is_float(enum dtype t)
{
    return t == DT_F32 || t == DT_BF16 || t == DT_F16;
}

__host__ __device__ static inline uint32_t
float_bytes(enum dtype t)
{
    return t == DT_F32 ? 4 : 2;
}

/* Whether every row of t is aligned for loads of n elements; true for a tensor without data. The
 * number of columns is not checked. */
static inline bool
rows_fit(const struct tensor &t, uint32_t n)
{
    uint32_t bytes = n * float_bytes(t.dtype) < 16 ? n * float_bytes(t.dtype) : 16;

    if (!t.data) return true;
    return (uintptr_t)t.data % bytes == 0 && (t.dim[0] <= 1 || t.stride % n == 0);
}

/* Whether rows of `cols` elements of all these tensors can be read in loads of n elements. */
template <typename... Tensors>
static inline bool
columns_fit(uint32_t cols, uint32_t n, const Tensors &...t)
{
    return cols % n == 0 && (rows_fit(t, n) && ...);
}

__device__ __forceinline__ float
mul_rn(float a, float b)
{
    return __fmul_rn(a, b);
}

__device__ __forceinline__ float
add_rn(float a, float b)
{
    return __fadd_rn(a, b);
}

/* The same sum for integers, which is exact. */
template <typename T>
__device__ __forceinline__ T
add_rn(T a, T b)
{
    return a + b;
}

template <typename T>
__device__ __forceinline__ float
to_float(T x)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        return __bfloat162float(x);
    else if constexpr (std::is_same<T, __half>::value)
        return __half2float(x);
    else
        return float(x);
}

/* Converts x to T, to nearest even. fp8 as in fp.h: a value that is too large becomes 448. */
template <typename T>
__device__ __forceinline__ T
of_float(float x)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        return __float2bfloat16_rn(x);
    else if constexpr (std::is_same<T, __half>::value)
        return __float2half_rn(x);
    else
        return T(x);
}

template <typename T>
__device__ __forceinline__ void
pair_to(T *to, float a, float b)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        *(__nv_bfloat162 *)to = __floats2bfloat162_rn(a, b);
    else if constexpr (std::is_same<T, __half>::value)
        *(__half2 *)to = __floats2half2_rn(a, b);
    else if constexpr (std::is_same<T, __nv_fp8_e4m3>::value)
        *(__nv_fp8x2_e4m3 *)to = __nv_fp8x2_e4m3(make_float2(a, b));
    else
        to[0] = a, to[1] = b;
}

/* word<BYTES>: a type that the hardware moves in one instruction, or in two for 32 bytes. */
struct two_words {
    uint4 a, b;
};
template <int BYTES>
using word = std::conditional_t<
    BYTES == 1, uint8_t,
    std::conditional_t<BYTES == 2, uint16_t,
                       std::conditional_t<BYTES == 4, uint32_t,
                                          std::conditional_t<BYTES == 8, uint2,
                                                             std::conditional_t<BYTES == 16, uint4,
                                                                                two_words>>>>>;

/* Loads the N elements at p into v. p is aligned to their total size, at most 16 bytes. */
template <int N, typename T>
__device__ __forceinline__ void
load(float (&v)[N], const T *p)
{
    word<N *(int)sizeof(T)> w = *(decltype(w) *)p;

    UNROLL for (int i = 0; i < N; i++) v[i] = to_float(((const T *)&w)[i]);
}

template <int N, typename T>
__device__ __forceinline__ void
store(T *p, const float (&v)[N])
{
    if constexpr (N == 1) {
        *p = of_float<T>(v[0]);
    } else {
        word<N *(int)sizeof(T)> w;

        UNROLL for (int i = 0; i < N; i += 2) pair_to((T *)&w + i, v[i], v[i + 1]);
        *(decltype(w) *)p = w;
    }
}

/* Calls f(a value of float type t). All threads of the grid take the same branch. */
template <typename F>
__device__ __forceinline__ void
by_type(enum dtype t, F f)
{
    if (t == DT_F32)
        f(float());
    else if (t == DT_BF16)
        f(__nv_bfloat16());
    else
        f(__half());
}

/* load() and store() with a dtype that is known at run time; `at` counts elements. */
template <int N>
__device__ __forceinline__ void
load_as(float (&v)[N], enum dtype t, const void *p, size_t at)
{
    by_type(t, [&](auto type) { load<N>(v, (const decltype(type) *)p + at); });
}

template <int N>
__device__ __forceinline__ void
store_as(enum dtype t, void *p, size_t at, const float (&v)[N])
{
    by_type(t, [&](auto type) { store<N>((decltype(type) *)p + at, v); });
}

/* Address of row i of a float tensor. */
__device__ __forceinline__ void *
row_at(const struct tensor &t, size_t i)
{
    return (char *)t.data + i * t.stride * float_bytes(t.dtype);
}

/* One element of a float tensor. */
__device__ __forceinline__ float
element(const struct tensor &t, size_t row, size_t col)
{
    float v[1];

    load_as<1>(v, t.dtype, row_at(t, row), col);
    return v[0];
}

/* Returns to every lane the sum over its group of `width` lanes, a power of two, as a tree. */
template <typename T>
__device__ __forceinline__ T
group_sum(T v, int width)
{
    for (int step = width / 2; step > 0; step /= 2) v = add_rn(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

/* Returns the sum over the thread block to every thread: each warp adds its lanes, then the warps
 * are added in order. part: one float per warp in shared memory, not used by anything else. */
__device__ __forceinline__ float
block_sum(float v, float *part)
{
    v = group_sum(v, 32);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (uint32_t i = 0; i < blockDim.x / 32; i++) v = add_rn(v, part[i]);
    return v;
}
