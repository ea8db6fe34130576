/* bamba.c - Bamba: Mamba-2 or attention layers, each followed by a gated feed-forward.
 *
 * Attention rotates 50 % of a head's dims. Source: BambaForCausalLM of transformers 5.17. */
#include "worker/arch/causal.h"

struct bamba_layer {
    struct tensor norm; /* [hidden] */
    struct hybrid_mixer mixer;
    struct tensor ff_norm;       /* [hidden] */
    struct tensor gate_up, down; /* [2 ff, hidden], gate rows first; [hidden, ff] */
};

#define LAYER(f) IN_LAYER, offsetof(struct bamba_layer, f)
#define MIXER(f) LAYER(mixer.f)
#define L "model.layers.%u."

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint              field                   rows               cols */
    TOP_RULES("model.embed_tokens.weight", "model.final_layernorm.weight"),
    { L "input_layernorm.weight",     LAYER(norm),            DIM_1,             DIM_HIDDEN,        W_FP32 },
    MAMBA_RULES(L "mamba.", MIXER, 0),
    QKV_RULES(L "self_attn.", MIXER, 0),
    { L "self_attn.o_proj.weight",    MIXER(o),               DIM_HIDDEN,        DIM_Q,             W_SPLIT_COLS },
    { L "pre_ff_layernorm.weight",    LAYER(ff_norm),         DIM_1,             DIM_HIDDEN,        W_FP32 },
    GATED_RULES(L "feed_forward.", LAYER),
    { 0 },
};
/* clang-format on */

/* Reads the rotary parameters. 50 % of a head's dims rotate unless rope_parameters has the key
 * partial_rotary_factor; outside of rope_parameters this key is ignored. */
static int
read_rope(const json_t *config, struct rope_params *ret, struct err *e)
{
    TRY(cfg_rope(config, NULL, 1e4, ret, e));
    if (!ret->own_partial) ret->partial = 0.5;
    return ret->type == ROPE_DEFAULT ? 0 : err_set(e, -ENOTSUP, "rope_type must be default");
}

/* Sets *ret if attn_layer_indices lists the layer: it has attention. Other layers have Mamba-2. */
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
    static const struct causal_defaults defaults = { 32, 4096, 128000, 262144, 1e-5 };
    struct hybrid_cfg *cfg = out;
    struct layer_shape attention = { .mixer = MIX_ATTENTION, .kv = KV_FULL, .kv_parts = 2 };
    uint32_t n_ff, rot_dim;

    TRY(cfg_want_str(config, "hidden_act", "silu", e));
    TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_want_bool(config, "mlp_bias", false, e));
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(causal_sizes(config, defaults, s, &cfg->base, e));
    TRY(cfg_u32(config, "intermediate_size", 14336, 1, CFG_MAX_FF, &n_ff, e));
    TRY(read_rope(config, &cfg->base.rope[0], e));
    TRY(cfg_u32(config, "num_attention_heads", 32, 1, CFG_MAX_HEADS, &attention.n_heads, e));
    TRY(cfg_heads(config, 32, 8, s->hidden / attention.n_heads, &attention, e));
    rot_dim = (uint32_t)(attention.head_dim * cfg->base.rope[0].partial);
    if (rot_dim == 0 || rot_dim % 2)
        return err_set(
            e, -ENOTSUP,
            "partial_rotary_factor is %g: %u of %u dims would rotate; their number must be even",
            cfg->base.rope[0].partial, rot_dim, attention.head_dim);
    TRY(mamba_configure(config, s, &cfg->mamba, e));
    cfg->mamba.eps = cfg->base.eps;
    cfg->base.scale = 1 / sqrtf((float)attention.head_dim);
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
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct hybrid_cfg *cfg = m->cfg;
    const struct bamba_layer *w = (const struct bamba_layer *)m->layer + first;
    struct tensor h;

    TRY(causal_begin(m, s, first, w->norm, 0, &h));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct residual middle = { .x = s->x, .y = h, .y_norm = w->ff_norm, .eps = cfg->base.eps };
        struct residual end = causal_end(m, s, h, l, first + n, &w[1].norm);
        struct tensor y, out, inner;

        TRY(hybrid_mix(m, s, l, &w->mixer, h, &y, &out));
        TRY(block_residual(m, s, y, out, middle));

        TRY(block_gated(m, s, h, w->gate_up, ACT_SILU, &inner));
        TRY(block_residual(m, s, inner, w->down, end));
    }
    return 0;
}

const struct arch arch_bamba = {
    .name = "bamba",
    .hf_types = (const char *const[]){ "bamba", NULL },
    .cfg_bytes = sizeof(struct hybrid_cfg),
    .top_bytes = sizeof(struct block_top),
    .layer_bytes = sizeof(struct bamba_layer),
    .weights = weights,
    .divide = hybrid_divide,
    .configure = configure,
    .tables = causal_tables,
    .forward = forward,
    .logits = block_logits,
};
