/* bamba.c - Bamba: Mamba-2 or attention layers, each followed by a gated feed-forward.
 *
 * Attention rotates 50 % of a head's dims. Source: BambaForCausalLM of transformers 5.17.
 */
#include "worker/arch/registry.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/host_tables.h"
#include "worker/model/mamba.h"
#include "worker/model/model.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct bamba_layer {
    struct tensor norm;         /* [hidden] */
    struct mamba_weights mamba; /* layers with state */
    struct tensor qkv, o;       /* layers with attention: [q + 2 kv, hidden], [hidden, q] */
    struct tensor ff_norm;      /* [hidden] */
    struct tensor gate_up;      /* [2 ff, hidden], gate rows first */
    struct tensor down;         /* [hidden, ff] */
};

struct bamba_cfg {
    struct mamba_shape mamba;
    float eps;
    float scale; /* 1 / sqrt(head_dim) */
    struct rope_params rope;
};

#define TOP(f) IN_TOP, offsetof(struct block_top, f)
#define LAYER(f) IN_LAYER, offsetof(struct bamba_layer, f)
#define L "model.layers.%u."
#define ATTN L "self_attn."
#define MAMBA L "mamba."
#define MLP L "feed_forward."

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint              field                   rows               cols */
    { "model.embed_tokens.weight",    TOP(embed),             DIM_VOCAB,         DIM_HIDDEN,        0 },
    { "model.final_layernorm.weight", TOP(norm),              DIM_1,             DIM_HIDDEN,        W_FP32 },
    { "lm_head.weight",               TOP(head),              DIM_VOCAB,         DIM_HIDDEN,        W_TIED | W_SPLIT_ROWS },
    { L "input_layernorm.weight",     LAYER(norm),            DIM_1,             DIM_HIDDEN,        W_FP32 },
    MAMBA_RULES(MAMBA, LAYER, 0),
    { ATTN "q_proj.weight",           LAYER(qkv),             DIM_Q,             DIM_HIDDEN,        W_SPLIT_ROWS },
    { ATTN "k_proj.weight",           LAYER(qkv),             DIM_KV,            DIM_HIDDEN,        W_SPLIT_ROWS | W_STACKED },
    { ATTN "v_proj.weight",           LAYER(qkv),             DIM_KV,            DIM_HIDDEN,        W_SPLIT_ROWS | W_STACKED },
    { ATTN "o_proj.weight",           LAYER(o),               DIM_HIDDEN,        DIM_Q,             W_SPLIT_COLS },
    { L "pre_ff_layernorm.weight",    LAYER(ff_norm),         DIM_1,             DIM_HIDDEN,        W_FP32 },
    { MLP "gate_proj.weight",         LAYER(gate_up),         DIM_FF,            DIM_HIDDEN,        W_SPLIT_ROWS },
    { MLP "up_proj.weight",           LAYER(gate_up),         DIM_FF,            DIM_HIDDEN,        W_SPLIT_ROWS | W_STACKED },
    { MLP "down_proj.weight",         LAYER(down),            DIM_HIDDEN,        DIM_FF,            W_SPLIT_COLS },
    { 0 },
};
/* clang-format on */

/* 50 % of a head rotates unless rope_parameters has a partial_rotary_factor; the key outside is
 * ignored. */
static int
read_rope(const json_t *config, struct rope_params *ret, struct err *e)
{
    TRY(cfg_rope(config, NULL, 1e4, ret, e));
    if (!ret->own_partial) ret->partial = 0.5;
    return ret->type == ROPE_DEFAULT ? 0 : err_set(e, -ENOTSUP, "rope_type must be default");
}

/* attn_layer_indices: layers with attention; all others have state. */
static int
has_attention(const json_t *config, uint32_t layer, bool *ret, struct err *e)
{
    const json_t *list = json_object_get(config, "attn_layer_indices"), *v;
    size_t i;

    *ret = false;
    if (cfg_state(config, "attn_layer_indices") != CFG_SET) return 0;
    if (!json_is_array(list)) return err_set(e, -EINVAL, "attn_layer_indices is not a list");
    json_array_foreach(list, i, v)
    {
        if (!json_is_integer(v))
            return err_set(e, -EINVAL, "attn_layer_indices[%zu] is not an integer", i);
        *ret = *ret || json_integer_value(v) == layer;
    }
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    struct bamba_cfg *cfg = out;
    struct layer_shape attention = { .mixer = MIX_ATTENTION, .kv = KV_FULL, .kv_parts = 2 };
    uint32_t n_ff, rot_dim;

    TRY(cfg_want_str(config, "hidden_act", "silu", e));
    TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_want_bool(config, "mlp_bias", false, e));
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(cfg_u32(config, "num_hidden_layers", 32, 1, MAX_LAYERS, &s->n_layers, e));
    TRY(cfg_u32(config, "hidden_size", 4096, 1, CFG_MAX_HIDDEN, &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", 128000, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "intermediate_size", 14336, 1, CFG_MAX_FF, &n_ff, e));
    TRY(cfg_u32(config, "max_position_embeddings", 262144, 1, CFG_MAX_POSITIONS, &s->max_len, e));
    TRY(cfg_f32(config, "rms_norm_eps", 1e-5, 0, 1, &cfg->eps, e));
    TRY(read_rope(config, &cfg->rope, e));
    TRY(cfg_u32(config, "num_attention_heads", 32, 1, CFG_MAX_HEADS, &attention.n_heads, e));
    TRY(cfg_heads(config, 32, 8, s->hidden / attention.n_heads, &attention, e));
    rot_dim = (uint32_t)(attention.head_dim * cfg->rope.partial);
    if (rot_dim == 0 || rot_dim % 2)
        return err_set(
            e, -ENOTSUP,
            "partial_rotary_factor is %g: %u of %u dims would rotate, which must be even",
            cfg->rope.partial, rot_dim, attention.head_dim);
    TRY(mamba_configure(config, s, &cfg->mamba, e));
    cfg->mamba.eps = cfg->eps;
    cfg->scale = 1 / sqrtf((float)attention.head_dim);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        struct layer_shape *l = &s->layer[i];
        bool attention_here;

        TRY(has_attention(config, i, &attention_here, e));
        if (attention_here) *l = attention;
        if (!attention_here) mamba_layer(&cfg->mamba, l);
        l->n_ff = n_ff;
        l->kv_from = (uint16_t)i;
    }
    return 0;
}

static int
divide(struct model *m, struct err *e)
{
    return mamba_divide(m, &((struct bamba_cfg *)m->cfg)->mamba, e);
}

static int
prepare(struct model *m, struct err *e)
{
    const struct bamba_cfg *cfg = m->cfg;

    for (uint32_t i = 0; i < m->shape.n_layers; i++)
        if (m->shape.layer[i].mixer == MIX_ATTENTION)
            return host_tables_rope(m, 0, &cfg->rope, m->shape.layer[i].head_dim, e);
    return 0;
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct bamba_cfg *cfg = m->cfg;
    const struct block_top *top = m->top;
    const struct bamba_layer *w = (const struct bamba_layer *)m->layer + first;
    struct tensor h = block_scratch(s, BLOCK_NORMED, s->rows.n_tokens, m->shape.hidden);

    if (first == 0) TRY(op->embed(s->lane, s->x, top->embed, s->rows.token, 1));
    TRY(op->rms_norm(s->lane, h, s->x, w->norm, cfg->eps, 0));
    for (uint32_t l = first; l < first + n; l++, w++) {
        bool has_state = m->shape.layer[l].mixer == MIX_STATE;
        struct block_attention a = { .qkv = w->qkv, .cos_sin = m->table[0], .scale = cfg->scale };
        struct residual middle = { .x = s->x, .y = h, .y_norm = w->ff_norm, .eps = cfg->eps };
        struct residual end = block_layer_end(m, s, h, l, first + n,
                                              l + 1 < m->shape.n_layers ? w[1].norm : top->norm);
        struct tensor y, inner;

        if (has_state)
            TRY(mamba_mix(m, s, l, &cfg->mamba, &w->mamba, h, &y));
        else
            TRY(block_attend(m, s, l, h, &a, &y));
        TRY(block_residual(m, s, y, has_state ? w->mamba.out : w->o, middle));

        TRY(block_gated(m, s, h, w->gate_up, ACT_SILU, &inner));
        end.eps = cfg->eps;
        TRY(block_residual(m, s, inner, w->down, end));
    }
    return 0;
}

const struct arch arch_bamba = {
    .name = "bamba",
    .hf_types = (const char *const[]){ "bamba", NULL },
    .cfg_bytes = sizeof(struct bamba_cfg),
    .top_bytes = sizeof(struct block_top),
    .layer_bytes = sizeof(struct bamba_layer),
    .weights = weights,
    .divide = divide,
    .prefixes = (const char *const[]){ "", NULL },
    .configure = configure,
    .prepare = prepare,
    .forward = forward,
    .logits = block_logits,
};
