/* gpt_oss.c - GPT-OSS, with experts in MXFP4 (quant.h), as published, or in a plain dtype.
 *
 * As Llama, except: every projection has a bias; sliding-window and full layers alternate; each
 * head has a sink, one more logit in its softmax without a value. Every feed-forward has experts,
 * with interleaved gate and up rows. Source: GptOssForCausalLM of transformers 5.17. */
#include "worker/arch/causal.h"

struct gpt_oss_layer {
    struct tensor attn_norm;             /* [hidden] */
    struct tensor qkv, qkv_bias;         /* [q + kv + kv, hidden], [q + kv + kv] */
    struct tensor sinks;                 /* [heads] */
    struct tensor o, o_bias;             /* [hidden, q], [hidden] */
    struct tensor ff_norm;               /* [hidden] */
    struct tensor router, router_bias;   /* [experts, hidden], [experts] */
    struct tensor gate_up, gate_up_bias; /* [experts * 2 ff, hidden], [experts, 2 ff] */
    struct tensor down, down_bias;       /* [experts * hidden, ff], [experts, hidden] */
};

#define LAYER(f) IN_LAYER, offsetof(struct gpt_oss_layer, f)
#define DIM_EXPERT_2FF DIM_OWN_0
#define DIM_EXPERT_FF DIM_OWN_1
#define L "model.layers.%u."
#define ATTN L "self_attn."
#define MLP L "mlp."
#define EXPERTS (W_EXPERTS | W_TRANSPOSED)

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                  field                rows         cols */
    TOP_RULES("model.embed_tokens.weight", "model.norm.weight"),
    { L "input_layernorm.weight",         LAYER(attn_norm),    DIM_1,       DIM_HIDDEN,   W_FP32 },
    QKV_RULES(ATTN, LAYER, 0),
    { ATTN "q_proj.bias",                 LAYER(qkv_bias),     DIM_Q,       DIM_1,        W_FP32 | W_SPLIT_ROWS },
    { ATTN "k_proj.bias",                 LAYER(qkv_bias),     DIM_KV,      DIM_1,        W_FP32 | W_SPLIT_ROWS | W_STACKED },
    { ATTN "v_proj.bias",                 LAYER(qkv_bias),     DIM_KV,      DIM_1,        W_FP32 | W_SPLIT_ROWS | W_STACKED },
    { ATTN "sinks",                       LAYER(sinks),        DIM_HEADS,   DIM_1,        W_FP32 | W_SPLIT_ROWS },
    { ATTN "o_proj.weight",               LAYER(o),            DIM_HIDDEN,  DIM_Q,        W_SPLIT_COLS },
    { ATTN "o_proj.bias",                 LAYER(o_bias),       DIM_1,       DIM_HIDDEN,   W_FP32 },
    { L "post_attention_layernorm.weight", LAYER(ff_norm),     DIM_1,       DIM_HIDDEN,   W_FP32 },
    { MLP "router.weight",                LAYER(router),       DIM_EXPERTS, DIM_HIDDEN,   0 },
    { MLP "router.bias",                  LAYER(router_bias),  DIM_1,       DIM_EXPERTS,  W_FP32 },
    { MLP "experts.gate_up_proj",         LAYER(gate_up),      DIM_EXPERT_2FF, DIM_HIDDEN, EXPERTS | W_SPLIT_ROWS },
    { MLP "experts.gate_up_proj_bias",    LAYER(gate_up_bias), DIM_EXPERTS, DIM_EXPERT_2FF, W_FP32 | W_SPLIT_COLS },
    { MLP "experts.down_proj",            LAYER(down),         DIM_HIDDEN,  DIM_EXPERT_FF, EXPERTS | W_SPLIT_COLS },
    { MLP "experts.down_proj_bias",       LAYER(down_bias),    DIM_EXPERTS, DIM_HIDDEN,   W_FP32 },
    { 0 },
};
/* clang-format on */

static int
read_rope(const json_t *config, struct rope_params *ret, struct err *e)
{
    TRY(cfg_rope_only(config, NULL, 150000, 1 << ROPE_DEFAULT | 1 << ROPE_YARN, ret, e));
    if (cfg_state(config, "rope_parameters") == CFG_SET ||
        json_object_size(json_object_get(config, "rope_scaling")) > 0)
        return 0;
    ret->type = ROPE_YARN; /* rope_parameters, rope_scaling not set: as published models */
    ret->factor = ret->beta_fast = 32;
    ret->beta_slow = 1;
    ret->truncate = false;
    ret->original_max = 4096;
    return 0;
}

/* Sets size d to n, which consists of `units` equal units that ranks do not cut: expert_run columns
 * of down, or the expert_run pairs of gate and up rows that compute them. */
static void
set_size(struct model_shape *s, enum dim d, uint32_t n, uint32_t units)
{
    s->dim[d] = n;
    s->parts[d] = (struct dim_parts){ 1, { n }, { units } };
}

static int
read_experts(const json_t *config, struct model_shape *s, struct layer_shape *l, struct err *e)
{
    TRY(cfg_u32(config, "intermediate_size", 2880, 1, CFG_MAX_FF / 2, &l->expert_ff, e));
    TRY(cfg_u32(config, cfg_either(config, "num_experts", "num_local_experts"), 128, 1,
                CFG_MAX_EXPERTS, &l->n_experts, e));
    TRY(cfg_u32(config, "num_experts_per_tok", 4, 1, MIN(l->n_experts, (uint32_t)CFG_MAX_TOP),
                &l->n_top, e));
    set_size(s, DIM_EXPERT_2FF, 2 * l->expert_ff, l->expert_ff / s->expert_run);
    set_size(s, DIM_EXPERT_FF, l->expert_ff, l->expert_ff / s->expert_run);
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    static const struct causal_defaults defaults = { 36, 2880, 201088, 131072, 1e-5 };
    struct causal_cfg *cfg = out;
    struct layer_shape l = { .mixer = MIX_ATTENTION, .kv_parts = 2 };
    uint32_t window;
    float limit;
    bool slides;

    TRY(cfg_want_str(config, "hidden_act", "silu", e));
    TRY(cfg_want_bool(config, "attention_bias", true, e));
    TRY(cfg_f32(config, "swiglu_limit", 7, 0, 1e6, &limit, e));
    if (limit < 7 || limit > 7)
        return err_set(e, -ENOTSUP, "swiglu_limit is %g, only 7 is implemented", (double)limit);
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(causal_sizes(config, defaults, s, cfg, e));
    TRY(cfg_heads(config, 64, 8, 64, &l, e));
    TRY(cfg_u32(config, "sliding_window", 128, 1, CFG_MAX_POSITIONS, &window, e));
    TRY(read_rope(config, &cfg->rope[0], e));
    TRY(read_experts(config, s, &l, e));
    cfg->scale = 1 / sqrtf((float)l.head_dim);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        TRY(cfg_slides(config, i, s->n_layers, i % 2 == 0, &slides, e));
        causal_layer(s, i, l, slides ? window : 0);
    }
    return 0;
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct causal_cfg *cfg = m->cfg;
    const struct gpt_oss_layer *w = (const struct gpt_oss_layer *)m->layer + first;
    uint32_t rows = s->rows.n_tokens;
    struct tensor sum = block_scratch(s, BLOCK_OUT, rows, m->shape.hidden), h;

    TRY(causal_begin(m, s, first, w->attn_norm, 0, &h));
    for (uint32_t l = first; l < first + n; l++, w++) {
        const struct layer_shape *shape = &m->shape.layer[l];
        struct block_attention a = {
            .qkv = w->qkv,
            .bias = w->qkv_bias,
            .cos_sin = causal_rope(m, l),
            .sinks = w->sinks,
            .scale = cfg->scale,
        };
        struct block_experts experts = {
            .gate_up = w->gate_up,
            .gate_up_bias = w->gate_up_bias,
            .down = w->down,
            .down_bias = w->down_bias,
            .factor = 1,
            .act = ACT_SWIGLU_CLAMPED,
        };
        struct residual middle = {
            .x = s->x, .in_bias = w->o_bias, .y = h, .y_norm = w->ff_norm, .eps = cfg->eps
        };
        struct residual end = causal_end(m, s, h, l, first + n, &w[1].attn_norm);
        struct tensor heads;

        TRY(block_attend(m, s, l, h, &a, &heads));
        TRY(block_residual(m, s, heads, w->o, middle));

        TRY(op->matmul(s->lane, block_router_logits(s, shape, rows), h, w->router, w->router_bias,
                       0));
        TRY(block_experts(m, s, shape, sum, h, &experts));
        TRY(op->collective.all_reduce(s->lane, sum));
        end.in = sum;
        TRY(op->residual(s->lane, &end));
    }
    return 0;
}

const struct arch arch_gpt_oss = {
    .name = "gpt_oss",
    .hf_types = (const char *const[]){ "gpt_oss", NULL },
    .cfg_bytes = sizeof(struct causal_cfg),
    .top_bytes = sizeof(struct block_top),
    .layer_bytes = sizeof(struct gpt_oss_layer),
    .weights = weights,
    .divide = sharding_agrees,
    .configure = configure,
    .tables = causal_tables,
    .forward = forward,
    .logits = block_logits,
};
