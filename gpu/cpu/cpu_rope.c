/* cpu_rope.c - the op rope_store (gpu.h): normalizes, rotates and stores new rows of q, k, v. */
#include "gpu/cpu/cpu_kv.h"
#include "gpu/cpu/cpu_norm.h"
#include "gpu/cpu/cpu_ops.h"

struct rope_args {
    struct rope_store s;
    struct step_tokens r;
};

/* Rotates the pairs of elements i and i + rot / 2 of one head; cs: the cosines, then the sines. */
ALWAYS void
rotate(float *x, const float *cs, uint32_t rot)
{
    uint32_t half = rot / 2;

    V8_ROW(half, at, width, {
        v8 c = v8_at(cs, at, width);
        v8 s = v8_at(cs + half, at, width);
        v8 a = v8_at(x, at, width);
        v8 b = v8_at(x + half, at, width);

        v8_put(x, at, width, v8_fma(a, c, v8_neg(v8_mul(b, s))));
        v8_put(x + half, at, width, v8_fma(b, c, v8_mul(a, s)));
    });
}

static void
store(const struct kv_view *kv, void *to, const float *x)
{
    uint16_t *h = to;

    if (kv->dtype == DT_F32) {
        memcpy(to, x, kv->head_dim * sizeof *x);
        return;
    }
    if (kv->dtype == DT_E4M3)
        for (uint32_t i = 0; i < kv->head_dim; i++) ((uint8_t *)to)[i] = e4m3_of_float(x[i]);
    else
        for (uint32_t i = 0; i < kv->head_dim; i++) h[i] = bf16_of_float(x[i]);
}

static void *
slot(const struct rope_args *a, uint32_t row, uint32_t head)
{
    void *key = kv_key(&a->s.kv, a->r.slot[row], (uint32_t)a->r.pos[row], head);

    check(key); /* never NULL: the KV manager allocates a block before the step that writes it */
    return key;
}

ALWAYS void
norm_and_rotate(const struct rope_store *s, float *x, const struct tensor *norm, const float *cs)
{
    if (norm->data) rms_row(x, x, s->head_dim, norm, s->norm_eps, s->norm_plus);
    if (cs) rotate(x, cs, s->cos_sin.dim[1]);
}

CPU_LOOP(rope_store)
{
    const struct rope_args *a = args;
    const struct rope_store *s = &a->s;
    uint32_t d = s->head_dim;

    for (CPU_SHARE(i, a->r.n_tokens)) {
        bool stores = s->kv.base && s->k.data && a->r.slot[i] != SLOT_NONE;
        const float *cs = NULL;

        if (s->cos_sin.data) {
            uint32_t pos = (uint32_t)a->r.pos[i];

            /* only padding rows have a position outside the table */
            if (pos >= s->cos_sin.dim[0]) {
                check(a->r.slot[i] == SLOT_NONE);
                continue;
            }
            cs = row_of(&s->cos_sin, pos);
        }
        for (uint32_t h = 0; s->q.data && h < s->n_heads; h++)
            norm_and_rotate(s, (float *)row_of(&s->q, i) + h * d, &s->q_norm, cs);
        /* Stores V before K (gpu.h): if K = V, v is the tensor k, before norm and rotation. */
        for (uint32_t h = 0; stores && s->kv.n_parts != 1 && h < s->n_kv_heads; h++) {
            const float *v = (const float *)row_of(&s->v, i) + h * d;

            if (s->v_norm) {
                rms_row(scratch, v, d, &(struct tensor){ 0 }, s->norm_eps, 0);
                v = scratch;
            }
            store(&s->kv, (char *)slot(a, i, h) + kv_value_offset(&s->kv), v);
        }
        for (uint32_t h = 0; s->k.data && h < s->n_kv_heads; h++) {
            float *k = (float *)row_of(&s->k, i) + h * d;

            if (stores) k = memcpy(scratch, k, d * sizeof *k);
            norm_and_rotate(s, k, &s->k_norm, cs);
            if (stores) store(&s->kv, slot(a, i, h), k);
        }
    }
}

#ifdef CPU_OPS

enum { ROPE_PART = 8 << 10 }; /* elements that are worth another thread */

int
cpu_rope_store(struct lane *l, const struct rope_store *s, struct step_tokens r)
{
    struct rope_args a = { *s, r };
    uint64_t work = (uint64_t)r.n_tokens * (s->n_heads + 2 * s->n_kv_heads) * s->head_dim;

    _Static_assert(sizeof a <= CPU_ARGS, "rope_store's arguments fit a job");
    return cpu_queue(l, run_rope_store, &a, sizeof a, cpu_parts(r.n_tokens, work, ROPE_PART));
}

#endif
