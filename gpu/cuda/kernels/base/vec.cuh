/* vec.cuh - shared by row kernels: vector loads and stores, conversions, sums in a fixed order.
 *
 * Arithmetic is in fp32. N elements of a type are loaded or stored at once, in words of at most 16
 * bytes; N = 1 is for unaligned data. Where a kernel guarantees bits, it names the operation that
 * rounds: mul_rn(), add_rn() and fmaf(), never a * b + c, which the compiler may or may not
 * contract.
 */
#pragma once

#include "gpu/gpu.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/* Runs a statement with T as the type of a dtype; refuses other than float types. */
#define WITH_FLOAT(T, dtype, ...) \
    switch (dtype) { \
    case DT_F32: { \
        typedef float T; \
        __VA_ARGS__; \
        break; \
    } \
    case DT_BF16: { \
        typedef __nv_bfloat16 T; \
        __VA_ARGS__; \
        break; \
    } \
    case DT_F16: { \
        typedef __half T; \
        __VA_ARGS__; \
        break; \
    } \
    default: \
        return cudaErrorInvalidValue; \
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

/* Whether every row of t is aligned for loads of n elements; true for a tensor without data. */
static inline bool
rows_fit(const struct tensor &t, uint32_t n)
{
    uint32_t bytes = n * float_bytes(t.dtype) < 16 ? n * float_bytes(t.dtype) : 16;

    if (!t.data) return true;
    return (uintptr_t)t.data % bytes == 0 && (t.dim[0] <= 1 || t.stride % n == 0);
}

/* Whether loads of n elements divide rows of `cols` elements of all these tensors. */
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

/* Integers are not rounded. */
template <typename T>
__device__ __forceinline__ T
add_rn(T a, T b)
{
    return a + b;
}

__device__ __forceinline__ float
to_float(float x)
{
    return x;
}

__device__ __forceinline__ float
to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ __forceinline__ float
to_float(__half x)
{
    return __half2float(x);
}

__device__ __forceinline__ float
to_float(__nv_fp8_e4m3 x)
{
    return float(x);
}

template <typename T> __device__ __forceinline__ T of_float(float x);

template <>
__device__ __forceinline__ float
of_float<float>(float x)
{
    return x;
}

template <>
__device__ __forceinline__ __nv_bfloat16
of_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

template <>
__device__ __forceinline__ __half
of_float<__half>(float x)
{
    return __float2half_rn(x);
}

/* As in fp.h: nearest even, too large is 448. */
template <>
__device__ __forceinline__ __nv_fp8_e4m3
of_float<__nv_fp8_e4m3>(float x)
{
    return __nv_fp8_e4m3(x);
}

__device__ __forceinline__ void
pair_to(float *to, float a, float b)
{
    to[0] = a;
    to[1] = b;
}

__device__ __forceinline__ void
pair_to(__nv_bfloat16 *to, float a, float b)
{
    *(__nv_bfloat162 *)to = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ void
pair_to(__half *to, float a, float b)
{
    *(__half2 *)to = __floats2half2_rn(a, b);
}

__device__ __forceinline__ void
pair_to(__nv_fp8_e4m3 *to, float a, float b)
{
    *(__nv_fp8x2_e4m3 *)to = __nv_fp8x2_e4m3(make_float2(a, b));
}

/* What the hardware moves in one instruction, or in two for 32 bytes. */
struct two_words {
    uint4 a, b;
};
template <int BYTES> struct word_of;
template <> struct word_of<1> {
    typedef uint8_t type;
};
template <> struct word_of<2> {
    typedef uint16_t type;
};
template <> struct word_of<4> {
    typedef uint32_t type;
};
template <> struct word_of<8> {
    typedef uint2 type;
};
template <> struct word_of<16> {
    typedef uint4 type;
};
template <> struct word_of<32> {
    typedef two_words type;
};

/* v = the N elements at p, aligned to their size (at most 16 bytes). */
template <int N, typename T>
__device__ __forceinline__ void
load(float (&v)[N], const T *p)
{
    typename word_of<N *(int)sizeof(T)>::type w = *(decltype(w) *)p;

#pragma unroll
    for (int i = 0; i < N; i++) v[i] = to_float(((const T *)&w)[i]);
}

template <int N, typename T>
__device__ __forceinline__ void
store(T *p, const float (&v)[N])
{
    if constexpr (N == 1) {
        *p = of_float<T>(v[0]);
    } else {
        typename word_of<N *(int)sizeof(T)>::type w;

#pragma unroll
        for (int i = 0; i < N; i += 2) pair_to((T *)&w + i, v[i], v[i + 1]);
        *(decltype(w) *)p = w;
    }
}

/* The same with the type known at run time: a branch that is uniform in the grid. */
template <int N>
__device__ __forceinline__ void
load_as(float (&v)[N], enum dtype t, const void *p, size_t at)
{
    if (t == DT_F32)
        load<N>(v, (const float *)p + at);
    else if (t == DT_BF16)
        load<N>(v, (const __nv_bfloat16 *)p + at);
    else
        load<N>(v, (const __half *)p + at);
}

template <int N>
__device__ __forceinline__ void
store_as(enum dtype t, void *p, size_t at, const float (&v)[N])
{
    if (t == DT_F32)
        store<N>((float *)p + at, v);
    else if (t == DT_BF16)
        store<N>((__nv_bfloat16 *)p + at, v);
    else
        store<N>((__half *)p + at, v);
}

/* Row i of a float tensor. */
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

/* Sum over groups of `width` lanes (a power of two): a tree; every lane gets the result. */
template <typename T>
__device__ __forceinline__ T
group_sum(T v, int width)
{
    for (int step = width / 2; step > 0; step /= 2) v = add_rn(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

/* Sum over the block: within warps, then warp by warp. part: one float per warp in shared memory,
 * used by this sum only. Every thread gets the result. */
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
