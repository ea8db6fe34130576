/* fill.cu - see fill.h.
 *
 * A thread makes the four elements of one Philox counter: two pairs of uniforms, each two normals. Every
 * operation is written as the one IEEE rounding it is, so that the compiler contracts nothing.
 */
#include "gpu/cuda/kernels/fill.h"

#include "gpu/cuda/kernels/launch.cuh"
#include "gpu/cuda/kernels/vec.cuh"
#include "gpu/philox.h"

namespace {

constexpr uint32_t THREADS = 256;

/* v8_log() of cpu_math.h, for x in [2^-24, 1]. */
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

/* Two normals from two words: cpu_fill.c's normals(). */
__device__ __forceinline__ void
normals(uint32_t word_u, uint32_t word_t, float std, float *even, float *odd)
{
    uint32_t turn = word_t >> 8, q = (turn + (1u << 21)) >> 22; /* 24 bits of a whole turn */
    float u = mul_rn((float)((word_u >> 8) + 1), 0x1p-24f);
    float t = mul_rn((float)((int32_t)turn - (int32_t)(q << 22)), 0x1p-23f);
    float c = cospi_small(t), s = sinpi_small(t);
    float k = __fsqrt_rn(mul_rn(-2.0f, log_of(u)));

    q &= 3;
    *even = mul_rn(mul_rn(k, q == 0 ? c : q == 1 ? -s : q == 2 ? -c : s), std);
    *odd = mul_rn(mul_rn(k, q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c), std);
}

/* n elements in all; rows of d, whole: stored four at a time, from rows without gaps. */
template <typename T, bool WHOLE>
__global__ void
__launch_bounds__(THREADS) fill(struct tensor t, uint64_t seed, float std, uint64_t n)
{
    uint64_t first = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    uint32_t counter[4] = { (uint32_t)(first / 4), (uint32_t)(first / 4 >> 32) }, w[4];
    float v[4];

    after_previous(); /* no next_may_start(): what it writes are weights, which others read early */
    if (first >= n) return;
    philox(seed, counter, w);
    normals(w[0], w[1], std, &v[0], &v[1]);
    normals(w[2], w[3], std, &v[2], &v[3]);
    if constexpr (WHOLE) {
        store<4>((T *)t.data + first, v);
    } else {
        for (uint32_t j = 0; j < 4 && first + j < n; j++) {
            uint64_t row = (first + j) / t.dim[1], col = (first + j) % t.dim[1];

            ((T *)t.data)[row * t.stride + col] = of_float<T>(v[j]);
        }
    }
}

/* A thread makes the sixteen bytes of one Philox counter. */
template <bool WHOLE>
__global__ void
__launch_bounds__(THREADS) fill_bytes(struct tensor t, uint64_t seed, uint64_t n)
{
    uint64_t first = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * 16;
    uint32_t counter[4] = { (uint32_t)(first / 16), (uint32_t)(first / 16 >> 32) }, w[4];

    after_previous();
    if (first >= n) return;
    philox(seed, counter, w);
    if constexpr (WHOLE) {
        *(uint4 *)((uint8_t *)t.data + first) = make_uint4(w[0], w[1], w[2], w[3]);
    } else {
        for (uint32_t j = 0; j < 16 && first + j < n; j++) {
            uint64_t row = (first + j) / t.dim[1], col = (first + j) % t.dim[1];

            ((uint8_t *)t.data)[row * t.stride + col] = (uint8_t)(w[j / 4] >> 8 * (j % 4));
        }
    }
}

} /* namespace */

cudaError_t
k_fill_random(const struct k_lane *l, struct tensor t, uint64_t seed, float std)
{
    uint64_t n = (uint64_t)t.dim[0] * t.dim[1];
    uint64_t blocks = (n + 4 * THREADS - 1) / (4 * THREADS);
    bool whole = n % 4 == 0 && (t.dim[0] == 1 || t.stride == t.dim[1]);

    if (n == 0) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    if (t.dtype == DT_U8) {
        uint32_t grid = (uint32_t)((n + 16 * THREADS - 1) / (16 * THREADS));

        if (whole && n % 16 == 0 && (uintptr_t)t.data % 16 == 0)
            return launch(fill_bytes<true>, grid, THREADS, 0, l->st, t, seed, n);
        return launch(fill_bytes<false>, grid, THREADS, 0, l->st, t, seed, n);
    }
    WITH_FLOAT(T, t.dtype, {
        if (whole && (uintptr_t)t.data % (4 * sizeof(T)) == 0)
            return launch(fill<T, true>, (uint32_t)blocks, THREADS, 0, l->st, t, seed, std, n);
        return launch(fill<T, false>, (uint32_t)blocks, THREADS, 0, l->st, t, seed, std, n);
    });
    return cudaSuccess;
}
