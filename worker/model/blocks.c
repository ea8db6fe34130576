/* blocks.c - implements blocks.h: the parts of a layer that several families compute alike. */
#include "worker/model/blocks.h"

#include "worker/model/sharding.h"

/* Returns the columns of a tensor of activations that occupy n words of 4 bytes. */
static uint32_t
words(const struct model *m, uint32_t n)
{
    return n * (uint32_t)(4 / dtype_bytes(m->act, 1));
}

/* Returns the 4-byte words per token that BLOCK_ROUTE needs: router logits, then the arrays of
 * struct pairs (gpu.h). The n_experts + 1 entries of first[], which a step has once, are counted
 * for every token, so that they fit in a step of one token. */
static uint32_t
route_words(const struct layer_shape *l)
{
    return l->n_experts ? 4 * ROUND_UP(l->n_top, 4u) + 2 * ROUND_UP(l->n_experts + 1, 4u) : 0;
}

static void
widen_scratch(const struct model *m, uint32_t cols[MAX_SCRATCH], const struct layer_shape *l)
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

/* True if sublayer outputs are fp32 although activations are fp16, because they may overflow fp16;
 * transformers keeps T5's wo in fp32 for this reason. */
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
    for (uint32_t i = 0; i < s->n_layers; i++) widen_scratch(m, cols, &s->layer[i]);
    for (uint32_t i = 0; i < s->n_encoder_layers; i++) widen_scratch(m, cols, &s->encoder[i]);
    if (s->n_encoder_layers) widen_scratch(m, cols, &s->cross);
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

    check(words % 4 == 0); /* so that data is 16-byte aligned for every number of rows */
    check(at + dtype_bytes(t, (size_t)rows * cols) <=
          dtype_bytes(all->dtype, (size_t)all->dim[0] * all->stride));
    return tensor_2d((char *)all->data + at, t, rows, cols);
}

/* Returns an array of n words per row in BLOCK_ROUTE after *words words per row; updates *words. */
static void *
take_route_words(const struct step *s, uint32_t *words, uint32_t n, uint32_t rows)
{
    void *data = block_area(s, BLOCK_ROUTE, *words, rows, n, DT_F32).data;

    *words += ROUND_UP(n, 4u);
    return data;
}

struct tensor
block_router_logits(const struct step *s, const struct layer_shape *l, uint32_t rows)
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
        .logits = block_router_logits(s, l, rows),
        .sigmoid = e->sigmoid,
        .bias = e->bias,
        .factor = e->factor,
        .scale = e->scale,
        .slot = s->rows.slot,
        .pairs = { .n_tokens = rows, .n_top = l->n_top, .n_experts = l->n_experts },
    };
    struct tensor both = block_area(s, BLOCK_PAIRS, 0, n, (e->no_gate ? 1 : 2) * l->expert_ff,
                                    m->act);
    struct tensor inner = block_area(s, BLOCK_PAIRS_INNER, 0, n, l->expert_ff, m->act);
    struct tensor each = block_area(s, BLOCK_PAIRS_OUT, 0, n, out.dim[1], m->act);
    struct expert_matmul up = {
        .y = both, .x = x, .w = e->gate_up, .bias = e->gate_up_bias, .by_row = true
    };
    /* Ranks sum their outputs, so only rank 0 adds the bias. */
    struct expert_matmul down = {
        .y = each, .x = inner, .w = e->down, .bias = m->rank ? NO_TENSOR : e->down_bias
    };

    r.pairs.expert = take_route_words(s, &at, l->n_top, rows);
    r.pairs.share = take_route_words(s, &at, l->n_top, rows);
    r.pairs.place = take_route_words(s, &at, l->n_top, rows);
    r.pairs.row = take_route_words(s, &at, l->n_top, rows);
    r.pairs.first = take_route_words(s, &at, l->n_experts + 1, 1);
    TRY(op->route(s->lane, &r));
    TRY(op->expert_matmul(s->lane, &up, &r.pairs));
    if (e->no_gate)
        TRY(op->act(s->lane, inner, both, e->act));
    else
        TRY(op->gate(s->lane, inner, both, e->act));
    TRY(op->expert_matmul(s->lane, &down, &r.pairs));
    return op->combine(s->lane, out, each, &r.pairs);
}

int
block_attend(const struct model *m, struct step *s, uint32_t l, struct tensor h,
             const struct block_attention *b, struct tensor *heads)
{
    const struct layer_shape *shape = &m->shape.layer[l];
    uint32_t q = shape->n_heads * shape->head_dim, kv = shape->n_kv_heads * shape->head_dim;
    bool own_kv = shape->kv_from == l;
    struct tensor qkv = block_scratch(s, BLOCK_QKV, h.dim[0], b->qkv.dim[0]);
    struct rope_store rope = {
        .q = tensor_cols(qkv, 0, q),
        .k = own_kv ? tensor_cols(qkv, q, kv) : NO_TENSOR,
        .v = own_kv ? tensor_cols(qkv, shape->v_is_k ? q : q + kv, kv) : NO_TENSOR,
        .q_norm = b->q_norm,
        .k_norm = b->k_norm,
        .v_norm = b->v_norm,
        .norm_eps = b->norm_eps,
        .norm_plus = b->norm_plus,
        .cos_sin = b->cos_sin,
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .kv = s->kv[l],
    };
    struct attend a = {
        .out = block_scratch(s, BLOCK_HEADS, h.dim[0], q),
        .q = rope.q,
        .kv = s->kv[l],
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .window = shape->window,
        .kept = shape->kept,
        .causal = true,
        .scale = b->scale,
        .softcap = b->softcap,
        .sinks = b->sinks.data,
    };

    *heads = a.out;
    TRY(m->op->matmul(s->lane, qkv, h, b->qkv, b->bias, 0));
    TRY(m->op->rope_store(s->lane, &rope, s->rows));
    return m->op->attend(s->lane, &a, s->rows);
}

/* Projects h to q (and k, v) and sets the fields of *a that encoder, decoder and cross attention
 * share; callers set the others and queue attend(). Each query head has its own K and V head. */
static int
attend_unrotated(const struct model *m, struct step *s, const struct layer_shape *shape,
                 struct tensor h, const struct block_attention *b, struct attend *a)
{
    uint32_t q = shape->n_heads * shape->head_dim;
    struct tensor qkv = block_scratch(s, BLOCK_QKV, h.dim[0], b->qkv.dim[0]);

    a->out = block_scratch(s, BLOCK_HEADS, h.dim[0], q);
    a->q = tensor_cols(qkv, 0, q);
    if (qkv.dim[1] > q) {
        a->k = tensor_cols(qkv, q, q);
        a->v = tensor_cols(qkv, 2 * q, q);
    }
    a->n_heads = shape->n_heads;
    a->n_kv_heads = shape->n_kv_heads;
    a->head_dim = shape->head_dim;
    a->scale = b->scale;
    a->bias = b->distance_bias.data;
    a->bias_reach = b->reach;
    return m->op->matmul(s->lane, qkv, h, b->qkv, b->bias, 0);
}

int
block_attend_encoder(const struct model *m, struct step *s, struct tensor h,
                     const struct block_attention *b, struct tensor *heads)
{
    struct attend a = { 0 };

    TRY(attend_unrotated(m, s, &m->shape.encoder[0], h, b, &a));
    *heads = a.out;
    return m->op->attend(s->lane, &a, s->enc);
}

int
block_attend_decoder(const struct model *m, struct step *s, uint32_t l, struct tensor h,
                     const struct block_attention *b, struct tensor *heads)
{
    struct attend a = { .kv = s->kv[l], .inputs_ready = true, .causal = true };

    TRY(attend_unrotated(m, s, &m->shape.layer[l], h, b, &a));
    *heads = a.out;
    return m->op->attend(s->lane, &a, s->rows);
}

int
block_attend_cross(const struct model *m, struct step *s, uint32_t l, struct tensor h,
                   const struct block_attention *b, struct tensor *heads)
{
    struct attend a = { .kv = s->cross_kv[l], .inputs_ready = true };

    TRY(attend_unrotated(m, s, &m->shape.cross, h, b, &a));
    *heads = a.out;
    return m->op->attend(s->lane, &a, s->cross);
}

int
block_project_cross(const struct model *m, struct step *s, uint32_t l, struct tensor w,
                    struct tensor bias)
{
    const struct layer_shape *shape = &m->shape.cross;
    uint32_t q = shape->n_kv_heads * shape->head_dim;
    struct tensor kv = block_scratch(s, BLOCK_QKV, s->project.n_tokens, 2 * q);
    struct rope_store store = {
        .k = tensor_cols(kv, 0, q),
        .v = tensor_cols(kv, q, q),
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .kv = s->cross_kv[l],
    };

    TRY(m->op->matmul(s->lane, kv, s->project_x, w, bias, 0));
    return m->op->rope_store(s->lane, &store, s->project);
}

int
block_logit_rows(const struct model *m, struct step *s, uint32_t l, struct tensor *heads,
                 struct tensor *h)
{
    struct tensor all = *heads, x = s->x;

    if (!s->few || l + 1 < m->shape.n_layers) return 0;
    *heads = block_scratch(s, BLOCK_QKV, s->n_logit_rows, all.dim[1]);
    *h = tensor_rows(*h, 0, s->n_logit_rows);
    s->x = tensor_rows(s->logit_x, 0, s->n_logit_rows);
    s->normed = tensor_rows(s->normed, 0, s->n_logit_rows);
    TRY(m->op->gather_rows(s->lane, *heads, all, s->few));
    return m->op->gather_rows(s->lane, s->x, x, s->few);
}

int
block_gated(const struct model *m, struct step *s, struct tensor h, struct tensor gate_up,
            enum act act, struct tensor *inner)
{
    struct tensor both = block_scratch(s, BLOCK_GATE_UP, h.dim[0], gate_up.dim[0]);

    *inner = block_scratch(s, BLOCK_INNER, h.dim[0], gate_up.dim[0] / 2);
    return m->op->gate_matmul(s->lane, *inner, both, h, gate_up, act);
}

int
block_residual(const struct model *m, struct step *s, struct tensor in, struct tensor w,
               struct residual r)
{
    uint32_t rows = r.x.dim[0], cols = r.x.dim[1];

    r.in = out_is_wide(m) ? block_area(s, BLOCK_OUT, 0, rows, cols, DT_F32)
                          : block_scratch(s, BLOCK_OUT, rows, cols);
    TRY(m->op->matmul(s->lane, r.in, in, w, NO_TENSOR, 0));
    r.parts = true;
    return m->op->residual(s->lane, &r);
}

struct residual
block_layer_end(const struct model *m, const struct step *s, struct tensor h, uint32_t l,
                uint32_t end, struct tensor norm)
{
    struct residual r = { .x = s->x };

    if (l + 1 < end)
        r.y = h;
    else if (end == m->shape.n_layers)
        r.y = s->normed;
    if (r.y.data) r.y_norm = norm;
    return r;
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

int
block_logits(const struct model *m, struct step *s, struct tensor out, struct tensor x)
{
    const struct block_top *top = m->top;
    float scale = m->shape.logit_scale, cap = m->shape.logit_cap;

    TRY(block_head(m, s, out, x, top->head.data ? top->head : top->embed, NO_TENSOR));
    if (scale <= 0 && cap <= 0) return 0;
    return m->op->scale(s->lane, block_own_logits(m, out), scale > 0 ? scale : 1, cap);
}
