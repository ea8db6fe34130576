/* cpu_norm.h - the RMS norm of one row, for rms_norm(), residual() and the heads in rope_store().
 */
#pragma once
#include "gpu/cpu/cpu_dot.h"

/* Returns 1 / sqrt(mean(x^2) + eps) in all eight lanes. */
ALWAYS v8
rms_inverse(const float *x, uint32_t n, float eps)
{
    float mean = dot_1x1(DT_F32, x, x, n) / (float)n;

    return v8_set(1.0f / __builtin_sqrtf(mean + eps));
}

/* Returns elements at .. at + width of x * inverse * (w + plus); w without data: x * inverse. */
ALWAYS v8
rms_at(const float *x, v8 inverse, const struct tensor *w, v8 plus, uint32_t at, uint32_t width)
{
    v8 v = v8_mul(v8_at(x, at, width), inverse);

    if (!w->data) return v;
    return v8_mul(v, v8_add(v8_at_as(w->dtype, w->data, at, width), plus));
}

/* y = x / sqrt(mean(x^2) + eps) * (w + plus); y may be x. */
ALWAYS void
rms_row(float *y, const float *x, uint32_t n, const struct tensor *w, float eps, float plus)
{
    v8 inverse = rms_inverse(x, n, eps), p = v8_set(plus);

    V8_ROW(n, at, width, v8_put(y, at, width, rms_at(x, inverse, w, p, at, width)));
}
