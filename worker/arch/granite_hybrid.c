/* granite_hybrid.c - Granite 4 hybrid: Mamba-2 or attention layers, each followed by a shared
 * feed-forward and optional experts.
 *
 * 4 multipliers: embedding, both sublayer outputs, attention scores, and a divisor of logits.
 * Published models have no position encoding. Source: GraniteMoeHybridForCausalLM of transformers
 * 5.17.
 */
#include "worker/arch/registry.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/host_tables.h"
#include "worker/model/mamba.h"
#include "worker/model/model.h"

#include <errno.h>
#include <string.h>

struct granite_layer {
    struct tensor norm;             /* [hidden] */
    struct mamba_weights mamba;     /* layers with state */
    struct tensor qkv, o;           /* layers with attention: [q + 2 kv, hidden], [hidden, q] */
    struct tensor ff_norm;          /* [hidden] */
    struct tensor gate_up, down;    /* [2 ff, hidden], gate rows first; [hidden, ff] */
    struct tensor router;           /* [experts, hidden] */
    struct tensor experts, combine; /* [experts * 2 ff, hidden], [experts * hidden, ff] */
};

struct granite_cfg {
    struct mamba_shape mamba;
    float eps;
    float embed_scale, sum_scale, scale;
    bool rotates;
    struct rope_params rope;
};

#define TOP(f) IN_TOP, offsetof(struct block_top, f)
#define LAYER(f) IN_LAYER, offsetof(struct granite_layer, f)
/* Shared feed-forward; one expert. */
#define DIM_GATE_UP DIM_OWN_5
#define DIM_EXPERT_GATE_UP DIM_OWN_6
#define DIM_EXPERT_FF DIM_OWN_7
#define L "model.layers.%u."
#define ATTN L "self_attn."
#define MAMBA L "mamba."
#define MOE L "block_sparse_moe."

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                   field                   rows                cols */
    { "model.embed_tokens.weight",         TOP(embed),             DIM_VOCAB,          DIM_HIDDEN,         0 },
    { "model.norm.weight",                 TOP(norm),              DIM_1,              DIM_HIDDEN,         W_FP32 },
    { "lm_head.weight",                    TOP(head),              DIM_VOCAB,          DIM_HIDDEN,         W_TIED | W_SPLIT_ROWS },
    { L "input_layernorm.weight",          LAYER(norm),            DIM_1,              DIM_HIDDEN,         W_FP32 },
    MAMBA_RULES(MAMBA, LAYER, 0),
    { ATTN "q_proj.weight",                LAYER(qkv),             DIM_Q,              DIM_HIDDEN,         W_SPLIT_ROWS },
    { ATTN "k_proj.weight",                LAYER(qkv),             DIM_KV,             DIM_HIDDEN,         W_SPLIT_ROWS | W_STACKED },
    { ATTN "v_proj.weight",                LAYER(qkv),             DIM_KV,             DIM_HIDDEN,         W_SPLIT_ROWS | W_STACKED },
    { ATTN "o_proj.weight",                LAYER(o),               DIM_HIDDEN,         DIM_Q,              W_SPLIT_COLS },
    { L "post_attention_layernorm.weight", LAYER(ff_norm),         DIM_1,              DIM_HIDDEN,         W_FP32 },
    { L "shared_mlp.input_linear.weight",  LAYER(gate_up),         DIM_GATE_UP,        DIM_HIDDEN,         W_SPLIT_ROWS },
    { L "shared_mlp.output_linear.weight", LAYER(down),            DIM_HIDDEN,         DIM_FF,             W_SPLIT_COLS },
    { MOE "router.layer.weight",           LAYER(router),          DIM_EXPERTS,        DIM_HIDDEN,         0 },
    { MOE "input_linear.weight",           LAYER(experts),         DIM_EXPERT_GATE_UP, DIM_HIDDEN,         W_EXPERTS | W_SPLIT_ROWS },
    { MOE "output_linear.weight",          LAYER(combine),         DIM_HIDDEN,         DIM_EXPERT_FF,      W_EXPERTS | W_SPLIT_COLS },
    { 0 },
};
/* clang-format on */

/* Refuses values that forward() has as constants. */
static int
refuse_others(const json_t *config, struct err *e)
{
    TRY(cfg_want_str(config, "hidden_act", "silu", e));
    return cfg_want_bool(config, "attention_bias", false, e);
}

static int
read_positions(const json_t *config, struct granite_cfg *cfg, struct err *e)
{
    const char *kind;

    TRY(cfg_str(config, "position_embedding_type", "nope", &kind, e));
    cfg->rotates = strcmp(kind, "rope") == 0;
    if (!cfg->rotates && strcmp(kind, "nope"))
        return err_set(e, -ENOTSUP,
                       "position_embedding_type is \"%s\"; rope and nope are implemented", kind);
    TRY(cfg_rope(config, NULL, 1e4, &cfg->rope, e));
    if (cfg->rotates && (cfg->rope.type != ROPE_DEFAULT || cfg->rope.partial != 1))
        return err_set(e, -ENOTSUP, "rope_type must be default and partial_rotary_factor 1");
    return 0;
}

static int
read_multipliers(const json_t *config, struct model_shape *s, struct granite_cfg *cfg,
                 struct err *e)
{
    float scaling;

    TRY(cfg_f32(config, "embedding_multiplier", 1, 1e-6, 1e6, &cfg->embed_scale, e));
    TRY(cfg_f32(config, "residual_multiplier", 1, 1e-6, 1e6, &cfg->sum_scale, e));
    TRY(cfg_f32(config, "attention_multiplier", 1, 1e-6, 1e6, &cfg->scale, e));
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
    struct granite_cfg *cfg = out;
    struct layer_shape attention = { .mixer = MIX_ATTENTION, .kv = KV_FULL, .kv_parts = 2 }, ff;

    TRY(refuse_others(config, e));
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(cfg_u32(config, "num_hidden_layers", 32, 1, MAX_LAYERS, &s->n_layers, e));
    TRY(cfg_u32(config, "hidden_size", 4096, 1, CFG_MAX_HIDDEN, &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", 32000, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "max_position_embeddings", 2048, 1, CFG_MAX_POSITIONS, &s->max_len, e));
    TRY(cfg_f32(config, "rms_norm_eps", 1e-6, 0, 1, &cfg->eps, e));
    TRY(read_positions(config, cfg, e));
    TRY(read_multipliers(config, s, cfg, e));
    TRY(cfg_u32(config, "num_attention_heads", 32, 1, CFG_MAX_HEADS, &attention.n_heads, e));
    TRY(cfg_heads(config, 32, attention.n_heads, s->hidden / attention.n_heads, &attention, e));
    TRY(mamba_configure(config, s, &cfg->mamba, e));
    cfg->mamba.eps = cfg->eps;
    ff = (struct layer_shape){ 0 };
    TRY(read_ff(config, s, &ff, e));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        struct layer_shape *l = &s->layer[i];
        const char *kind, *key = cfg_either(config, "layers_block_type", "layer_types");

        TRY(cfg_str_at(config, key, i, s->n_layers, &kind, e));
        if (strcmp(kind, "attention") == 0 || strcmp(kind, "full_attention") == 0)
            *l = attention;
        else if (strcmp(kind, "mamba") == 0 || strcmp(kind, "linear_attention") == 0)
            mamba_layer(&cfg->mamba, l);
        else
            return err_set(e, -ENOTSUP, "%s[%u] is \"%s\"; mamba and attention are implemented",
                           key, i, kind);
        l->n_ff = ff.n_ff;
        l->n_experts = ff.n_experts;
        l->n_top = ff.n_top;
        l->expert_ff = ff.expert_ff;
        l->kv_from = (uint16_t)i;
    }
    return 0;
}

static int
divide(struct model *m, struct err *e)
{
    return mamba_divide(m, &((struct granite_cfg *)m->cfg)->mamba, e);
}

static int
prepare(struct model *m, struct err *e)
{
    const struct granite_cfg *cfg = m->cfg;

    for (uint32_t i = 0; i < m->shape.n_layers && cfg->rotates; i++)
        if (m->shape.layer[i].mixer == MIX_ATTENTION)
            return host_tables_rope(m, 0, &cfg->rope, m->shape.layer[i].head_dim, e);
    return 0;
}

/* sum = experts + shared feed-forward. */
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
    const struct block_top *top = m->top;
    const struct granite_layer *w = (const struct granite_layer *)m->layer + first;
    uint32_t rows = s->rows.n_tokens;
    struct tensor h = block_scratch(s, BLOCK_NORMED, rows, m->shape.hidden);
    struct tensor sum = block_scratch(s, BLOCK_OUT, rows, m->shape.hidden);

    if (first == 0) TRY(op->embed(s->lane, s->x, top->embed, s->rows.token, cfg->embed_scale));
    TRY(op->rms_norm(s->lane, h, s->x, w->norm, cfg->eps, 0));
    for (uint32_t l = first; l < first + n; l++, w++) {
        bool has_state = m->shape.layer[l].mixer == MIX_STATE;
        struct block_attention a = {
            .qkv = w->qkv,
            .cos_sin = cfg->rotates ? m->table[0] : NO_TENSOR,
            .scale = cfg->scale,
        };
        struct residual middle = {
            .x = s->x, .in = sum, .y = h, .y_norm = w->ff_norm, .eps = cfg->eps
        };
        struct residual end = block_layer_end(m, s, h, l, first + n,
                                              l + 1 < m->shape.n_layers ? w[1].norm : top->norm);
        struct tensor y;

        if (has_state)
            TRY(mamba_mix(m, s, l, &cfg->mamba, &w->mamba, h, &y));
        else
            TRY(block_attend(m, s, l, h, &a, &y));
        TRY(op->matmul(s->lane, sum, y, has_state ? w->mamba.out : w->o, NO_TENSOR, 0));
        TRY(op->collective.all_reduce(s->lane, sum));
        TRY(op->scale(s->lane, sum, cfg->sum_scale, 0));
        TRY(op->residual(s->lane, &middle));

        TRY(feed_forward(m, s, &m->shape.layer[l], w, sum, h));
        TRY(op->collective.all_reduce(s->lane, sum));
        TRY(op->scale(s->lane, sum, cfg->sum_scale, 0));
        end.in = sum;
        end.eps = cfg->eps;
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
    .divide = divide,
    .prefixes = (const char *const[]){ "", NULL },
    .configure = configure,
    .prepare = prepare,
    .forward = forward,
    .logits = block_logits,
};
