/* gemma4.c - Gemma 4, text only: dense models, E models (per-layer inputs, shared KV) and models
 * with experts.
 *
 * Norms around each sublayer as in Gemma 3, but with weight w. Attention scores are not scaled; v
 * is normed too. Layers with full attention have larger heads, and 25 % of their dims rotate; in
 * the large models they have no v projection, because v is k before its norm. Experts run beside
 * the dense feed-forward; experts and router read the hidden states x. The end of a layer
 * multiplies x by a scalar. Source: Gemma4ForCausalLM of transformers 5.17. */
#include "worker/arch/gemma.h"
#include "worker/model/host_tables.h"

#include <ctype.h>
#include <math.h>

struct gemma4_layer {
    struct dense_layer dense; /* qkv has rows q, then k and v if the layer has its own KV */
    struct gemma_input input;
    struct tensor router, router_scale;     /* [experts, hidden], [hidden] */
    struct tensor expert_scale;             /* [experts] */
    struct tensor experts_norm;             /* [hidden]: norm of the input of the experts */
    struct tensor dense_post, experts_post; /* [hidden]: norms of the two outputs to be summed */
    struct tensor expert_gate_up;           /* [experts * 2 ff, hidden] */
    struct tensor expert_down;              /* [experts * hidden, ff] */
    struct tensor scalar;                   /* [1] */
};

struct gemma4_cfg {
    struct causal_cfg base;
    uint32_t each;            /* per-layer inputs of a token and layer; 0: none */
    float scalar[MAX_LAYERS]; /* factor of x at the end of each layer; prepare() reads it */
};

#define LAYER(f) IN_LAYER, offsetof(struct gemma4_layer, f)
/* Sizes of the tensors of experts and router; 0 in a model without experts. */
#define DIM_EXPERT_FF DIM_OWN_4  /* expert_ff */
#define DIM_EXPERT_2FF DIM_OWN_5 /* 2 * expert_ff */
#define DIM_BESIDE DIM_OWN_6     /* hidden: norms that exist only beside experts */

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                      field                    rows         cols */
    GEMMA_TOP_RULES,
    GEMMA_INPUT_TOP_RULES,
    GEMMA_DENSE_RULES,
    { L "router.proj.weight",                 LAYER(router),           DIM_EXPERTS, DIM_HIDDEN,  0 },
    { L "router.scale",                       LAYER(router_scale),     DIM_1,       DIM_BESIDE,  W_FP32 },
    { L "router.per_expert_scale",            LAYER(expert_scale),     DIM_1,       DIM_EXPERTS, W_FP32 },
    { L "pre_feedforward_layernorm_2.weight", LAYER(experts_norm),     DIM_1,       DIM_BESIDE,  W_FP32 },
    { L "experts.gate_up_proj",               LAYER(expert_gate_up),   DIM_EXPERT_2FF, DIM_HIDDEN, W_EXPERTS | W_SPLIT_ROWS },
    { L "experts.down_proj",                  LAYER(expert_down),      DIM_HIDDEN,  DIM_EXPERT_FF, W_EXPERTS | W_SPLIT_COLS },
    { L "post_feedforward_layernorm_1.weight", LAYER(dense_post),      DIM_1,       DIM_BESIDE,  W_FP32 },
    { L "post_feedforward_layernorm_2.weight", LAYER(experts_post),    DIM_1,       DIM_BESIDE,  W_FP32 },
    GEMMA_INPUT_RULES(LAYER),
    { L "layer_scalar",                       LAYER(scalar),           DIM_1,       DIM_1,       W_FP32 },
    { 0 },
};
/* clang-format on */

static int
read_rope(const json_t *config, struct causal_cfg *cfg, struct err *e)
{
    static const char *const older[] = { "rope_theta", "rope_local_base_freq", "rope_scaling",
                                         "partial_rotary_factor" };
    struct rope_params *full = &cfg->rope[CAUSAL_FULL], *window = &cfg->rope[CAUSAL_WINDOW];

    for (size_t i = 0; i < ARRAY_LEN(older); i++) /* transformers reads rope_parameters only */
        if (cfg_state(config, older[i]) == CFG_SET)
            return err_set(e, -ENOTSUP, "%s outside of rope_parameters is not implemented",
                           older[i]);
    cfg->n_ropes = 2;
    TRY(cfg_rope(config, "full_attention", 1e6, full, e));
    TRY(cfg_rope(config, "sliding_attention", 1e4, window, e));
    if (cfg_state(config, "rope_parameters") != CFG_SET) {
        full->type = ROPE_PROPORTIONAL;
        full->partial = 0.25;
    }
    if (full->type != ROPE_DEFAULT && full->type != ROPE_PROPORTIONAL)
        return err_set(e, -ENOTSUP,
                       "full_attention: only rope_type default and proportional are implemented");
    if (full->type == ROPE_DEFAULT && full->partial != 1)
        return err_set(e, -ENOTSUP,
                       "partial_rotary_factor of full_attention is %g; rope_type default needs 1",
                       full->partial);
    if (window->type != ROPE_DEFAULT || window->partial != 1)
        return err_set(e, -ENOTSUP,
                       "rope_parameters of sliding_attention: only rope_type default and "
                       "partial_rotary_factor 1 are implemented");
    return 0;
}

/* Finds a layer's entry in per_layer_config, or NULL. Keys are layer numbers such as "05". */
static int
find_override(const json_t *config, uint32_t layer, uint32_t n_layers, json_t **ret, struct err *e)
{
    json_t *all = json_object_get(config, "per_layer_config"), *own;
    const char *key;

    *ret = NULL;
    json_object_foreach(all, key, own)
    {
        char *end;
        unsigned long at = strtoul(key, &end, 10);

        if (!isdigit((unsigned char)*key) || *end || at >= n_layers)
            return err_set(e, -EINVAL,
                           "per_layer_config: \"%.20s\" is not a layer number from 0 to %u", key,
                           n_layers - 1);
        if (at == layer) *ret = own;
    }
    return 0;
}

/* Replaces sizes of l by the values that per_layer_config has for the layer. */
static int
read_override(const json_t *config, uint32_t layer, uint32_t n_layers, struct layer_shape *l,
              struct err *e)
{
    const char *key;
    json_t *own, *v;
    int code;

    TRY(find_override(config, layer, n_layers, &own, e));
    if (!own) return 0;
    json_object_foreach(own, key, v)
    {
        if (strcmp(key, "head_dim") && strcmp(key, "num_key_value_heads"))
            return err_set(e, -ENOTSUP, "per_layer_config: %s of layer %u is not implemented", key,
                           layer);
    }
    code = cfg_u32(own, "head_dim", l->head_dim, 2, CFG_MAX_HEAD_DIM, &l->head_dim, e);
    if (code == 0)
        code = cfg_u32(own, "num_key_value_heads", l->n_kv_heads, 1, l->n_heads, &l->n_kv_heads, e);
    return code < 0 ? err_while(e, code, "per_layer_config: layer %u", layer) : 0;
}

/* Reads v_is_k and the head sizes of layers with full attention. Newer configs have the head sizes
 * in per_layer_config, older configs in global_ keys. */
static int
read_full(const json_t *config, struct layer_shape *l, struct err *e)
{
    TRY(cfg_bool(config, "attention_k_eq_v", false, &l->v_is_k, e));
    if (cfg_state(config, "per_layer_config") == CFG_SET) return 0;
    TRY(cfg_u32(config, "global_head_dim", 512, 2, CFG_MAX_HEAD_DIM, &l->head_dim, e));
    if (!l->v_is_k) return 0;
    return cfg_u32(config, "num_global_key_value_heads", l->n_kv_heads, 1, l->n_heads,
                   &l->n_kv_heads, e);
}

static int
read_experts(const json_t *config, struct model_shape *s, struct layer_shape *l, struct err *e)
{
    bool experts;

    TRY(cfg_bool(config, "enable_moe_block", false, &experts, e));
    if (!experts) return 0;
    TRY(cfg_u32(config, "num_experts", CFG_REQUIRED, 1, CFG_MAX_EXPERTS, &l->n_experts, e));
    TRY(cfg_u32(config, "top_k_experts", CFG_REQUIRED, 1, MIN(l->n_experts, (uint32_t)CFG_MAX_TOP),
                &l->n_top, e));
    TRY(cfg_u32(config, "moe_intermediate_size", CFG_REQUIRED, 1, CFG_MAX_FF / 2, &l->expert_ff,
                e));
    s->dim[DIM_EXPERT_FF] = l->expert_ff;
    s->dim[DIM_EXPERT_2FF] = 2 * l->expert_ff;
    s->parts[DIM_EXPERT_2FF] = dim_halves(l->expert_ff);
    s->dim[DIM_BESIDE] = s->hidden;
    s->own_cols += ROUND_UP(s->hidden, 4u); /* output of the experts */
    return 0;
}

static int
read_layers(const json_t *config, struct model_shape *s, struct err *e)
{
    struct layer_shape sliding = { .mixer = MIX_ATTENTION, .kv_parts = 2, .kv = KV_WINDOW }, full;
    uint32_t head_dim[2] = { 0 }; /* of full and sliding layers */
    bool slides, wide;

    TRY(cfg_u32(config, "intermediate_size", 9216, 1, CFG_MAX_FF / 2, &sliding.n_ff, e));
    TRY(cfg_heads(config, 8, 4, 256, &sliding, e));
    TRY(read_experts(config, s, &sliding, e));
    full = sliding;
    full.kv = KV_FULL;
    TRY(read_full(config, &full, e));
    TRY(cfg_u32(config, "sliding_window", 512, 1, CFG_MAX_POSITIONS, &sliding.window, e));
    TRY(cfg_bool(config, "use_double_wide_mlp", false, &wide, e));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        struct layer_shape *l = &s->layer[i];

        TRY(cfg_slides(config, i, s->n_layers, (i + 1) % 6, &slides, e));
        slides &= i + 1 < s->n_layers; /* the last layer always has full attention */
        *l = slides ? sliding : full;
        TRY(read_override(config, i, s->n_layers, l, e));
        if (!head_dim[slides]) head_dim[slides] = l->head_dim;
        if (head_dim[slides] != l->head_dim || l->head_dim % 2 || l->n_heads % l->n_kv_heads)
            return err_set(
                e, -ENOTSUP,
                "layer %u has head_dim %u and %u K/V heads: head_dim must be even and equal in all "
                "layers of this type; the number of K/V heads must divide %u, the number of heads",
                i, l->head_dim, l->n_kv_heads, l->n_heads);
    }
    TRY(gemma_share_kv(config, 0, s, e));
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (wide && s->layer[i].kv_from != i) s->layer[i].n_ff *= 2;
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    static const struct causal_defaults defaults = { 30, 2304, 262144, 131072, 1e-6 };
    struct gemma4_cfg *cfg = out;

    TRY(gemma_refuse_others(config, e));
    TRY(causal_sizes(config, defaults, s, &cfg->base, e));
    TRY(cfg_f32(config, "final_logit_softcapping", 0, 0, 1e6, &s->logit_cap, e));
    TRY(read_rope(config, &cfg->base, e));
    TRY(gemma_read_inputs(config, 0, s, &cfg->each, e));
    TRY(read_layers(config, s, e));
    cfg->base.embed_scale = sqrtf((float)s->hidden); /* not rounded to bf16, as in gemma3.c */
    return 0;
}

static int
prepare(struct model *m, struct err *e)
{
    struct gemma4_cfg *cfg = m->cfg;
    const struct gemma4_layer *w = m->layer;

    for (uint32_t i = 0; i < m->shape.n_layers; i++)
        TRY(host_tables_read(m, &cfg->scalar[i], w[i].scalar, e));
    return 0;
}

/* Computes the experts and adds them to the dense feed-forward. sum: the output of the dense
 * feed-forward; becomes norm(dense output) + norm(output of the experts). h is scratch. */
static int
add_experts(const struct model *m, struct step *s, uint32_t l, struct tensor sum, struct tensor h)
{
    const struct gpu_ops *op = m->op;
    const struct gemma4_cfg *cfg = m->cfg;
    const struct gemma4_layer *w = (const struct gemma4_layer *)m->layer + l;
    const struct layer_shape *shape = &m->shape.layer[l];
    struct tensor expert_out = block_area(s, BLOCK_OWN,
                                          gemma_input_words(m->shape.n_layers, cfg->each),
                                          sum.dim[0], sum.dim[1], m->act);
    struct block_experts experts = {
        .gate_up = w->expert_gate_up,
        .down = w->expert_down,
        .scale = w->expert_scale,
        .factor = 1 / sqrtf((float)m->shape.hidden),
        .act = ACT_GELU_TANH,
    };

    TRY(op->rms_norm(s->lane, sum, sum, w->dense_post, cfg->base.eps, 0));
    TRY(op->rms_norm(s->lane, h, s->x, w->router_scale, cfg->base.eps, 0));
    TRY(op->matmul(s->lane, block_router_logits(s, shape, h.dim[0]), h, w->router, NO_TENSOR, 0));
    TRY(op->rms_norm(s->lane, h, s->x, w->experts_norm, cfg->base.eps, 0));
    TRY(block_experts(m, s, shape, expert_out, h, &experts));
    TRY(op->collective.all_reduce(s->lane, expert_out));
    TRY(op->rms_norm(s->lane, expert_out, expert_out, w->experts_post, cfg->base.eps, 0));
    return op->add(s->lane, sum, expert_out);
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct gemma4_cfg *cfg = m->cfg;
    const struct gemma_top *top = m->top;
    const struct gemma4_layer *w = (const struct gemma4_layer *)m->layer + first;
    uint32_t rows = s->rows.n_tokens;
    struct tensor h = block_scratch(s, BLOCK_NORMED, rows, m->shape.hidden);
    struct tensor sum = block_scratch(s, BLOCK_OUT, rows, m->shape.hidden), inputs = NO_TENSOR;

    if (first == 0)
        TRY(op->embed(s->lane, s->x, top->base.embed, s->rows.token, cfg->base.embed_scale));
    if (cfg->each) TRY(gemma_inputs(m, s, cfg->each, first, n, h, &inputs));
    for (uint32_t l = first; l < first + n; l++, w++) {
        const struct layer_shape *shape = &m->shape.layer[l];
        struct tensor heads, inner;
        struct residual middle = { .x = s->x,
                                   .in_norm = w->dense.attn_post,
                                   .y = h,
                                   .y_norm = w->dense.ff_norm,
                                   .eps = cfg->base.eps };
        struct residual end = {
            .x = s->x, .in = sum, .in_norm = w->dense.ff_post, .eps = cfg->base.eps
        };

        TRY(op->rms_norm(s->lane, h, s->x, w->dense.attn_norm, cfg->base.eps, 0));
        TRY(gemma_attend(m, s, l, &w->dense, h, &heads));
        TRY(block_residual(m, s, heads, w->dense.o, middle));

        TRY(block_gated(m, s, h, w->dense.gate_up, ACT_GELU_TANH, &inner));
        TRY(op->matmul(s->lane, sum, inner, w->dense.down, NO_TENSOR, 0));
        TRY(op->collective.all_reduce(s->lane, sum));
        if (shape->n_experts) TRY(add_experts(m, s, l, sum, h));
        TRY(op->residual(s->lane, &end));

        if (cfg->each) {
            TRY(op->mul(s->lane, h, s->x, NO_TENSOR));
            TRY(gemma_use_input(m, s, sum, h, &w->input,
                                tensor_cols(inputs, (l - first) * cfg->each, cfg->each)));
            end.in_norm = w->input.post;
            TRY(op->residual(s->lane, &end));
        }
        TRY(op->scale(s->lane, s->x, cfg->scalar[l], 0));
    }
    if (first + n < m->shape.n_layers) return 0;
    return op->rms_norm(s->lane, s->normed, s->x, top->base.norm, cfg->base.eps, 0);
}

const struct arch arch_gemma4 = {
    .name = "gemma4",
    .by_layer = true,
    .hf_types = (const char *const[]){ "gemma4_text", "gemma4", NULL },
    .cfg_bytes = sizeof(struct gemma4_cfg),
    .top_bytes = sizeof(struct gemma_top),
    .layer_bytes = sizeof(struct gemma4_layer),
    .exceeds_fp16 = true,
    .weights = weights,
    .divide = sharding_agrees,
    .prefixes = gemma_prefixes,
    .configure = configure,
    .tables = causal_tables,
    .prepare = prepare,
    .forward = forward,
    .logits = block_logits,
};
