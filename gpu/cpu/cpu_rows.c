/* cpu_rows.c - ops of the CPU device that compute each row alone: add, mul, act, gate, act_matmul,
 * gate_matmul, scale, gaussian_topk, match_rms, altup; see gpu.h. */
#include "gpu/cpu/cpu_dot.h"
#include "gpu/cpu/cpu_math.h"
#include "gpu/cpu/cpu_ops.h"

struct rows_args {
    struct tensor y, x, w;
    enum act act;
    float factor, softcap;
};

ALWAYS v8
activate(v8 x, enum act act)
{
    v8 one = v8_set(1.0f), half = v8_set(0.5f), t;

    switch (act) {
    case ACT_RELU:
        return v8_if_less(x, v8_set(0), v8_set(0), x);
    case ACT_RELU2:
        return v8_if_less(x, v8_set(0), v8_set(0), v8_mul(x, x));
    case ACT_SILU:
        return v8_div(x, v8_add(one, v8_exp(v8_neg(x))));
    case ACT_GELU:
        t = v8_erf(v8_mul(x, v8_set(0.707106781f)));
        return v8_mul(v8_mul(half, x), v8_add(one, t));
    case ACT_GELU_TANH:
        t = v8_mul(v8_mul(x, x), x);
        t = v8_mul(v8_set(0.797884561f), v8_fma(v8_set(0.044715f), t, x));
        return v8_mul(v8_mul(half, x), v8_add(one, v8_tanh(t)));
    case ACT_SWIGLU_CLAMPED: /* not here: swiglu_clamped() computes it */
        break;
    }
    return x;
}

/* Stores act(x) in y, multiplied by `times` unless it is NULL. `act` is a constant at each call, so
 * that the switch in activate() is not in the loop. */
ALWAYS void
act_row(float *y, const float *x, const float *times, uint32_t n, enum act act)
{
    V8_ROW(n, at, width, {
        v8 v = activate(v8_at(x, at, width), act);

        if (times) v = v8_mul(v, v8_at(times, at, width));
        v8_put(y, at, width, v);
    });
}

/* ACT_SWIGLU_CLAMPED of one row x, in which gate and up columns alternate. */
static void
swiglu_clamped(float *y, const float *x, uint32_t n)
{
    V8_ROW(n, at, width, {
        float g[8] = { 0 };
        float u[8] = { 0 };

        for (uint32_t i = 0; i < width; i++) {
            g[i] = x[2 * (at + i)];
            u[i] = x[2 * (at + i) + 1];
        }
        v8 gate = v8_min(v8_load(g), v8_set(7));
        v8 one = v8_set(1);
        v8 up = v8_max(v8_min(v8_load(u), v8_set(7)), v8_set(-7));
        v8 e = v8_exp(v8_mul(gate, v8_set(-1.702f)));

        v8_put(y, at, width, v8_mul(v8_add(up, one), v8_div(gate, v8_add(one, e))));
    });
}

static void
act_any(float *y, const float *x, const float *times, uint32_t n, enum act act)
{
    switch (act) {
    case ACT_RELU:
        act_row(y, x, times, n, ACT_RELU);
        break;
    case ACT_RELU2:
        act_row(y, x, times, n, ACT_RELU2);
        break;
    case ACT_SILU:
        act_row(y, x, times, n, ACT_SILU);
        break;
    case ACT_GELU:
        act_row(y, x, times, n, ACT_GELU);
        break;
    case ACT_GELU_TANH:
        act_row(y, x, times, n, ACT_GELU_TANH);
        break;
    case ACT_SWIGLU_CLAMPED:
        swiglu_clamped(y, x, n);
        break;
    }
}

CPU_LOOP(act)
{
    const struct rows_args *a = args;

    for (CPU_SHARE(i, a->y.dim[0]))
        act_any(row_of(&a->y, i), row_of(&a->x, i), NULL, a->y.dim[1], a->act);
}

CPU_LOOP(gate)
{
    const struct rows_args *a = args;
    uint32_t n = a->y.dim[1];

    for (CPU_SHARE(i, a->y.dim[0])) {
        const float *gate = row_of(&a->x, i);

        act_any(row_of(&a->y, i), gate, gate + n, n, a->act);
    }
}

CPU_LOOP(add)
{
    const struct rows_args *a = args;

    for (CPU_SHARE(i, a->y.dim[0])) {
        const float *x = row_of(&a->x, i);
        float *y = row_of(&a->y, i);

        V8_ROW(a->y.dim[1], at, width,
               v8_put(y, at, width, v8_add(v8_at(y, at, width), v8_at(x, at, width))));
    }
}

CPU_LOOP(scale)
{
    const struct rows_args *a = args;
    v8 factor = v8_set(a->factor), cap = v8_set(a->softcap);

    for (CPU_SHARE(i, a->y.dim[0])) {
        float *y = row_of(&a->y, i);

        V8_ROW(a->y.dim[1], at, width, {
            v8 v = v8_mul(v8_at(y, at, width), factor);

            if (a->softcap != 0) v = v8_mul(cap, v8_tanh(v8_div(v, cap)));
            v8_put(y, at, width, v);
        });
    }
}

CPU_LOOP(mul)
{
    const struct rows_args *a = args;
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
    const struct rows_args *a = args;
    uint32_t n = a->y.dim[1];

    for (CPU_SHARE(i, a->y.dim[0])) {
        float *x = row_of(&a->y, i), mean = sum_of(x, n) / (float)n, *off = scratch, edge;
        uint32_t fits = CPU_SCRATCH / sizeof *off;
        float squares = 0;

        /* Stores the distances from the mean in the scratch, as many as fit at a time, because
         * dot_1x1() pads with zeros, which must be distances of 0 and not elements of x. */
        for (uint32_t from = 0; from < n; from += fits) {
            uint32_t m = MIN(fits, n - from);

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
    const struct rows_args *a = args;
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

enum { ROW_PART = 8 << 10 }; /* elements that are worth another thread */

static int
queue(struct lane *l, cpu_run body, const struct rows_args *a)
{
    return cpu_queue(l, body, a, sizeof *a, cpu_row_parts(a->y, ROW_PART));
}

int
cpu_add(struct lane *l, struct tensor y, struct tensor x)
{
    return queue(l, run_add, &(struct rows_args){ .y = y, .x = x });
}

int
cpu_act(struct lane *l, struct tensor y, struct tensor x, enum act a)
{
    return queue(l, run_act, &(struct rows_args){ .y = y, .x = x, .act = a });
}

int
cpu_gate(struct lane *l, struct tensor y, struct tensor gate_up, enum act a)
{
    return queue(l, run_gate, &(struct rows_args){ .y = y, .x = gate_up, .act = a });
}

int
cpu_act_matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w,
               struct tensor bias, enum act a)
{
    TRY(cpu_matmul(l, y, x, w, bias, 0));
    return cpu_act(l, y, y, a);
}

/* Queues two jobs: the gate needs both halves of a row, which different threads compute. */
int
cpu_gate_matmul(struct lane *l, struct tensor y, struct tensor both, struct tensor x,
                struct tensor w, enum act a)
{
    TRY(cpu_matmul(l, both, x, w, NO_TENSOR, 0));
    return cpu_gate(l, y, both, a);
}

int
cpu_scale(struct lane *l, struct tensor x, float factor, float softcap)
{
    return queue(l, run_scale, &(struct rows_args){ .y = x, .factor = factor, .softcap = softcap });
}

int
cpu_mul(struct lane *l, struct tensor y, struct tensor x, struct tensor w)
{
    return queue(l, run_mul, &(struct rows_args){ .y = y, .x = x, .w = w });
}

int
cpu_gaussian_topk(struct lane *l, struct tensor x, float factor)
{
    return queue(l, run_gaussian_topk, &(struct rows_args){ .y = x, .factor = factor });
}

int
cpu_match_rms(struct lane *l, struct tensor y, struct tensor like, float least)
{
    return queue(l, run_match_rms, &(struct rows_args){ .y = y, .x = like, .factor = least });
}

int
cpu_altup(struct lane *l, const struct altup *a)
{
    return cpu_queue(l, run_altup, a, sizeof *a, cpu_row_parts(a->x, ROW_PART));
}

#endif
