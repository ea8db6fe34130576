/* cpu_mamba2.c - the ops conv and scan (gpu.h): convolution and recurrence of Mamba-2 layers.
 *
 * Both proceed row by row from the state of the previous row, so that chunks do not change the
 * result. The convolution is divided into parts by channels, the scan by (segment, head). The state
 * of a head is [head_dim][state_dim]; sums over state_dim have the order of cpu_dot.h.
 */
#include "gpu/cpu/cpu_math.h"
#include "gpu/cpu/cpu_ops.h"

struct conv_args {
    struct conv conv;
    struct step_tokens rows;
};
struct scan_args {
    struct scan scan;
    struct step_tokens rows;
};
_Static_assert(sizeof(struct scan_args) <= CPU_ARGS, "scan's arguments fit a job");

static char *
state_of(const struct kv_view *v, uint32_t slot)
{
    slice_id at = v->table[(size_t)slot * v->table_stride];

    check(at != SLICE_NONE);
    return (char *)v->base + (size_t)at * v->slice_bytes;
}

/* Returns the inputs of row `row` of a segment. A negative row is before the segment: its inputs
 * are in `kept`, the taps - 1 rows in the state, oldest first. */
static const float *
input_at(const struct conv *c, const struct segment *r, const float *kept, int32_t row)
{
    if (row >= 0) return row_of(&c->x, r->first_token + (uint32_t)row);
    return kept + (size_t)(row + (int32_t)c->n_taps - 1) * c->x.dim[1];
}

/* Computes channels first .. end of one segment. w: the weights of these channels, tap by tap. */
static void
conv_run(const struct conv *c, const struct segment *r, const float *w, uint32_t first,
         uint32_t end)
{
    float *kept = (float *)state_of(&c->state, r->slot);
    uint32_t n = c->x.dim[1], taps = c->n_taps, width;
    const float *bias = c->bias.data;
    v8 one = v8_set(1.0f);

    for (uint32_t i = 0; r->first_pos == 0 && i + 1 < taps; i++)
        memset(kept + (size_t)i * n + first, 0, (end - first) * sizeof *kept);
    for (int32_t t = 0; t < (int32_t)r->n_tokens; t++) {
        float *y = row_of(&c->y, r->first_token + (uint32_t)t);

        for (uint32_t at = first; at < end; at += width) {
            v8 sum = v8_set(0);

            width = MIN(8u, end - at);
            if (bias) sum = v8_at(bias, at, width);
            for (uint32_t k = 0; k < taps; k++)
                sum = v8_fma(v8_at(w + (size_t)k * (end - first), at - first, width),
                             v8_at(input_at(c, r, kept, t + (int32_t)(k + 1 - taps)), at, width),
                             sum);
            v8_put(y, at, width, v8_div(sum, v8_add(one, v8_exp(v8_neg(sum)))));
        }
    }
    for (int32_t i = 0; i + 1 < (int32_t)taps; i++)
        memmove(kept + (size_t)i * n + first,
                input_at(c, r, kept, (int32_t)r->n_tokens + i + 1 - (int32_t)taps) + first,
                (end - first) * sizeof *kept);
}

CPU_LOOP(conv)
{
    const struct conv *c = &((const struct conv_args *)args)->conv;
    const struct step_tokens *rows = &((const struct conv_args *)args)->rows;
    uint32_t n = c->x.dim[1], some, first = cpu_first(CEIL_DIV(n, 8u), part, parts) * 8;
    uint32_t end = MIN(cpu_first(CEIL_DIV(n, 8u), part + 1, parts) * 8, n);
    const float *from = c->w.data;
    float *w = scratch;

    for (; first < end; first += some) {
        some = MIN(end - first, (uint32_t)(CPU_SCRATCH / sizeof *w / c->n_taps));
        for (uint32_t k = 0; k < c->n_taps; k++)
            for (uint32_t i = 0; i < some; i++)
                w[(size_t)k * some + i] = from[(size_t)(first + i) * c->n_taps + k];
        for (uint32_t i = 0; i < rows->n_segments; i++)
            if (rows->segment[i].slot != SLOT_NONE && rows->segment[i].n_tokens)
                conv_run(c, &rows->segment[i], w, first, first + some);
    }
}

/* Returns log(1 + e^x), accurate also for small e^x: log(w) e^x / (w - 1), w = 1 + e^x rounded. */
ALWAYS float
softplus(float x)
{
    float u = exp_1(MIN(x, 80.0f)), w = 1.0f + u;

    if (x > 20.0f) return x;
    return w == 1.0f ? u : log_1(w) * (u / (w - 1.0f));
}

/* One row of the state: state = decay state + dx b. Returns the sum of state c. */
ALWAYS float
scan_row(float *state, float decay, float dx, const float *b, const float *c, uint32_t n)
{
    v8 keep = v8_set(decay), add = v8_set(dx), sum[2] = { v8_set(0), v8_set(0) };

    V8_ROW(n, at, width, {
        v8 s = v8_fma(add, v8_at(b, at, width), v8_mul(keep, v8_at(state, at, width)));

        v8_put(state, at, width, s);
        sum[at / 8 % 2] = v8_fma(s, v8_at(c, at, width), sum[at / 8 % 2]);
    });
    return v8_sum(v8_add(sum[0], sum[1]));
}

static void
scan_head(const struct scan *s, const struct segment *r, uint32_t head)
{
    uint32_t group = head / (s->n_heads / s->n_groups), dim = s->head_dim, n = s->state_dim;
    float *state = (float *)(state_of(&s->state, r->slot) + s->state_at) + (size_t)head * dim * n;
    float a = -exp_1(((const float *)s->a_log.data)[head]);
    float bias = ((const float *)s->dt_bias.data)[head], skip = ((const float *)s->d.data)[head];

    if (r->first_pos == 0) memset(state, 0, (size_t)dim * n * sizeof *state);
    for (uint32_t t = r->first_token; t < r->first_token + r->n_tokens; t++) {
        const float *x = (const float *)row_of(&s->x, t) + (size_t)head * dim;
        const float *gate = (const float *)row_of(&s->gate, t) + (size_t)head * dim;
        const float *b = (const float *)row_of(&s->x, t) + s->n_heads * dim + group * n;
        const float *c = b + s->n_groups * n;
        float *y = (float *)row_of(&s->y, t) + (size_t)head * dim;
        float dt = softplus(((const float *)row_of(&s->dt, t))[head] + bias), decay;

        dt = MIN(MAX(dt, s->dt_min), s->dt_max);
        decay = exp_1(dt * a);
        for (uint32_t i = 0; i < dim; i++) {
            float sum = scan_row(state + (size_t)i * n, decay, dt * x[i], b, c, n);

            sum = fma_1(skip, x[i], sum);
            y[i] = sum * (gate[i] / (1.0f + exp_1(-gate[i])));
        }
    }
}

CPU_LOOP(scan)
{
    const struct scan *s = &((const struct scan_args *)args)->scan;
    const struct step_tokens *rows = &((const struct scan_args *)args)->rows;

    for (CPU_SHARE(i, rows->n_segments * s->n_heads)) {
        const struct segment *r = &rows->segment[i / s->n_heads];

        if (r->slot != SLOT_NONE && r->n_tokens) scan_head(s, r, i % s->n_heads);
    }
}

#ifdef CPU_OPS

enum { STATE_PART = 8 << 10 }; /* elements that are worth another thread */

int
cpu_conv(struct lane *l, const struct conv *c, struct step_tokens r)
{
    struct conv_args a = { .conv = *c, .rows = r };
    uint64_t work = (uint64_t)c->x.dim[0] * c->x.dim[1] * c->n_taps;

    return cpu_queue(l, run_conv, &a, sizeof a,
                     cpu_parts(CEIL_DIV(c->x.dim[1], 8u), work, STATE_PART));
}

int
cpu_scan(struct lane *l, const struct scan *s, struct step_tokens r)
{
    struct scan_args a = { .scan = *s, .rows = r };
    uint64_t work = (uint64_t)s->x.dim[0] * s->x.dim[1] * s->state_dim;

    return cpu_queue(l, run_scan, &a, sizeof a,
                     cpu_parts(r.n_segments * s->n_heads, work, STATE_PART));
}

#endif
