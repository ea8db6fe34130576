/* cpu_act.c - element-wise ops: add, act, gate, gate_matmul, scale; see gpu.h. */
#include "gpu/cpu/cpu_math.h"
#include "gpu/cpu/cpu_ops.h"

struct act_args {
    struct tensor y, x;
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
    case ACT_SWIGLU_CLAMPED: /* see swiglu_clamped() */
        break;
    }
    return x;
}

/* One row; the switch on the activation is outside of the loops. */
ALWAYS void
act_row(float *y, const float *x, const float *times, uint32_t n, enum act act)
{
    V8_ROW(n, at, width, {
        v8 v = activate(v8_at(x, at, width), act);

        if (times) v = v8_mul(v, v8_at(times, at, width));
        v8_put(y, at, width, v);
    });
}

/* ACT_SWIGLU_CLAMPED: gate and up are interleaved. */
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
    const struct act_args *a = args;

    for (CPU_SHARE(i, a->y.dim[0]))
        act_any(row_of(&a->y, i), row_of(&a->x, i), NULL, a->y.dim[1], a->act);
}

CPU_LOOP(gate)
{
    const struct act_args *a = args;
    uint32_t n = a->y.dim[1];

    for (CPU_SHARE(i, a->y.dim[0])) {
        const float *gate = row_of(&a->x, i);

        act_any(row_of(&a->y, i), gate, gate + n, n, a->act);
    }
}

CPU_LOOP(add)
{
    const struct act_args *a = args;

    for (CPU_SHARE(i, a->y.dim[0])) {
        const float *x = row_of(&a->x, i);
        float *y = row_of(&a->y, i);

        V8_ROW(a->y.dim[1], at, width,
               v8_put(y, at, width, v8_add(v8_at(y, at, width), v8_at(x, at, width))));
    }
}

CPU_LOOP(scale)
{
    const struct act_args *a = args;
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

#ifdef CPU_OPS

enum { ACT_PART = 8 << 10 }; /* elements worth another thread */

static int
queue(struct lane *l, cpu_run body, const struct act_args *a)
{
    return cpu_queue(l, body, a, sizeof *a, cpu_row_parts(a->y, ACT_PART));
}

int
cpu_add(struct lane *l, struct tensor y, struct tensor x)
{
    return queue(l, run_add, &(struct act_args){ .y = y, .x = x });
}

int
cpu_act(struct lane *l, struct tensor y, struct tensor x, enum act a)
{
    return queue(l, run_act, &(struct act_args){ .y = y, .x = x, .act = a });
}

int
cpu_gate(struct lane *l, struct tensor y, struct tensor gate_up, enum act a)
{
    return queue(l, run_gate, &(struct act_args){ .y = y, .x = gate_up, .act = a });
}

int
cpu_act_matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w,
               struct tensor bias, enum act a)
{
    TRY(cpu_matmul(l, y, x, w, bias, 0));
    return cpu_act(l, y, y, a);
}

/* Queues the whole product, then the gate: different threads compute the two halves of a row. */
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
    return queue(l, run_scale, &(struct act_args){ .y = x, .factor = factor, .softcap = softcap });
}

#endif
