/* granite_hybrid.c - Granite 4 hybrid: Mamba-2 or attention layers, each followed by a shared
 * feed-forward and optional experts.
 *
 * config.json has factors of the embedding, of sublayer outputs and of attention scores, and a
 * number by which logits are divided. Published models have no positional encoding. Source:
 * GraniteMoeHybridForCausalLM of transformers 5.17. */
#include "worker/arch/causal.h"

struct granite_layer {
    struct tensor norm; /* [hidden] */
    struct hybrid_mixer mixer;
    struct tensor ff_norm;          /* [hidden] */
    struct tensor gate_up, down;    /* [2 ff, hidden], gate rows first; [hidden, ff] */
    struct tensor router;           /* [experts, hidden] */
    struct tensor experts, combine; /* [experts * 2 ff, hidden], [experts * hidden, ff] */
};

struct granite_cfg {
    struct hybrid_cfg hybrid;
    float sum_scale; /* factor of a sublayer's output before it is added to x */
};

#define LAYER(f) IN_LAYER, offsetof(struct granite_layer, f)
#define MIXER(f) LAYER(mixer.f)
/* Sizes of the shared feed-forward and of one expert. */
#define DIM_GATE_UP DIM_OWN_5
#define DIM_EXPERT_GATE_UP DIM_OWN_6
#define DIM_EXPERT_FF DIM_OWN_7
#define L "model.layers.%u."
#define MOE L "block_sparse_moe."

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                   field                   rows                cols */
    TOP_RULES("model.embed_tokens.weight", "model.norm.weight"),
    { L "input_layernorm.weight",          LAYER(norm),            DIM_1,              DIM_HIDDEN,         W_FP32 },
    MAMBA_RULES(L "mamba.", MIXER, 0),
    QKV_RULES(L "self_attn.", MIXER, 0),
    { L "self_attn.o_proj.weight",         MIXER(o),               DIM_HIDDEN,         DIM_Q,              W_SPLIT_COLS },
    { L "post_attention_layernorm.weight", LAYER(ff_norm),         DIM_1,              DIM_HIDDEN,         W_FP32 },
    { L "shared_mlp.input_linear.weight",  LAYER(gate_up),         DIM_GATE_UP,        DIM_HIDDEN,         W_SPLIT_ROWS },
    { L "shared_mlp.output_linear.weight", LAYER(down),            DIM_HIDDEN,         DIM_FF,             W_SPLIT_COLS },
    { MOE "router.layer.weight",           LAYER(router),          DIM_EXPERTS,        DIM_HIDDEN,         0 },
    { MOE "input_linear.weight",           LAYER(experts),         DIM_EXPERT_GATE_UP, DIM_HIDDEN,         W_EXPERTS | W_SPLIT_ROWS },
    { MOE "output_linear.weight",          LAYER(combine),         DIM_HIDDEN,         DIM_EXPERT_FF,      W_EXPERTS | W_SPLIT_COLS },
    { 0 },
};
/* clang-format on */

static int
read_positions(const json_t *config, struct causal_cfg *cfg, struct err *e)
{
    const char *kind;

    TRY(cfg_str(config, "position_embedding_type", "nope", &kind, e));
    cfg->n_ropes = strcmp(kind, "rope") == 0;
    if (!cfg->n_ropes && strcmp(kind, "nope"))
        return err_set(e, -ENOTSUP,
                       "position_embedding_type is \"%s\"; rope and nope are implemented", kind);
    TRY(cfg_rope(config, NULL, 1e4, &cfg->rope[0], e));
    if (cfg->n_ropes && (cfg->rope[0].type != ROPE_DEFAULT || cfg->rope[0].partial != 1))
        return err_set(e, -ENOTSUP, "rope_type must be default, partial_rotary_factor 1");
    return 0;
}

static int
read_multipliers(const json_t *config, struct model_shape *s, struct granite_cfg *cfg,
                 struct err *e)
{
    float scaling;

    TRY(cfg_f32(config, "embedding_multiplier", 1, 1e-6, 1e6, &cfg->hybrid.base.embed_scale, e));
    TRY(cfg_f32(config, "residual_multiplier", 1, 1e-6, 1e6, &cfg->sum_scale, e));
    TRY(cfg_f32(config, "attention_multiplier", 1, 1e-6, 1e6, &cfg->hybrid.base.scale, e));
    TRY(cfg_f32(config, "logits_scaling", 1, 1e-6, 1e6, &scaling, e));
    s->logit_scale = 1 / scaling;
    return 0;
}

static int
read_ff(const json_t *config, struct model_shape *s, struct layer_shape *l, struct err *e)
{
    TRY(cfg_u32(config, "shared_intermediate_size", 1024, 1, CFG_MAX_FF / 2, &l->n_ff, e));
    TRY(cfg_u32(config, "num_local_experts", 8, 0, CFG_MAX_EXPERTS, &l->n_experts, e));
    s->dim[DIM_GATE_UP] = 2 * l->n_ff;
    s->parts[DIM_GATE_UP] = dim_halves(l->n_ff);
    if (l->n_experts == 0) return 0;
    TRY(cfg_u32(config, "intermediate_size", 11008, 1, CFG_MAX_FF / 2, &l->expert_ff, e));
    TRY(cfg_u32(config, "num_experts_per_tok", 2, 1, MIN(l->n_experts, (uint32_t)CFG_MAX_TOP),
                &l->n_top, e));
    s->dim[DIM_EXPERT_GATE_UP] = 2 * l->expert_ff;
    s->parts[DIM_EXPERT_GATE_UP] = dim_halves(l->expert_ff);
    s->dim[DIM_EXPERT_FF] = l->expert_ff;
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    static const struct causal_defaults defaults = { 32, 4096, 32000, 2048, 1e-6 };
    struct granite_cfg *cfg = out;
    struct hybrid_cfg *hybrid = &cfg->hybrid;
    struct layer_shape state = { 0 }, attention; /* with the same feed-forward */

    TRY(cfg_want_str(config, "hidden_act", "silu", e));
    TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(causal_sizes(config, defaults, s, &hybrid->base, e));
    TRY(read_positions(config, &hybrid->base, e));
    TRY(read_multipliers(config, s, cfg, e));
    TRY(read_ff(config, s, &state, e));
    attention = state;
    attention.mixer = MIX_ATTENTION;
    attention.kv_parts = 2;
    TRY(cfg_u32(config, "num_attention_heads", 32, 1, CFG_MAX_HEADS, &attention.n_heads, e));
    TRY(cfg_heads(config, 32, attention.n_heads, s->hidden / attention.n_heads, &attention, e));
    TRY(mamba_configure(config, s, &hybrid->mamba, e));
    hybrid->mamba.eps = hybrid->base.eps;
    mamba_layer(&hybrid->mamba, &state);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        const char *kind, *key = cfg_either(config, "layers_block_type", "layer_types");

        TRY(cfg_str_at(config, key, i, s->n_layers, &kind, e));
        if (strcmp(kind, "attention") == 0 || strcmp(kind, "full_attention") == 0)
            causal_layer(s, i, attention, 0);
        else if (strcmp(kind, "mamba") == 0 || strcmp(kind, "linear_attention") == 0)
            s->layer[i] = state;
        else
            return err_set(e, -ENOTSUP,
                           "%s[%u] is \"%s\"; only mamba and attention are implemented", key, i,
                           kind);
        s->layer[i].kv_from = (uint16_t)i;
    }
    return 0;
}

/* Sets sum to the output of the experts plus the output of the shared feed-forward. */
static int
feed_forward(const struct model *m, struct step *s, const struct layer_shape *shape,
             const struct granite_layer *w, struct tensor sum, struct tensor h)
{
    const struct gpu_ops *op = m->op;
    struct tensor inner;
    struct block_experts experts = {
        .gate_up = w->experts, .down = w->combine, .factor = 1, .act = ACT_SILU
    };

    if (shape->n_experts) {
        TRY(op->matmul(s->lane, block_router_logits(s, shape, h.dim[0]), h, w->router, NO_TENSOR,
                       0));
        TRY(block_experts(m, s, shape, sum, h, &experts));
    }
    TRY(block_gated(m, s, h, w->gate_up, ACT_SILU, &inner));
    return op->matmul(s->lane, sum, inner, w->down, NO_TENSOR, shape->n_experts ? 1 : 0);
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct granite_cfg *cfg = m->cfg;
    const struct granite_layer *w = (const struct granite_layer *)m->layer + first;
    struct tensor sum = block_scratch(s, BLOCK_OUT, s->rows.n_tokens, m->shape.hidden), h;

    TRY(causal_begin(m, s, first, w->norm, 0, &h));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct residual middle = {
            .x = s->x, .in = sum, .y = h, .y_norm = w->ff_norm, .eps = cfg->hybrid.base.eps
        };
        struct residual end = causal_end(m, s, h, l, first + n, &w[1].norm);
        struct tensor y, out;

        TRY(hybrid_mix(m, s, l, &w->mixer, h, &y, &out));
        TRY(op->matmul(s->lane, sum, y, out, NO_TENSOR, 0));
        TRY(op->collective.all_reduce(s->lane, sum));
        TRY(op->scale(s->lane, sum, cfg->sum_scale, 0));
        TRY(op->residual(s->lane, &middle));

        TRY(feed_forward(m, s, &m->shape.layer[l], w, sum, h));
        TRY(op->collective.all_reduce(s->lane, sum));
        TRY(op->scale(s->lane, sum, cfg->sum_scale, 0));
        end.in = sum;
        TRY(op->residual(s->lane, &end));
    }
    return 0;
}

const struct arch arch_granite_hybrid = {
    .name = "granite_hybrid",
    .hf_types = (const char *const[]){ "granitemoehybrid", NULL },
    .cfg_bytes = sizeof(struct granite_cfg),
    .top_bytes = sizeof(struct block_top),
    .layer_bytes = sizeof(struct granite_layer),
    .weights = weights,
    .divide = hybrid_divide,
    .configure = configure,
    .tables = causal_tables,
    .forward = forward,
    .logits = block_logits,
};
