/* random_fill.cu - fills a tensor with random numbers; see random_fill.h. A thread makes the four
 * elements of one Philox counter: two pairs of uniforms, two normals each. Every operation is
 * written as one IEEE rounding, so that the compiler cannot contract it.
 */
#include "gpu/cuda/kernels/memory/random_fill.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/philox.h"

namespace {

constexpr uint32_t THREADS = 256;

/* Returns log(x) for x in [2^-24, 1], with the bits of v8_log() in cpu_math.h. */
__device__ __forceinline__ float
log_of(float x)
{
    int32_t exp = (__float_as_int(x) - __float_as_int(0.666666667f)) & (int32_t)0xff800000;
    float e = add_rn(0.0f, mul_rn((float)exp, 0x1p-23f));
    float m = add_rn(__int_as_float(__float_as_int(x) - exp), -1.0f), s = mul_rn(m, m);
    float r = -0.130310059f, t = 0.140869141f;

    r = fmaf(r, s, -0.121484190f);
    t = fmaf(t, s, 0.139814854f);
    r = fmaf(r, s, -0.166846052f);
    t = fmaf(t, s, 0.200120345f);
    r = fmaf(r, s, -0.249996200f);
    r = fmaf(t, m, r);
    r = fmaf(r, m, 0.333331972f);
    r = fmaf(r, m, -0.5f);
    r = fmaf(r, s, m);
    return fmaf(e, 0.693147182f, r);
}

/* cos(pi x) and, below, sin(pi x) for |x| <= 1/4, with the bits of cpu_math.h. */
__device__ __forceinline__ float
cospi_small(float x)
{
    float s = mul_rn(x, x), c = 0x1.d9e000p-3f;

    c = fmaf(c, s, -0x1.55c400p+0f);
    c = fmaf(c, s, 0x1.03c1cep+2f);
    c = fmaf(c, s, -0x1.3bd3ccp+2f);
    return fmaf(c, s, 1.0f);
}

__device__ __forceinline__ float
sinpi_small(float x)
{
    float s = mul_rn(x, x), r = -0x1.310000p-1f;

    r = fmaf(r, s, 0x1.46737ep+1f);
    r = fmaf(r, s, -0x1.4abbfep+2f);
    return fmaf(x, 0x1.921fb6p+1f, mul_rn(mul_rn(x, s), r));
}

/* Makes two normals from two random words, as normals() of cpu_fill.c. */
__device__ __forceinline__ void
normals(uint32_t word_u, uint32_t word_t, float std, float *even, float *odd)
{
    uint32_t angle = word_t >> 8, q = (angle + (1u << 21)) >> 22; /* 24 bits of a full circle */
    float u = mul_rn((float)((word_u >> 8) + 1), 0x1p-24f);
    float t = mul_rn((float)((int32_t)angle - (int32_t)(q << 22)), 0x1p-23f);
    float c = cospi_small(t), s = sinpi_small(t);
    float k = __fsqrt_rn(mul_rn(-2.0f, log_of(u)));

    q &= 3;
    *even = mul_rn(mul_rn(k, q == 0 ? c : q == 1 ? -s : q == 2 ? -c : s), std);
    *odd = mul_rn(mul_rn(k, q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c), std);
}

/* Fills n elements without gaps, four per thread. The first has number first, a multiple of 4. */
template <typename T>
__global__ void
__launch_bounds__(THREADS) fill(T *to, uint64_t first, uint64_t seed, float std, uint64_t n)
{
    uint64_t at = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * 4, c = (first + at) / 4;
    uint32_t counter[4] = { (uint32_t)c, (uint32_t)(c >> 32) }, w[4];
    float v[4];

    /* No next_may_start(): a kernel that starts early may read weights before they exist. */
    after_previous();
    if (at >= n) return;
    philox(seed, counter, w);
    normals(w[0], w[1], std, &v[0], &v[1]);
    normals(w[2], w[3], std, &v[2], &v[3]);
    store<4>(to + at, v);
}

/* A thread makes the sixteen bytes of one Philox counter. */
__global__ void
__launch_bounds__(THREADS) fill_bytes(uint8_t *to, uint64_t first, uint64_t seed, uint64_t n)
{
    uint64_t at = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * 16, c = (first + at) / 16;
    uint32_t counter[4] = { (uint32_t)c, (uint32_t)(c >> 32) }, w[4];

    after_previous();
    if (at >= n) return;
    philox(seed, counter, w);
    *(uint4 *)(to + at) = make_uint4(w[0], w[1], w[2], w[3]);
}

/* Fills any part of a matrix, where a row may start inside the PER numbers of one counter. A row
 * has `each` threads, one per counter; the last thread of a row may have no element. */
template <typename T>
__global__ void
__launch_bounds__(THREADS) fill_part(struct tensor t, uint64_t first, uint64_t pitch, uint32_t each,
                                     uint64_t seed, float std)
{
    constexpr uint32_t PER = sizeof(T) == 1 ? 16 : 4; /* numbers per counter */
    uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x, row = i / each;
    uint64_t from = first + row * pitch, c = from / PER + i % each;
    uint32_t counter[4] = { (uint32_t)c, (uint32_t)(c >> 32) }, w[4];
    T *to = (T *)t.data + row * t.stride;
    float v[4];

    after_previous();
    if (row >= t.dim[0] || c * PER >= from + t.dim[1]) return;
    philox(seed, counter, w);
    normals(w[0], w[1], std, &v[0], &v[1]);
    normals(w[2], w[3], std, &v[2], &v[3]);
    for (uint32_t j = 0; j < PER; j++) {
        uint64_t at = c * PER + j;

        if (at < from || at >= from + t.dim[1]) continue;
        if constexpr (sizeof(T) == 1)
            to[at - from] = (T)(w[j / 4] >> 8 * (j % 4));
        else
            to[at - from] = of_float<T>(v[j]);
    }
}

template <typename T>
cudaError_t
fill_any(const struct k_launch *l, struct tensor t, uint64_t seed, uint64_t first, uint64_t pitch,
         float std)
{
    constexpr uint32_t PER = sizeof(T) == 1 ? 16 : 4;
    uint64_t n = (uint64_t)t.dim[0] * t.dim[1];
    bool whole = t.dim[0] == 1 || (t.stride == t.dim[1] && pitch == t.dim[1]);

    if (n == 0) return cudaSuccess;
    if (whole && n % PER == 0 && first % PER == 0 && (uintptr_t)t.data % (PER * sizeof(T)) == 0) {
        uint64_t blocks = (n / PER + THREADS - 1) / THREADS;

        if (blocks > INT32_MAX) return cudaErrorInvalidValue;
        if constexpr (sizeof(T) == 1)
            return launch(fill_bytes, (uint32_t)blocks, THREADS, 0, l->st, (T *)t.data, first, seed,
                          n);
        else
            return launch(fill<T>, (uint32_t)blocks, THREADS, 0, l->st, (T *)t.data, first, seed,
                          std, n);
    }
    uint32_t each = (t.dim[1] + 2 * PER - 2) / PER;
    uint64_t blocks = ((uint64_t)t.dim[0] * each + THREADS - 1) / THREADS;

    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    return launch(fill_part<T>, (uint32_t)blocks, THREADS, 0, l->st, t, first, pitch, each, seed,
                  std);
}

} /* namespace */

cudaError_t
k_fill_random(const struct k_launch *l, struct tensor t, uint64_t seed, uint64_t first,
              uint64_t pitch, float std)
{
    if (t.dtype == DT_U8) return fill_any<uint8_t>(l, t, seed, first, pitch, std);
    WITH_FLOAT(T, t.dtype, { return fill_any<T>(l, t, seed, first, pitch, std); });
    return cudaSuccess;
}
