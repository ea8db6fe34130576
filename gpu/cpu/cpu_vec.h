/* cpu_vec.h - the type v8 (eight floats), in scalar and AVX2 code that give the same bits.
 *
 * Every file of loops is compiled twice: as scalar code (arrays and plain C), and with CPU_AVX2
 * defined and the compiler's AVX2, FMA and F16C enabled. A loop is written once over v8, so that
 * the order of its sums is the same in both. Each operation below is an IEEE operation. The
 * mathematics of the C library is not used: fma_1() is our own.
 *
 * CPU_LOOP(name) starts the definition of a loop for both instruction sets; run_name() is the
 * function for cpu_queue() that calls one of them. Code under #ifdef CPU_OPS is compiled only once.
 */
#pragma once
#include "gpu/cpu/cpu.h"
#include "gpu/fp.h"

#include <math.h>

#define ALWAYS static inline __attribute__((always_inline))

#ifdef CPU_AVX2
#include <immintrin.h>
#else
#define CPU_OPS
#endif

#ifdef __x86_64__
#define CPU_PICK(name, isa) ((isa) == ISA_AVX2 ? name##_avx2 : name##_scalar)
#else
#define CPU_PICK(name, isa) ((void)(isa), name##_scalar)
#endif

#define CPU_LOOP_HEAD(name) \
    void name(const void *args, CPU_UNUSED uint32_t part, CPU_UNUSED uint32_t parts, \
              CPU_UNUSED void *scratch)
#ifdef CPU_OPS
#define CPU_LOOP(name) \
    CPU_LOOP_HEAD(name##_scalar); \
    CPU_LOOP_HEAD(name##_avx2); \
    CPU_JOB(run_##name) \
    { \
        CPU_PICK(name, isa)(args, part, parts, scratch); \
    } \
    CPU_LOOP_HEAD(name##_scalar)
#else
#define CPU_LOOP(name) \
    CPU_LOOP_HEAD(name##_avx2); \
    CPU_LOOP_HEAD(name##_avx2)
#endif

#ifdef CPU_AVX2

typedef __m256 v8;
typedef __m256i n8; /* eight int32 */

/* clang-format off */
ALWAYS v8 v8_set(float x) { return _mm256_set1_ps(x); }
ALWAYS v8 v8_load(const float *p) { return _mm256_loadu_ps(p); }
ALWAYS void v8_store(float *p, v8 a) { _mm256_storeu_ps(p, a); }
ALWAYS v8 v8_add(v8 a, v8 b) { return _mm256_add_ps(a, b); }
ALWAYS v8 v8_sub(v8 a, v8 b) { return _mm256_sub_ps(a, b); }
ALWAYS v8 v8_mul(v8 a, v8 b) { return _mm256_mul_ps(a, b); }
ALWAYS v8 v8_div(v8 a, v8 b) { return _mm256_div_ps(a, b); }
ALWAYS v8 v8_fma(v8 a, v8 b, v8 c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS v8 v8_sqrt(v8 a) { return _mm256_sqrt_ps(a); }
/* max and min: a > b ? a : b, a < b ? a : b; both return b if one is NaN */
ALWAYS v8 v8_max(v8 a, v8 b) { return _mm256_max_ps(a, b); }
ALWAYS v8 v8_min(v8 a, v8 b) { return _mm256_min_ps(a, b); }
ALWAYS n8 n8_of_bits(v8 a) { return _mm256_castps_si256(a); }
ALWAYS v8 v8_of_bits(n8 a) { return _mm256_castsi256_ps(a); }
ALWAYS n8 n8_set(int32_t x) { return _mm256_set1_epi32(x); }
ALWAYS n8 n8_add(n8 a, n8 b) { return _mm256_add_epi32(a, b); }
ALWAYS n8 n8_sub(n8 a, n8 b) { return _mm256_sub_epi32(a, b); }
ALWAYS n8 n8_and(n8 a, n8 b) { return _mm256_and_si256(a, b); }
ALWAYS n8 n8_or(n8 a, n8 b) { return _mm256_or_si256(a, b); }
ALWAYS v8 v8_of_int(n8 a) { return _mm256_cvtepi32_ps(a); }
#define n8_shl(a, n) _mm256_slli_epi32(a, n)
#define n8_shr(a, n) _mm256_srai_epi32(a, n)
/* clang-format on */

/* Returns a < b ? x : y for each of the eight. */
ALWAYS v8
v8_if_less(v8 a, v8 b, v8 x, v8 y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

ALWAYS v8
v8_load_bf16(const uint16_t *p)
{
    return v8_of_bits(n8_shl(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

ALWAYS v8
v8_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

ALWAYS n8
n8_load_bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

/* Returns the sum of the eight, in this order: lanes i and i + 4, i and i + 2, the last two. */
ALWAYS float
v8_sum(v8 a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}

#else

typedef struct {
    float f[8];
} v8;
typedef struct {
    int32_t i[8];
} n8;

#define EACH_OF_8(type, field, expr) \
    ({ \
        type each_r; \
        for (int i = 0; i < 8; i++) each_r.field[i] = (expr); \
        each_r; \
    })
#define V8_EACH(expr) EACH_OF_8(v8, f, expr)
#define N8_EACH(expr) EACH_OF_8(n8, i, (int32_t)(expr))

/* clang-format off */
ALWAYS v8 v8_set(float x) { return V8_EACH(x); }
ALWAYS v8 v8_load(const float *p) { return V8_EACH(p[i]); }
ALWAYS void v8_store(float *p, v8 a) { memcpy(p, a.f, sizeof a.f); }
ALWAYS v8 v8_add(v8 a, v8 b) { return V8_EACH(a.f[i] + b.f[i]); }
ALWAYS v8 v8_sub(v8 a, v8 b) { return V8_EACH(a.f[i] - b.f[i]); }
ALWAYS v8 v8_mul(v8 a, v8 b) { return V8_EACH(a.f[i] * b.f[i]); }
ALWAYS v8 v8_div(v8 a, v8 b) { return V8_EACH(a.f[i] / b.f[i]); }
ALWAYS v8 v8_fma(v8 a, v8 b, v8 c) { return V8_EACH(fma_1(a.f[i], b.f[i], c.f[i])); }
ALWAYS v8 v8_sqrt(v8 a) { return V8_EACH(__builtin_sqrtf(a.f[i])); }
ALWAYS v8 v8_max(v8 a, v8 b) { return V8_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
ALWAYS v8 v8_min(v8 a, v8 b) { return V8_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
ALWAYS n8 n8_of_bits(v8 a) { return N8_EACH(bits_of_float(a.f[i])); }
ALWAYS v8 v8_of_bits(n8 a) { return V8_EACH(float_of_bits((uint32_t)a.i[i])); }
ALWAYS n8 n8_set(int32_t x) { return N8_EACH(x); }
ALWAYS n8 n8_add(n8 a, n8 b) { return N8_EACH((uint32_t)a.i[i] + (uint32_t)b.i[i]); }
ALWAYS n8 n8_sub(n8 a, n8 b) { return N8_EACH((uint32_t)a.i[i] - (uint32_t)b.i[i]); }
ALWAYS n8 n8_and(n8 a, n8 b) { return N8_EACH(a.i[i] & b.i[i]); }
ALWAYS n8 n8_or(n8 a, n8 b) { return N8_EACH(a.i[i] | b.i[i]); }
ALWAYS n8 n8_shl(n8 a, int n) { return N8_EACH((uint32_t)a.i[i] << n); }
ALWAYS n8 n8_shr(n8 a, int n) { return N8_EACH(a.i[i] >> n); }
ALWAYS v8 v8_of_int(n8 a) { return V8_EACH((float)a.i[i]); }
ALWAYS v8 v8_if_less(v8 a, v8 b, v8 x, v8 y) { return V8_EACH(a.f[i] < b.f[i] ? x.f[i] : y.f[i]); }
ALWAYS v8 v8_load_bf16(const uint16_t *p) { return V8_EACH(float_of_bf16(p[i])); }
ALWAYS v8 v8_load_f16(const uint16_t *p) { return V8_EACH(float_of_f16(p[i])); }
ALWAYS n8 n8_load_bytes(const uint8_t *p) { return N8_EACH(p[i]); }
/* clang-format on */

ALWAYS float
v8_sum(v8 a)
{
    float s0 = a.f[0] + a.f[4], s1 = a.f[1] + a.f[5], s2 = a.f[2] + a.f[6], s3 = a.f[3] + a.f[7];

    return (s0 + s2) + (s1 + s3);
}

#endif

/* Returns eight values of dtype e4m3 as floats. */
ALWAYS v8
v8_load_e4m3(const uint8_t *p)
{
    n8 b = n8_load_bytes(p), size = n8_shl(n8_and(b, n8_set(0x7f)), 20);
    v8 normal = v8_of_bits(n8_add(size, n8_set(0x3c000000)));
    v8 small = v8_sub(v8_of_bits(n8_add(size, n8_set(0x3c800000))), v8_set(0x1p-6f));
    v8 f = v8_if_less(normal, v8_set(0x1p-6f), small, normal);

    f = v8_if_less(v8_set(448), normal, v8_of_bits(n8_set(0x7fc00000)), f);
    return v8_of_bits(n8_or(n8_of_bits(f), n8_shl(n8_and(b, n8_set(0x80)), 24)));
}

/* Loads n < 8 values; the others are zeros. */
ALWAYS v8
v8_load_n(const float *p, uint32_t n)
{
    float part[8] = { 0 };

    memcpy(part, p, n * sizeof *p);
    return v8_load(part);
}

ALWAYS void
v8_store_n(float *p, v8 a, uint32_t n)
{
    float part[8];

    v8_store(part, a);
    memcpy(p, part, n * sizeof *p);
}

/* Loads eight values from element `at` of p on, of any float dtype. */
ALWAYS v8
v8_load_as(enum dtype t, const void *p, size_t at)
{
    if (t == DT_BF16) return v8_load_bf16((const uint16_t *)p + at);
    if (t == DT_F16) return v8_load_f16((const uint16_t *)p + at);
    if (t == DT_E4M3) return v8_load_e4m3((const uint8_t *)p + at);
    return v8_load((const float *)p + at);
}

ALWAYS v8
v8_load_as_n(enum dtype t, const void *p, size_t at, uint32_t n)
{
    uint16_t part[8] = { 0 };

    if (t == DT_F32) return v8_load_n((const float *)p + at, n);
    if (t == DT_E4M3) {
        memcpy(part, (const uint8_t *)p + at, n);
        return v8_load_e4m3((const uint8_t *)part);
    }
    memcpy(part, (const uint16_t *)p + at, n * sizeof part[0]);
    return t == DT_BF16 ? v8_load_bf16(part) : v8_load_f16(part);
}

ALWAYS v8
v8_neg(v8 a)
{
    return v8_of_bits(n8_add(n8_of_bits(a), n8_set(INT32_MIN)));
}

ALWAYS v8
v8_abs(v8 a)
{
    return v8_of_bits(n8_and(n8_of_bits(a), n8_set(INT32_MAX)));
}

/* Returns the magnitude of a with the sign of b. */
ALWAYS v8
v8_copysign(v8 a, v8 b)
{
    n8 sign = n8_and(n8_of_bits(b), n8_set(INT32_MIN));

    return v8_of_bits(n8_or(n8_and(n8_of_bits(a), n8_set(INT32_MAX)), sign));
}

ALWAYS float
v8_first(v8 a)
{
    float f[8];

    v8_store(f, a);
    return f[0];
}

/* Loops over the n elements of a row, eight at a time: runs body with index `at` and width 8, and
 * at the end with the remaining elements (width < 8). v8_at() then pads with zeros, and v8_put()
 * stores width elements. */
#define V8_ROW(n, at, width, body) \
    do { \
        uint32_t at = 0, width = 8; \
        for (; at + 8 <= (n); at += 8) body; \
        width = (n)-at; \
        if (width) body; \
    } while (0)

ALWAYS v8
v8_at(const float *p, uint32_t at, uint32_t width)
{
    return width == 8 ? v8_load(p + at) : v8_load_n(p + at, width);
}

ALWAYS v8
v8_at_as(enum dtype t, const void *p, uint32_t at, uint32_t width)
{
    return width == 8 ? v8_load_as(t, p, at) : v8_load_as_n(t, p, at, width);
}

ALWAYS void
v8_put(float *p, uint32_t at, uint32_t width, v8 a)
{
    if (width == 8)
        v8_store(p + at, a);
    else
        v8_store_n(p + at, a, width);
}
