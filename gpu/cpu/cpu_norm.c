/* cpu_norm.c - the ops rms_norm and residual (gpu.h). Sums are in the order of cpu_dot.h. */
#include "gpu/cpu/cpu_norm.h"
#include "gpu/cpu/cpu_ops.h"

struct norm_args {
    struct tensor y, x, w;
    float eps, plus;
};

CPU_LOOP(rms_norm)
{
    const struct norm_args *a = args;

    for (CPU_SHARE(i, a->x.dim[0]))
        rms_row(row_of(&a->y, i), row_of(&a->x, i), a->x.dim[1], &a->w, a->eps, a->plus);
}

/* Adds in, in + in_bias or rms_norm(in) to x; the norm needs no buffer. */
ALWAYS void
add_row(float *x, const float *in, uint32_t n, const struct residual *r)
{
    v8 inverse = r->in_norm.data ? rms_inverse(in, n, r->eps) : v8_set(1), plus = v8_set(r->plus);

    V8_ROW(n, at, width, {
        v8 v = r->in_norm.data ? rms_at(in, inverse, &r->in_norm, plus, at, width)
                               : v8_at(in, at, width);

        if (r->in_bias.data) v = v8_add(v, v8_at_as(r->in_bias.dtype, r->in_bias.data, at, width));
        v8_put(x, at, width, v8_add(v8_at(x, at, width), v));
    });
}

/* Returns the sum of squares of the elements minus their mean. */
ALWAYS float
sum_of_squares(const float *x, uint32_t n, float mean)
{
    v8 sum[2] = { v8_set(0), v8_set(0) };
    float means[8];

    v8_store(means, v8_set(mean));
    V8_ROW(n, at, width, { /* v8_at() pads x and means with 0, so padding adds 0 */
                           v8 d = v8_sub(v8_at(x, at, width), v8_at(means, 0, width));

                           sum[at / 8 % 2] = v8_fma(d, d, sum[at / 8 % 2]);
    });
    return v8_sum(v8_add(sum[0], sum[1]));
}

/* Layer norm of one row; y may be x. */
static void
layer_row(float *y, const float *x, uint32_t n, const struct tensor *weight,
          const struct tensor *bias, float eps)
{
    float mean = sum_of(x, n) / (float)n;
    float inv = 1.0f / __builtin_sqrtf(sum_of_squares(x, n, mean) / (float)n + eps);
    v8 m = v8_set(mean), k = v8_set(inv);

    V8_ROW(n, at, width, {
        v8 v = v8_mul(v8_sub(v8_at(x, at, width), m), k);
        v8 w = weight->data ? v8_at_as(weight->dtype, weight->data, at, width) : v8_set(1);
        v8 b = bias->data ? v8_at_as(bias->dtype, bias->data, at, width) : v8_set(0);

        v8_put(y, at, width, v8_fma(v, w, b));
    });
}

CPU_LOOP(residual)
{
    const struct residual *r = args;
    uint32_t n = r->x.dim[1];

    for (CPU_SHARE(i, r->x.dim[0])) {
        float *x = row_of(&r->x, i), *y = r->y.data ? row_of(&r->y, i) : NULL;

        if (r->in.data) add_row(x, row_of(&r->in, i), n, r);
        if (r->norm == RESIDUAL_POST) layer_row(x, x, n, &r->y_norm, &r->y_bias, r->eps);
        if (!y) continue;
        if (r->norm == RESIDUAL_RMS)
            rms_row(y, x, n, &r->y_norm, r->eps, r->plus);
        else if (r->norm == RESIDUAL_LAYER)
            layer_row(y, x, n, &r->y_norm, &r->y_bias, r->eps);
        else
            memcpy(y, x, n * sizeof *y);
    }
}

#ifdef CPU_OPS

enum { NORM_PART = 16 << 10 }; /* elements that are worth another thread */

int
cpu_rms_norm(struct lane *l, struct tensor y, struct tensor x, struct tensor w, float eps,
             float plus)
{
    struct norm_args a = { y, x, w, eps, plus };

    return cpu_queue(l, run_rms_norm, &a, sizeof a, cpu_row_parts(x, NORM_PART));
}

int
cpu_residual(struct lane *l, const struct residual *r)
{
    if (r->parts && l->gpu->ranks > 1) TRY(cpu_all_reduce(l, r->in));
    return cpu_queue(l, run_residual, r, sizeof *r, cpu_row_parts(r->x, NORM_PART));
}

#endif
