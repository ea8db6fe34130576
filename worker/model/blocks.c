/* blocks.c - see blocks.h. */
#include "worker/model/blocks.h"

#include "worker/model/sharding.h"

#include <string.h>

/* Columns of activations that have so many words. */
static uint32_t
words(const struct model *m, uint32_t n)
{
    return n * (uint32_t)(4 / dtype_bytes(m->act, 1));
}

/* Of struct pairs's arrays, a row's share of each, in their order; all of first[] for every row, so that it is
 * there with one. */
static uint32_t
route_words(const struct layer_shape *l)
{
    return l->n_experts ? 4 * ROUND_UP(l->n_top, 4u) + 2 * ROUND_UP(l->n_experts + 1, 4u) : 0;
}

static void
widen(const struct model *m, uint32_t cols[MAX_SCRATCH], const struct layer_shape *l)
{
    uint32_t q = l->n_heads * l->head_dim, kv = l->n_kv_heads * l->head_dim;

    cols[BLOCK_QKV] = MAX(cols[BLOCK_QKV], q + 2 * kv);
    cols[BLOCK_HEADS] = MAX(cols[BLOCK_HEADS], q);
    cols[BLOCK_GATE_UP] = MAX(cols[BLOCK_GATE_UP], 2 * l->n_ff);
    cols[BLOCK_INNER] = MAX(cols[BLOCK_INNER], l->n_ff);
    cols[BLOCK_ROUTE] = MAX(cols[BLOCK_ROUTE], words(m, route_words(l)));
    cols[BLOCK_PAIRS] = MAX(cols[BLOCK_PAIRS], l->n_top * 2 * l->expert_ff);
    cols[BLOCK_PAIRS_INNER] = MAX(cols[BLOCK_PAIRS_INNER], l->n_top * l->expert_ff);
    cols[BLOCK_PAIRS_OUT] = MAX(cols[BLOCK_PAIRS_OUT], l->n_top * m->shape.hidden);
}

/* What a sublayer adds may be more than fp16 holds: transformers keeps T5's wo in fp32 then. */
static bool
out_is_wide(const struct model *m)
{
    return m->act == DT_F16;
}

void
model_scratch(const struct model *m, uint32_t cols[MAX_SCRATCH])
{
    const struct model_shape *s = &m->shape;

    memset(cols, 0, MAX_SCRATCH * sizeof *cols);
    cols[BLOCK_NORMED] = s->hidden;
    cols[BLOCK_OUT] = out_is_wide(m) ? words(m, s->hidden) : s->hidden;
    for (uint32_t i = 0; i < s->n_layers; i++) widen(m, cols, &s->layer[i]);
    for (uint32_t i = 0; i < s->n_encoder_layers; i++) widen(m, cols, &s->encoder[i]);
    if (s->n_encoder_layers) widen(m, cols, &s->cross);
    cols[BLOCK_OWN] = words(m, s->own_cols);
}

struct tensor
block_scratch(const struct step *s, enum block_scratch which, uint32_t rows, uint32_t cols)
{
    return tensor_cols(tensor_rows(s->scratch[which], 0, rows), 0, cols);
}

struct tensor
block_area(const struct step *s, enum block_scratch which, uint32_t words, uint32_t rows,
           uint32_t cols, enum dtype t)
{
    const struct tensor *all = &s->scratch[which];
    size_t at = (size_t)all->dim[0] * words * 4;

    check(words % 4 == 0); /* so that it begins on 16 bytes, whatever the number of rows */
    check(at + dtype_bytes(t, (size_t)rows * cols) <=
          dtype_bytes(all->dtype, (size_t)all->dim[0] * all->stride));
    return tensor_2d((char *)all->data + at, t, rows, cols);
}

/* n elements of a word each a row, behind those at *words. */
static void *
take(const struct step *s, uint32_t *words, uint32_t n, uint32_t rows)
{
    void *data = block_area(s, BLOCK_ROUTE, *words, rows, n, DT_F32).data;

    *words += ROUND_UP(n, 4u);
    return data;
}

struct tensor
block_logits(const struct step *s, const struct layer_shape *l, uint32_t rows)
{
    return block_area(s, BLOCK_ROUTE, 0, rows, l->n_experts, DT_F32);
}

int
block_experts(const struct model *m, struct step *s, const struct layer_shape *l, struct tensor out,
              struct tensor x, const struct block_experts *e)
{
    const struct gpu_ops *op = m->op;
    uint32_t rows = out.dim[0], n = rows * l->n_top, at = ROUND_UP(l->n_experts, 4u);
    struct route r = {
        .logits = block_logits(s, l, rows),
        .sigmoid = e->sigmoid,
        .bias = e->bias,
        .factor = e->factor,
        .scale = e->scale,
        .slot = s->rows.slot,
        .pairs = { .n_tokens = rows, .n_top = l->n_top, .n_experts = l->n_experts },
    };
    struct tensor both = block_area(s, BLOCK_PAIRS, 0, n, (e->plain ? 1 : 2) * l->expert_ff,
                                    m->act);
    struct tensor inner = block_area(s, BLOCK_PAIRS_INNER, 0, n, l->expert_ff, m->act);
    struct tensor each = block_area(s, BLOCK_PAIRS_OUT, 0, n, out.dim[1], m->act);
    struct expert_matmul up = {
        .y = both, .x = x, .w = e->gate_up, .bias = e->gate_up_bias, .by_row = true
    };
    /* Of a sum over ranks the bias is a part once. */
    struct expert_matmul down = {
        .y = each, .x = inner, .w = e->down, .bias = m->rank ? NO_TENSOR : e->down_bias
    };

    r.pairs.expert = take(s, &at, l->n_top, rows);
    r.pairs.share = take(s, &at, l->n_top, rows);
    r.pairs.place = take(s, &at, l->n_top, rows);
    r.pairs.row = take(s, &at, l->n_top, rows);
    r.pairs.first = take(s, &at, l->n_experts + 1, 1);
    TRY(op->route(s->lane, &r));
    TRY(op->expert_matmul(s->lane, &up, &r.pairs));
    if (e->plain)
        TRY(op->act(s->lane, inner, both, e->act));
    else
        TRY(op->gate(s->lane, inner, both, e->act));
    TRY(op->expert_matmul(s->lane, &down, &r.pairs));
    return op->combine(s->lane, out, each, &r.pairs);
}

static struct tensor
sublayer_out(const struct model *m, const struct step *s, uint32_t rows, uint32_t cols)
{
    return out_is_wide(m) ? block_area(s, BLOCK_OUT, 0, rows, cols, DT_F32)
                          : block_scratch(s, BLOCK_OUT, rows, cols);
}

int
block_attend(const struct model *m, struct step *s, uint32_t l, struct tensor h, struct tensor qkv,
             struct tensor cos_sin, float scale, struct tensor *ret)
{
    const struct layer_shape *shape = &m->shape.layer[l];
    uint32_t rows = h.dim[0], q = shape->n_heads * shape->head_dim;
    uint32_t kv = shape->n_kv_heads * shape->head_dim;
    struct tensor all = block_scratch(s, BLOCK_QKV, rows, q + 2 * kv);
    struct rope_store rope = {
        .q = tensor_cols(all, 0, q),
        .k = tensor_cols(all, q, kv),
        .v = tensor_cols(all, q + kv, kv),
        .cos_sin = cos_sin,
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .kv = s->kv[l],
    };
    struct attend a = {
        .out = block_scratch(s, BLOCK_HEADS, rows, q),
        .q = rope.q,
        .kv = s->kv[l],
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .window = shape->window,
        .kept = shape->kept,
        .causal = true,
        .scale = scale,
    };

    *ret = a.out;
    TRY(m->op->matmul(s->lane, all, h, qkv, NO_TENSOR, 0));
    TRY(m->op->rope_store(s->lane, &rope, s->rows));
    return m->op->attend(s->lane, &a, s->rows);
}

int
block_logit_rows(const struct model *m, struct step *s, uint32_t l, struct tensor *heads)
{
    struct tensor all = *heads, x = s->x;

    if (!s->few || l + 1 < m->shape.n_layers) return 0;
    *heads = block_scratch(s, BLOCK_QKV, s->n_logit_rows, all.dim[1]);
    s->x = tensor_rows(s->logit_x, 0, s->n_logit_rows);
    s->normed = tensor_rows(s->normed, 0, s->n_logit_rows);
    TRY(m->op->gather_rows(s->lane, *heads, all, s->few));
    return m->op->gather_rows(s->lane, s->x, x, s->few);
}

int
block_residual(const struct model *m, struct step *s, struct tensor in, struct tensor w,
               struct residual r)
{
    r.in = sublayer_out(m, s, r.x.dim[0], r.x.dim[1]);
    TRY(m->op->matmul(s->lane, r.in, in, w, NO_TENSOR, 0));
    r.parts = true;
    return m->op->residual(s->lane, &r);
}

struct tensor
block_own_logits(const struct model *m, struct tensor out)
{
    struct span ours = sharding_share(m, m->whole.vocab);

    return tensor_cols(out, ours.first, ours.n);
}

int
block_head(const struct model *m, struct step *s, struct tensor out, struct tensor x,
           struct tensor w, struct tensor bias)
{
    struct span ours = sharding_share(m, m->whole.vocab);

    if (w.dim[0] == m->whole.vocab) w = tensor_rows(w, ours.first, ours.n);
    if (bias.data) bias = tensor_cols(bias, ours.first, ours.n);
    return m->op->matmul(s->lane, block_own_logits(m, out), x, w, bias, 0);
}
