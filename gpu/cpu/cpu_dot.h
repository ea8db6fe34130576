/* cpu_dot.h - dot products of rows, with the one order of additions that matmul and attention use.
 *
 * A sum over k has 16 partial sums: element k is added to partial sum k % 16, by fused
 * multiply-add, in ascending k. Then partial sums i and i + 8 are added, and the 8 results with
 * v8_sum(). 16 partial sums are two AVX2 registers or one AVX-512 register. The number of rows
 * computed together changes only which sums share registers, not the order of additions.
 */
#pragma once
#include "gpu/cpu/cpu_vec.h"

/* A product of n_x rows with n_w rows over k elements; t: dtype of w. n_x and n_w are constants
 * with n_x * n_w <= 6, so that all partial sums stay in registers. */
struct dot {
    uint32_t n_x, n_w, k;
    enum dtype t;
};

/* out[i * n_w + j] = x[i] . w[j] */
ALWAYS void
dot_rows(struct dot d, const float *const *x, const void *const *w, float *out)
{
    v8 sum[2][6]; /* partial sums 0 to 7, and 8 to 15, of each product */
    uint32_t at = 0, n = d.n_x * d.n_w;

#pragma GCC unroll 6
    for (uint32_t i = 0; i < n; i++) sum[0][i] = sum[1][i] = v8_set(0);
    for (; at + 16 <= d.k; at += 16) {
#pragma GCC unroll 2
        for (uint32_t half = 0; half < 2; half++) {
            v8 a = v8_load(x[0] + at + 8 * half), b = a;

            if (d.n_x == 2) b = v8_load(x[1] + at + 8 * half);
#pragma GCC unroll 4
            for (uint32_t j = 0; j < d.n_w; j++) {
                v8 c = v8_load_as(d.t, w[j], at + 8 * half);

                sum[half][j] = v8_fma(a, c, sum[half][j]);
                if (d.n_x == 2) sum[half][d.n_w + j] = v8_fma(b, c, sum[half][d.n_w + j]);
            }
        }
    }
    /* The last k % 16 elements, in one or two groups of up to eight, padded with zeros. */
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; half++, at += 8)
        for (uint32_t i = 0; at < d.k && i < n; i++)
            sum[half][i] = v8_fma(v8_at(x[i / d.n_w], at, MIN(d.k - at, 8u)),
                                  v8_at_as(d.t, w[i % d.n_w], at, MIN(d.k - at, 8u)), sum[half][i]);
#pragma GCC unroll 6
    for (uint32_t i = 0; i < n; i++) out[i] = v8_sum(v8_add(sum[0][i], sum[1][i]));
}

ALWAYS void
dot_1x4(enum dtype t, const float *x, const void *const w[4], uint32_t k, float out[4])
{
    dot_rows((struct dot){ 1, 4, k, t }, &x, w, out);
}

/* Returns the products of two rows of x with three fp32 rows of w, which use all registers. */
ALWAYS void
dot_2x3(const float *const x[2], const void *const w[3], uint32_t k, float out[6])
{
    dot_rows((struct dot){ 2, 3, k, DT_F32 }, x, w, out);
}

ALWAYS float
dot_1x1(enum dtype t, const float *x, const void *w, uint32_t k)
{
    float out;

    dot_rows((struct dot){ 1, 1, k, t }, &x, &w, &out);
    return out;
}

/* Returns the sum of the elements of a row. */
ALWAYS float
sum_of(const float *x, uint32_t n)
{
    v8 sum[2] = { v8_set(0), v8_set(0) };

    V8_ROW(n, at, width, sum[at / 8 % 2] = v8_add(sum[at / 8 % 2], v8_at(x, at, width)));
    return v8_sum(v8_add(sum[0], sum[1]));
}
