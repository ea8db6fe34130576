/* cpu_norm.h - the rms norm of one row, for rms_norm() and for the heads in rope_store(). */
#ifndef CPU_CPU_NORM_H
#define CPU_CPU_NORM_H

#include "gpu/cpu/cpu_dot.h"

/* y = x / sqrt(mean(x^2) + eps) * (w + plus); y may be x; w may have no data. */
ALWAYS void
rms_row(float *y, const float *x, uint32_t n, const struct tensor *w, float eps, float plus)
{
    float mean = dot_1x1(DT_F32, x, x, n) / (float)n;
    v8 inv = v8_set(1.0f / __builtin_sqrtf(mean + eps)), p = v8_set(plus);

    V8_ROW(n, at, width, {
        v8 v = v8_mul(v8_at(x, at, width), inv);

        if (w->data) v = v8_mul(v, v8_add(v8_at_as(w->dtype, w->data, at, width), p));
        v8_put(y, at, width, v);
    });
}

#endif
