/* nemotron_h.c - Nemotron-H: each layer is Mamba-2, attention without positions, a feed-forward
 * without gate (relu squared), or experts that are such feed-forwards.
 *
 * Mamba-2 norms each group separately; dt is at least time_step_min. The router selects experts by
 * sigmoid(logit) plus a correction and weights them without the correction. Source:
 * NemotronHForCausalLM of transformers 5.17. */
#include "worker/arch/causal.h"

struct nemotron_layer { /* a norm, and the tensors of one kind of layer; the others are empty */
    struct tensor norm; /* [hidden] */
    struct hybrid_mixer mixer;
    struct tensor up, down; /* [ff, hidden], [hidden, ff]: feed-forward or shared expert */
    struct tensor router, correction;       /* [experts, hidden], [experts] */
    struct tensor experts_up, experts_down; /* [experts * ff, hidden], [experts * hidden, ff] */
};

struct nemotron_cfg {
    struct hybrid_cfg hybrid;
    float expert_scale;
};

#define LAYER(f) IN_LAYER, offsetof(struct nemotron_layer, f)
#define MIX(f) LAYER(mixer.f)
#define DIM_EXPERT_FF DIM_OWN_5
#define L "layers.%u."
#define MIXER L "mixer."
#define EXPERTS (W_EXPERTS | W_ONE_BY_ONE | W_MOE_LAYERS)

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                      field                   rows                cols */
    TOP_RULES("embeddings.weight", "norm_f.weight"),
    { L "norm.weight",                        LAYER(norm),            DIM_1,              DIM_HIDDEN,         W_FP32 },
    MAMBA_RULES(MIXER, MIX, W_SPLIT_COLS),
    QKV_RULES(MIXER, MIX, 0),
    { MIXER "o_proj.weight",                  MIX(o),                 DIM_HIDDEN,         DIM_Q,              W_SPLIT_COLS },
    { MIXER "gate.weight",                    LAYER(router),          DIM_EXPERTS,        DIM_HIDDEN,         0 },
    { MIXER "gate.e_score_correction_bias",   LAYER(correction),      DIM_1,              DIM_EXPERTS,        W_FP32 },
    { MIXER "experts.%u.up_proj.weight",      LAYER(experts_up),      DIM_EXPERT_FF,      DIM_HIDDEN,         EXPERTS | W_SPLIT_ROWS },
    { MIXER "experts.%u.down_proj.weight",    LAYER(experts_down),    DIM_HIDDEN,         DIM_EXPERT_FF,      EXPERTS | W_SPLIT_COLS },
    { MIXER "shared_experts.up_proj.weight",  LAYER(up),              DIM_FF,             DIM_HIDDEN,         W_SPLIT_ROWS | W_MOE_LAYERS },
    { MIXER "shared_experts.down_proj.weight", LAYER(down),           DIM_HIDDEN,         DIM_FF,             W_SPLIT_COLS | W_MOE_LAYERS },
    { MIXER "up_proj.weight",                 LAYER(up),              DIM_FF,             DIM_HIDDEN,         W_SPLIT_ROWS | W_DENSE_LAYERS },
    { MIXER "down_proj.weight",               LAYER(down),            DIM_HIDDEN,         DIM_FF,             W_SPLIT_COLS | W_DENSE_LAYERS },
    { 0 },
};
/* clang-format on */

enum kind { MAMBA, ATTENTION, MLP, MOE };

static const char *
list_key(const json_t *config)
{
    return cfg_either(config, "layer_types", "layers_block_type");
}

/* Reads the kind of a layer from a string such as M-M*E or, in later configs, a list of words. */
static int
kind_of(const json_t *config, uint32_t layer, uint32_t n_layers, enum kind *ret, struct err *e)
{
    static const struct {
        const char *name;
        char letter;
        enum kind kind;
    } kinds[] = {
        { "linear_attention", 'M', MAMBA },
        { "mamba", 'M', MAMBA },
        { "full_attention", '*', ATTENTION },
        { "attention", '*', ATTENTION },
        { "mlp", '-', MLP },
        { "moe", 'E', MOE },
    };
    const char *pattern = NULL, *word = "";

    if (cfg_state(config, list_key(config)) == CFG_SET)
        TRY(cfg_str_at(config, list_key(config), layer, n_layers, &word, e));
    else
        TRY(cfg_str(config, "hybrid_override_pattern", NULL, &pattern, e));
    if (pattern && strlen(pattern) != n_layers)
        return err_set(e, -EINVAL,
                       "hybrid_override_pattern has %zu layers, num_hidden_layers is %u",
                       strlen(pattern), n_layers);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        if (pattern ? pattern[layer] != kinds[i].letter : strcmp(word, kinds[i].name) != 0)
            continue;
        *ret = kinds[i].kind;
        return 0;
    }
    return err_set(e, -ENOTSUP,
                   "layer %u is \"%.1s%s\"; only mamba (M), attention (*), mlp (-) and moe (E) are "
                   "implemented",
                   layer, pattern ? pattern + layer : "", word);
}

static int
count_layers(const json_t *config, uint32_t *ret, struct err *e)
{
    const char *key = list_key(config);
    const json_t *list = json_object_get(config, key);

    if (cfg_state(config, "num_hidden_layers") == CFG_SET || !json_is_array(list))
        return cfg_u32(config, "num_hidden_layers", CFG_REQUIRED, 1, MAX_LAYERS, ret, e);
    *ret = (uint32_t)json_array_size(list);
    if (*ret == 0 || *ret > MAX_LAYERS)
        return err_set(e, -EINVAL, "%s has %zu entries, want 1 to %d", key, json_array_size(list),
                       MAX_LAYERS);
    return 0;
}

/* Refuses every key whose value differs from the one that forward() implements. */
static int
refuse_others(const json_t *config, struct err *e)
{
    static const char *const without[] = { "attention_bias", "mlp_bias", "use_bias",
                                           "mamba_proj_bias" };
    const char *act, *state_act;

    for (size_t i = 0; i < ARRAY_LEN(without); i++)
        TRY(cfg_want_bool(config, without[i], false, e));
    TRY(cfg_want_bool(config, "use_conv_bias", true, e));
    TRY(cfg_want_bool(config, "mamba_conv_bias", true, e));
    TRY(cfg_str(config, "mlp_hidden_act", "relu2", &act, e));
    TRY(cfg_str(config, "mamba_hidden_act", "silu", &state_act, e));
    if (strcmp(act, "relu2") || strcmp(state_act, "silu"))
        return err_set(e, -ENOTSUP,
                       "mlp_hidden_act is \"%s\" and mamba_hidden_act \"%s\", only relu2 and silu "
                       "are implemented",
                       act, state_act);
    if (cfg_state(config, "sliding_window") == CFG_SET)
        return err_set(e, -ENOTSUP, "sliding_window is set, which is not implemented");
    return 0;
}

static int
read_mamba(const json_t *config, struct model_shape *s, struct mamba_shape *c, struct err *e)
{
    TRY(cfg_u32(config, "mamba_num_heads", 128, 1, CFG_MAX_HEADS, &c->n_heads, e));
    TRY(cfg_u32(config, "mamba_head_dim", 64, 1, CFG_MAX_HEAD_DIM, &c->head_dim, e));
    TRY(cfg_u32(config, cfg_either(config, "mamba_n_groups", "n_groups"), 8, 1, c->n_heads,
                &c->n_groups, e));
    TRY(cfg_u32(config, "ssm_state_size", 128, 1, CFG_MAX_HEAD_DIM, &c->state_dim, e));
    TRY(cfg_u32(config, cfg_either(config, "mamba_d_conv", "conv_kernel"), 4, 2, MAMBA_MAX_TAPS,
                &c->n_taps, e));
    TRY(cfg_f32(config, cfg_either(config, "mamba_dt_min", "time_step_min"), 0.001, 0, 1e6,
                &c->dt_min, e));
    c->dt_max = INFINITY;
    c->norm_groups = true;
    return mamba_sizes(s, c, e);
}

static int
read_experts(const json_t *config, struct model_shape *s, struct nemotron_cfg *cfg,
             struct layer_shape *l, struct err *e)
{
    uint32_t groups, top_groups;

    TRY(cfg_u32(config, "n_group", 1, 1, CFG_MAX_EXPERTS, &groups, e));
    TRY(cfg_u32(config, "topk_group", 1, 1, CFG_MAX_EXPERTS, &top_groups, e));
    if (groups != 1 || top_groups != 1)
        return err_set(e, -ENOTSUP, "n_group is %u and topk_group %u; only 1 and 1 are implemented",
                       groups, top_groups);
    if (cfg_state(config, "moe_latent_size") == CFG_SET)
        return err_set(e, -ENOTSUP, "moe_latent_size is set, which is not implemented");
    TRY(cfg_want_bool(config, "norm_topk_prob", true, e));
    TRY(cfg_f32(config, "routed_scaling_factor", 1, 1e-6, 1e6, &cfg->expert_scale, e));
    TRY(cfg_u32(config, cfg_either(config, "num_local_experts", "n_routed_experts"), 8, 1,
                CFG_MAX_EXPERTS, &l->n_experts, e));
    TRY(cfg_u32(config, "num_experts_per_tok", 2, 1, MIN(l->n_experts, (uint32_t)CFG_MAX_TOP),
                &l->n_top, e));
    TRY(cfg_u32(config, "moe_intermediate_size", 7688, 1, CFG_MAX_FF, &l->expert_ff, e));
    s->dim[DIM_EXPERT_FF] = l->expert_ff;
    return cfg_u32(config, "moe_shared_expert_intermediate_size", 7688, 1, CFG_MAX_FF, &l->n_ff, e);
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    struct nemotron_cfg *cfg = out;
    struct hybrid_cfg *hybrid = &cfg->hybrid;
    struct layer_shape of[] = {
        [MAMBA] = { 0 },
        [ATTENTION] = { .mixer = MIX_ATTENTION, .kv = KV_FULL, .kv_parts = 2 },
        [MLP] = { .mixer = MIX_NONE },
        [MOE] = { .mixer = MIX_NONE }
    };

    TRY(refuse_others(config, e));
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(count_layers(config, &s->n_layers, e));
    TRY(cfg_u32(config, "hidden_size", 4096, 1, CFG_MAX_HIDDEN, &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", 131072, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "max_position_embeddings", 4096, 1, CFG_MAX_POSITIONS, &s->max_len, e));
    TRY(cfg_f32(config, "layer_norm_epsilon", 1e-5, 0, 1, &hybrid->base.eps, e));
    TRY(cfg_heads(config, 32, 8, 128, &of[ATTENTION], e));
    TRY(cfg_u32(config, "intermediate_size", 21504, 1, CFG_MAX_FF, &of[MLP].n_ff, e));
    TRY(read_mamba(config, s, &hybrid->mamba, e));
    mamba_layer(&hybrid->mamba, &of[MAMBA]);
    hybrid->mamba.eps = hybrid->base.eps;
    hybrid->base.embed_scale = 1;
    hybrid->base.scale = 1 / sqrtf((float)of[ATTENTION].head_dim);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        enum kind kind = MLP;

        TRY(kind_of(config, i, s->n_layers, &kind, e));
        if (kind == MOE && of[MOE].n_experts == 0) TRY(read_experts(config, s, cfg, &of[MOE], e));
        s->layer[i] = of[kind];
        s->layer[i].kv_from = (uint16_t)i;
    }
    return 0;
}

/* Sets sum to the routed experts plus the shared expert, or to the feed-forward. */
static int
feed_forward(const struct model *m, struct step *s, uint32_t l, const struct nemotron_layer *w,
             struct tensor sum, struct tensor h)
{
    const struct gpu_ops *op = m->op;
    const struct nemotron_cfg *cfg = m->cfg;
    const struct layer_shape *shape = &m->shape.layer[l];
    struct tensor inner = block_scratch(s, BLOCK_INNER, h.dim[0], shape->n_ff);
    struct block_experts experts = {
        .no_gate = true,
        .sigmoid = true,
        .bias = w->correction,
        .gate_up = w->experts_up,
        .down = w->experts_down,
        .factor = cfg->expert_scale,
        .act = ACT_RELU2,
    };

    if (shape->n_experts) {
        TRY(op->matmul(s->lane, block_router_logits(s, shape, h.dim[0]), h, w->router, NO_TENSOR,
                       0));
        TRY(block_experts(m, s, shape, sum, h, &experts));
    }
    TRY(op->act_matmul(s->lane, inner, h, w->up, NO_TENSOR, ACT_RELU2));
    return op->matmul(s->lane, sum, inner, w->down, NO_TENSOR, shape->n_experts ? 1 : 0);
}

/* Sets sum to the output of layer l, before it is added to x. */
static int
mix(const struct model *m, struct step *s, uint32_t l, const struct nemotron_layer *w,
    struct tensor sum, struct tensor h)
{
    struct tensor y, out;

    if (m->shape.layer[l].mixer == MIX_NONE) return feed_forward(m, s, l, w, sum, h);
    TRY(hybrid_mix(m, s, l, &w->mixer, h, &y, &out));
    return m->op->matmul(s->lane, sum, y, out, NO_TENSOR, 0);
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct nemotron_layer *w = (const struct nemotron_layer *)m->layer + first;
    struct tensor sum = block_scratch(s, BLOCK_OUT, s->rows.n_tokens, m->shape.hidden), h;

    TRY(causal_begin(m, s, first, w->norm, 0, &h));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct residual end = causal_end(m, s, h, l, first + n, &w[1].norm);

        TRY(mix(m, s, l, w, sum, h));
        TRY(op->collective.all_reduce(s->lane, sum));
        end.in = sum;
        TRY(op->residual(s->lane, &end));
    }
    return 0;
}

const struct arch arch_nemotron_h = {
    .name = "nemotron_h",
    .hf_types = (const char *const[]){ "nemotron_h", NULL },
    .cfg_bytes = sizeof(struct nemotron_cfg),
    .top_bytes = sizeof(struct block_top),
    .layer_bytes = sizeof(struct nemotron_layer),
    .weights = weights,
    .divide = hybrid_divide,
    .prefixes = (const char *const[]){ "", "backbone.", "model.", NULL },
    .configure = configure,
    .forward = forward,
    .logits = block_logits,
};
