/* cpu_dot.h - dot products: the one order in which matmul and attention add.
 *
 * A sum over k has 16 partial sums: element k goes to partial k % 16, by fused multiply-add, in
 * ascending k. They are added as lanes i and i + 8, then with the tree of v8_sum(). 16 partials are
 * two AVX2 registers or one AVX-512 register. The number of rows computed together changes only
 * which sums share registers.
 */
#pragma once

#include "gpu/cpu/cpu_vec.h"

/* The remainder of k after the last 16 elements: up to two more steps, padded with zeros. */
#define DOT_TAIL(k, at, step) \
    do { \
        uint32_t dot_left = (k) - (at); \
        if (dot_left) step(lo, at, MIN(dot_left, 8u)); \
        if (dot_left > 8) step(hi, at + 8, dot_left - 8); \
    } while (0)

/* out[i] = x . w[i] for four rows of w of one type. */
ALWAYS void
dot_1x4(enum dtype t, const float *x, const void *const w[4], uint32_t k, float out[4])
{
    v8 lo[4], hi[4];
    uint32_t at = 0;

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) lo[i] = hi[i] = v8_set(0);
    for (; at + 16 <= k; at += 16) {
        v8 a = v8_load(x + at), b = v8_load(x + at + 8);

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            lo[i] = v8_fma(a, v8_load_as(t, w[i], at), lo[i]);
            hi[i] = v8_fma(b, v8_load_as(t, w[i], at + 8), hi[i]);
        }
    }
#define STEP(acc, from, n) \
    for (int i = 0; i < 4; i++) \
    acc[i] = v8_fma(v8_at(x, from, n), v8_at_as(t, w[i], from, n), acc[i])
    DOT_TAIL(k, at, STEP);
#undef STEP
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) out[i] = v8_sum(v8_add(lo[i], hi[i]));
}

/* out[j * stride + i] = x[j] . w[i] for two rows of x and three of w: uses all registers. */
ALWAYS void
dot_2x3(enum dtype t, const float *const x[2], const void *const w[3], uint32_t k, float *out,
        size_t stride)
{
    v8 lo[6], hi[6];
    uint32_t at = 0;

#pragma GCC unroll 6
    for (int i = 0; i < 6; i++) lo[i] = hi[i] = v8_set(0);
    for (; at + 16 <= k; at += 16) {
#define HALF(acc, from) \
    do { \
        v8 a = v8_load(x[0] + (from)), b = v8_load(x[1] + (from)); \
        _Pragma("GCC unroll 3") for (int i = 0; i < 3; i++) \
        { \
            v8 c = v8_load_as(t, w[i], from); \
            acc[i] = v8_fma(a, c, acc[i]); \
            acc[3 + i] = v8_fma(b, c, acc[3 + i]); \
        } \
    } while (0)
        HALF(lo, at);
        HALF(hi, at + 8);
#undef HALF
    }
#define STEP(acc, from, n) \
    for (int i = 0; i < 6; i++) \
    acc[i] = v8_fma(v8_at(x[i / 3], from, n), v8_at_as(t, w[i % 3], from, n), acc[i])
    DOT_TAIL(k, at, STEP);
#undef STEP
#pragma GCC unroll 6
    for (int i = 0; i < 6; i++)
        out[(size_t)(i / 3) * stride + (size_t)(i % 3)] = v8_sum(v8_add(lo[i], hi[i]));
}

ALWAYS float
dot_1x1(enum dtype t, const float *x, const void *w, uint32_t k)
{
    v8 lo[1] = { v8_set(0) }, hi[1] = { v8_set(0) };
    uint32_t at = 0;

    for (; at + 16 <= k; at += 16) {
        lo[0] = v8_fma(v8_load(x + at), v8_load_as(t, w, at), lo[0]);
        hi[0] = v8_fma(v8_load(x + at + 8), v8_load_as(t, w, at + 8), hi[0]);
    }
#define STEP(acc, from, n) acc[0] = v8_fma(v8_at(x, from, n), v8_at_as(t, w, from, n), acc[0])
    DOT_TAIL(k, at, STEP);
#undef STEP
    return v8_sum(v8_add(lo[0], hi[0]));
}
