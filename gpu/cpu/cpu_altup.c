/* cpu_altup.c - mul, gaussian_topk, match_rms, altup: gpu.h. */
#include "gpu/cpu/cpu_dot.h"
#include "gpu/cpu/cpu_ops.h"

enum { ROW_PART = 8 << 10 }; /* elements worth another thread */

struct streams_args {
    struct tensor y, x, w;
    float factor;
};

CPU_LOOP(mul)
{
    const struct streams_args *a = args;
    uint32_t n = a->y.dim[1];

    for (CPU_SHARE(i, a->y.dim[0])) {
        const float *x = row_of(&a->x, i);
        const void *w = a->w.data ? row_of(&a->w, a->w.dim[0] == 1 ? 0 : i) : NULL;
        float *y = row_of(&a->y, i);

        V8_ROW(n, at, width, {
            v8 v = v8_at(x, at, width);

            if (w) v = v8_mul(v, v8_at_as(a->w.dtype, w, at, width));
            v8_put(y, at, width, v);
        });
    }
}

CPU_LOOP(gaussian_topk)
{
    const struct streams_args *a = args;
    uint32_t n = a->y.dim[1];

    for (CPU_SHARE(i, a->y.dim[0])) {
        float *x = row_of(&a->y, i), mean = sum_of(x, n) / (float)n, *off = scratch, edge;
        uint32_t piece = CPU_SCRATCH / sizeof *off;
        float squares = 0;

        /* Distances from the mean are stored in the scratch, a piece at a time, so that the padding
         * of their sum is zero. */
        for (uint32_t from = 0; from < n; from += piece) {
            uint32_t m = MIN(piece, n - from);

            V8_ROW(m, at, width,
                   v8_put(off, at, width, v8_sub(v8_at(x + from, at, width), v8_set(mean))));
            squares += dot_1x1(DT_F32, off, off, m);
        }
        edge = fma_1(__builtin_sqrtf(squares / (float)n), a->factor, mean);
        V8_ROW(n, at, width, {
            v8 v = v8_sub(v8_at(x, at, width), v8_set(edge));

            v8_put(x, at, width, v8_if_less(v, v8_set(0), v8_set(0), v));
        });
    }
}

CPU_LOOP(match_rms)
{
    const struct streams_args *a = args;
    uint32_t n = a->y.dim[1];

    for (CPU_SHARE(i, a->y.dim[0])) {
        const float *like = row_of(&a->x, i);
        float *y = row_of(&a->y, i), want = dot_1x1(DT_F32, like, like, n) / (float)n;
        float have = dot_1x1(DT_F32, y, y, n) / (float)n;
        v8 k = v8_set(__builtin_sqrtf(want) / __builtin_sqrtf(MAX(have, a->factor)));

        V8_ROW(n, at, width, v8_put(y, at, width, v8_mul(v8_at(y, at, width), k)));
    }
}

enum { MOST_STREAMS = 8 };

CPU_LOOP(altup)
{
    const struct altup *a = args;
    uint32_t n = a->n_streams, d = a->x.dim[1] / n;

    for (CPU_SHARE(i, a->x.dim[0])) {
        const float *coef = row_of(&a->coef, i);
        const float *in = a->step == ALTUP_CORRECT ? row_of(&a->in, i) : NULL;
        float *x = row_of(&a->x, i);

        V8_ROW(d, at, width, {
            v8 was[MOST_STREAMS];

            for (uint32_t j = 0; j < n; j++) was[j] = v8_at(x + (size_t)j * d, at, width);
            for (uint32_t j = 0; j < n; j++) {
                v8 sum = was[j];

                if (in)
                    sum = v8_fma(v8_set(1 + coef[j]), v8_sub(v8_at(in, at, width), was[a->active]),
                                 sum);
                for (uint32_t k = 0; k < n && !in; k++)
                    sum = v8_fma(v8_set(coef[j * n + k]), was[k], sum);
                v8_put(x + (size_t)j * d, at, width, sum);
            }
        });
    }
}

#ifdef CPU_OPS

static int
queue(struct lane *l, cpu_run body, const struct streams_args *a)
{
    return cpu_queue(l, body, a, sizeof *a, cpu_row_parts(a->y, ROW_PART));
}

int
cpu_mul(struct lane *l, struct tensor y, struct tensor x, struct tensor w)
{
    return queue(l, run_mul, &(struct streams_args){ .y = y, .x = x, .w = w });
}

int
cpu_gaussian_topk(struct lane *l, struct tensor x, float factor)
{
    return queue(l, run_gaussian_topk, &(struct streams_args){ .y = x, .factor = factor });
}

int
cpu_match_rms(struct lane *l, struct tensor y, struct tensor like, float least)
{
    return queue(l, run_match_rms, &(struct streams_args){ .y = y, .x = like, .factor = least });
}

int
cpu_altup(struct lane *l, const struct altup *a)
{
    return cpu_queue(l, run_altup, a, sizeof *a, cpu_row_parts(a->x, ROW_PART));
}

#endif
