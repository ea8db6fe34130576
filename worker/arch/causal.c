/* causal.c - implements causal.h: config, rotary tables and forward pass of decoder-only models. */
#include "worker/arch/causal.h"

#include "worker/model/host_tables.h"

int
causal_sizes(const json_t *config, struct causal_defaults d, struct model_shape *s,
             struct causal_cfg *cfg, struct err *e)
{
    cfg->n_ropes = 1;
    cfg->embed_scale = 1;
    TRY(cfg_u32(config, "num_hidden_layers", d.n_layers, 1, MAX_LAYERS, &s->n_layers, e));
    TRY(cfg_u32(config, "hidden_size", d.hidden, 1, CFG_MAX_HIDDEN, &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", d.vocab, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "max_position_embeddings", d.max_len, 1, CFG_MAX_POSITIONS, &s->max_len,
                e));
    return cfg_f32(config, "rms_norm_eps", d.eps, 0, 1, &cfg->eps, e);
}

void
causal_layer(struct model_shape *s, uint32_t i, struct layer_shape l, uint32_t window)
{
    l.window = window;
    l.kv = window ? KV_WINDOW : KV_FULL;
    l.kv_from = (uint16_t)i;
    s->layer[i] = l;
}

static uint32_t
table_of(const struct causal_cfg *cfg, const struct layer_shape *l)
{
    return cfg->n_ropes == 2 && l->window ? CAUSAL_WINDOW : CAUSAL_FULL;
}

int
causal_tables(struct model *m, struct err *e)
{
    const struct causal_cfg *cfg = m->cfg;
    bool made[ARRAY_LEN(cfg->rope)] = { false };

    for (uint32_t i = 0; i < m->shape.n_layers && cfg->n_ropes; i++) {
        const struct layer_shape *l = &m->shape.layer[i];
        uint32_t which = table_of(cfg, l);

        if (l->mixer != MIX_ATTENTION || made[which]) continue;
        made[which] = true;
        TRY(host_tables_rope(m, which, &cfg->rope[which], l->head_dim, e));
    }
    return 0;
}

struct tensor
causal_rope(const struct model *m, uint32_t l)
{
    return m->table[table_of(m->cfg, &m->shape.layer[l])];
}

int
causal_begin(const struct model *m, struct step *s, uint32_t first, struct tensor norm, float plus,
             struct tensor *h)
{
    const struct causal_cfg *cfg = m->cfg;
    const struct block_top *top = m->top;

    *h = block_scratch(s, BLOCK_NORMED, s->rows.n_tokens, m->shape.hidden);
    if (first == 0) TRY(m->op->embed(s->lane, s->x, top->embed, s->rows.token, cfg->embed_scale));
    return m->op->rms_norm(s->lane, *h, s->x, norm, cfg->eps, plus);
}

struct residual
causal_end(const struct model *m, const struct step *s, struct tensor h, uint32_t l, uint32_t end,
           const struct tensor *next)
{
    const struct block_top *top = m->top;
    struct residual r = block_layer_end(m, s, h, l, end,
                                        l + 1 < m->shape.n_layers ? *next : top->norm);

    r.eps = ((const struct causal_cfg *)m->cfg)->eps;
    return r;
}

int
dense_forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct dense_cfg *cfg = m->cfg;
    const struct dense_layer *w = (const struct dense_layer *)m->layer + first;
    float eps = cfg->base.eps, plus = cfg->norm_plus;
    struct tensor h;

    TRY(causal_begin(m, s, first, w->attn_norm, plus, &h));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct block_attention a = {
            .qkv = w->qkv,
            .bias = w->qkv_bias,
            .q_norm = w->q_norm,
            .k_norm = w->k_norm,
            .norm_eps = eps,
            .norm_plus = plus,
            .cos_sin = causal_rope(m, l),
            .scale = cfg->base.scale,
            .softcap = cfg->scores_softcap,
        };
        struct residual middle = {
            .in_norm = w->attn_post, .y_norm = w->ff_norm, .eps = eps, .plus = plus
        };
        struct residual end;
        struct tensor heads, inner;

        TRY(block_attend(m, s, l, h, &a, &heads));
        TRY(block_logit_rows(m, s, l, &heads, &h));
        middle.x = s->x;
        middle.y = h;
        TRY(block_residual(m, s, heads, w->o, middle));

        TRY(block_gated(m, s, h, w->gate_up, cfg->act, &inner));
        end = causal_end(m, s, h, l, first + n, &w[1].attn_norm);
        end.in_norm = w->ff_post;
        end.plus = plus;
        TRY(block_residual(m, s, inner, w->down, end));
    }
    return 0;
}

int
hybrid_divide(struct model *m, struct err *e)
{
    return mamba_divide(m, &((struct hybrid_cfg *)m->cfg)->mamba, e);
}

int
hybrid_mix(const struct model *m, struct step *s, uint32_t l, const struct hybrid_mixer *w,
           struct tensor h, struct tensor *y, struct tensor *out)
{
    const struct hybrid_cfg *cfg = m->cfg;
    struct block_attention a = { .qkv = w->qkv,
                                 .cos_sin = causal_rope(m, l),
                                 .scale = cfg->base.scale };

    *out = m->shape.layer[l].mixer == MIX_STATE ? w->mamba.out : w->o;
    if (m->shape.layer[l].mixer == MIX_ATTENTION) return block_attend(m, s, l, h, &a, y);
    return mamba_mix(m, s, l, &cfg->mamba, &w->mamba, h, y);
}
