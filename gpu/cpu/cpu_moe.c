/* cpu_moe.c - the ops route, expert_matmul and combine (gpu.h) of mixture-of-experts layers.
 *
 * route is two jobs: first each row chooses its experts, then one thread counts the (row, expert)
 * pairs and sorts them by expert. expert_matmul converts four weight rows of an expert at a time to
 * fp32 in the scratch of the thread and multiplies them with the rows of x of that expert. A part
 * of the job is a range of weight rows, the same for every expert.
 */
#include "gpu/cpu/cpu_dot.h"
#include "gpu/cpu/cpu_math.h"
#include "gpu/cpu/cpu_ops.h"

enum {
    ABREAST = 4,          /* weight rows that are multiplied together */
    WORK_PART = 64 << 10, /* multiply-adds that are worth another thread */
};

/* Returns the best expert that is not among the n experts in `taken`. */
static uint32_t
best_left(const float *logit, uint32_t n_experts, const uint32_t *taken, uint32_t n)
{
    uint32_t best = n_experts;

    for (uint32_t e = 0; e < n_experts; e++) {
        bool was = false;

        for (uint32_t j = 0; j < n; j++) was |= taken[j] == e;
        if (was) continue;
        /* NaN is the smallest value: any number replaces it as the best. */
        if (best == n_experts || logit[e] > logit[best] ||
            (logit[best] != logit[best] && logit[e] == logit[e]))
            best = e;
    }
    return best;
}

ALWAYS float
sigmoid(float x)
{
    return 1.0f / (1.0f + exp_1(-x));
}

CPU_LOOP(choose)
{
    const struct route *r = args;
    const struct pairs *p = &r->pairs;
    uint32_t k = p->n_top;

    check(p->n_experts <= CPU_SCRATCH / sizeof(float));
    for (CPU_SHARE(i, p->n_tokens)) {
        const float *logit = row_of(&r->logits, i), *scale = r->scale.data;
        uint32_t *expert = p->expert + (size_t)i * k;
        float *share = p->share + (size_t)i * k, sum = 0;
        bool padding = r->slot && r->slot[i] == SLOT_NONE;
        float *score = scratch;

        for (uint32_t e = 0; e < p->n_experts && r->sigmoid; e++)
            score[e] = sigmoid(logit[e]) + ((const float *)r->bias.data)[e];
        for (uint32_t j = 0; j < k; j++)
            expert[j] = padding ? p->n_experts
                                : best_left(r->sigmoid ? score : logit, p->n_experts, expert, j);
        for (uint32_t j = 0; j < k; j++) {
            if (padding)
                share[j] = 0;
            else if (r->sigmoid)
                share[j] = sigmoid(logit[expert[j]]);
            else
                share[j] = exp_1((logit[expert[j]] - logit[expert[0]]) * r->factor);
            sum += share[j];
        }
        for (uint32_t j = 0; j < k && !padding && r->sigmoid; j++)
            share[j] = share[j] / (sum + 1e-20f) * r->factor;
        for (uint32_t j = 0; j < k && !padding && !r->sigmoid; j++)
            share[j] = share[j] / sum * (scale ? scale[expert[j]] : 1);
    }
}

CPU_LOOP(place)
{
    const struct pairs *p = args;
    uint32_t n = p->n_tokens * p->n_top, *first = p->first;

    memset(first, 0, (p->n_experts + 1) * sizeof *first);
    for (uint32_t i = 0; i < n; i++)
        if (p->expert[i] < p->n_experts) first[p->expert[i] + 1]++;
    for (uint32_t e = 0; e < p->n_experts; e++) first[e + 1] += first[e];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 0;

        if (p->expert[i] < p->n_experts) {
            at = first[p->expert[i]]++;
            p->row[at] = i / p->n_top;
        }
        p->place[i] = at;
    }
    /* first[e] is now the first sorted pair of expert e + 1: moves the array up by one. */
    for (uint32_t e = p->n_experts; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}

struct product_args {
    struct expert_matmul m;
    struct pairs p;
};

/* Converts weight row `row` to fp32 in `to`. */
static void
widen(float *to, const struct tensor *w, uint32_t row)
{
    uint32_t k = w->dim[1], segments = k / MX_RUN;

    if (w->dtype != DT_MXFP4) {
        const void *from = row_of(w, row);

        V8_ROW(k, at, width, v8_put(to, at, width, v8_at_as(w->dtype, from, at, width)));
        return;
    }
    for (uint32_t i = 0; i < segments; i++) {
        const uint8_t *code = (const uint8_t *)w->data +
                              ((size_t)row * segments + i) * (MX_RUN / 2);
        float scale = float_of_e8m0(((const uint8_t *)w->scale)[(size_t)row * segments + i]);

        for (uint32_t j = 0; j < MX_RUN / 2; j++) {
            to[i * MX_RUN + 2 * j] = float_of_e2m1(code[j] & 15) * scale;
            to[i * MX_RUN + 2 * j + 1] = float_of_e2m1(code[j] >> 4) * scale;
        }
    }
}

/* Computes columns [col, col + n) of y for the pairs of one expert. */
static void
columns(const struct product_args *a, uint32_t expert, uint32_t col, uint32_t n, float *scratch)
{
    const struct expert_matmul *m = &a->m;
    uint32_t out = m->y.dim[1], k = m->w.dim[1], pitch = ROUND_UP(k, 16u);
    const void *w[ABREAST];

    for (uint32_t j = 0; j < n; j++) {
        w[j] = scratch + (size_t)j * pitch;
        widen(scratch + (size_t)j * pitch, &m->w, expert * out + col + j);
    }
    for (uint32_t p = a->p.first[expert]; p < a->p.first[expert + 1]; p++) {
        const float *x = row_of(&m->x, m->by_row ? a->p.row[p] : p);
        float *y = (float *)row_of(&m->y, p) + col;

        if (n == ABREAST)
            dot_1x4(DT_F32, x, w, k, y);
        else
            for (uint32_t j = 0; j < n; j++) y[j] = dot_1x1(DT_F32, x, w[j], k);
        for (uint32_t j = 0; j < n && m->bias.data; j++)
            y[j] += ((const float *)row_of(&m->bias, expert))[col + j];
    }
}

CPU_LOOP(expert_matmul)
{
    const struct product_args *a = args;
    uint32_t first = cpu_first(a->m.y.dim[1], part, parts), pitch = ROUND_UP(a->m.w.dim[1], 16u);
    uint32_t end = cpu_first(a->m.y.dim[1], part + 1, parts);
    uint32_t fits = (uint32_t)(CPU_SCRATCH / sizeof(float)) / pitch;
    uint32_t abreast = MIN(fits, (uint32_t)ABREAST);

    for (uint32_t e = 0; e < a->p.n_experts; e++) {
        if (a->p.first[e] == a->p.first[e + 1]) continue;
        for (uint32_t col = first; col < end; col += abreast)
            columns(a, e, col, MIN(abreast, end - col), scratch);
    }
}

struct combine_args {
    struct tensor y, x;
    struct pairs p;
};

CPU_LOOP(combine)
{
    const struct combine_args *a = args;
    uint32_t k = a->p.n_top, n = a->y.dim[1];

    for (CPU_SHARE(i, a->p.n_tokens)) {
        const float *share = a->p.share + (size_t)i * k;
        const uint32_t *place = a->p.place + (size_t)i * k;
        bool padding = a->p.expert[(size_t)i * k] == a->p.n_experts;
        float *y = row_of(&a->y, i);

        V8_ROW(n, at, width, {
            v8 sum = v8_set(0);

            for (uint32_t j = 0; j < k && !padding; j++)
                sum = v8_fma(v8_set(share[j]),
                             v8_at((const float *)row_of(&a->x, place[j]), at, width), sum);
            v8_put(y, at, width, sum);
        });
    }
}

#ifdef CPU_OPS

int
cpu_route(struct lane *l, const struct route *r)
{
    uint64_t work = (uint64_t)r->pairs.n_tokens * r->pairs.n_experts * r->pairs.n_top;

    TRY(cpu_queue(l, run_choose, r, sizeof *r, cpu_parts(r->pairs.n_tokens, work, WORK_PART)));
    return cpu_queue(l, run_place, &r->pairs, sizeof r->pairs, 1);
}

int
cpu_expert_matmul(struct lane *l, const struct expert_matmul *m, const struct pairs *p)
{
    struct product_args a = { *m, *p };
    uint64_t work = (uint64_t)m->y.dim[0] * m->y.dim[1] * m->w.dim[1];

    _Static_assert(sizeof a <= CPU_ARGS, "expert_matmul's arguments fit a job");
    if (ROUND_UP(m->w.dim[1], 16u) > CPU_SCRATCH / sizeof(float)) return -ENOTSUP;
    return cpu_queue(l, run_expert_matmul, &a, sizeof a, cpu_parts(m->y.dim[1], work, WORK_PART));
}

int
cpu_combine(struct lane *l, struct tensor y, struct tensor x, const struct pairs *p)
{
    struct combine_args a = { y, x, *p };
    uint64_t work = (uint64_t)p->n_tokens * p->n_top * y.dim[1];

    return cpu_queue(l, run_combine, &a, sizeof a, cpu_parts(p->n_tokens, work, WORK_PART));
}

#endif
