/* qwen.c - Qwen 2, 2.5 and 3, dense models.
 *
 * As Llama, except: Qwen 2 adds biases to q, k and v; Qwen 3 norms the heads of q and k instead.
 * Layers from max_window_layers on may have a sliding window. Source: Qwen2ForCausalLM and
 * Qwen3ForCausalLM of transformers 5.17, whose tensor names this file follows. */
#include "worker/arch/causal.h"

/* Sizes of the biases, which Qwen 2 has, and of the norms, which Qwen 3 has; 0 in the other. */
#define DIM_Q_BIAS DIM_OWN_0
#define DIM_KV_BIAS DIM_OWN_1
#define DIM_NORM DIM_OWN_2

#define L "model.layers.%u."
#define ATTN L "self_attn."

/* clang-format off */
static const struct weight_rule weights[] = {
    TOP_RULES("model.embed_tokens.weight", "model.norm.weight"),
    { L "input_layernorm.weight",          DENSE(attn_norm), DIM_1,       DIM_HIDDEN, W_FP32 },
    QKV_RULES(ATTN, DENSE, 0),
    { ATTN "q_proj.bias",                  DENSE(qkv_bias),  DIM_Q_BIAS,  DIM_1,      W_FP32 | W_SPLIT_ROWS },
    { ATTN "k_proj.bias",                  DENSE(qkv_bias),  DIM_KV_BIAS, DIM_1,      W_FP32 | W_SPLIT_ROWS | W_STACKED },
    { ATTN "v_proj.bias",                  DENSE(qkv_bias),  DIM_KV_BIAS, DIM_1,      W_FP32 | W_SPLIT_ROWS | W_STACKED },
    { ATTN "q_norm.weight",                DENSE(q_norm),    DIM_1,       DIM_NORM,   W_FP32 },
    { ATTN "k_norm.weight",                DENSE(k_norm),    DIM_1,       DIM_NORM,   W_FP32 },
    { ATTN "o_proj.weight",                DENSE(o),         DIM_HIDDEN,  DIM_Q,      W_SPLIT_COLS },
    { L "post_attention_layernorm.weight", DENSE(ff_norm),   DIM_1,       DIM_HIDDEN, W_FP32 },
    GATED_RULES(L "mlp.", DENSE),
    { 0 },
};
/* clang-format on */

/* Reads the window of layers from *first on; *window is 0 unless use_sliding_window is true. */
static int
read_window(const json_t *config, uint32_t *window, uint32_t *first, struct err *e)
{
    bool slides;

    *window = 0;
    TRY(cfg_bool(config, "use_sliding_window", false, &slides, e));
    TRY(cfg_u32(config, "max_window_layers", 28, 0, MAX_LAYERS, first, e));
    if (!slides || cfg_state(config, "sliding_window") == CFG_NULL) return 0;
    return cfg_u32(config, "sliding_window", 4096, 1, CFG_MAX_POSITIONS, window, e);
}

static int
read_layers(const json_t *config, struct layer_shape l, struct model_shape *s, struct err *e)
{
    uint32_t window, first;

    TRY(read_window(config, &window, &first, e));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        bool slides;

        TRY(cfg_slides(config, i, s->n_layers, window && i >= first, &slides, e));
        if (slides && !window)
            return err_set(e, -EINVAL,
                           "layer_types[%u] is sliding_attention, but sliding_window is not set",
                           i);
        causal_layer(s, i, l, slides ? window : 0);
    }
    return 0;
}

static void
set_sizes(struct model_shape *s, const struct layer_shape *l, bool qwen3)
{
    uint32_t q = l->n_heads * l->head_dim, kv = l->n_kv_heads * l->head_dim;

    if (qwen3) {
        s->dim[DIM_NORM] = l->head_dim;
        return;
    }
    s->dim[DIM_Q_BIAS] = q;
    s->dim[DIM_KV_BIAS] = kv;
    s->parts[DIM_Q_BIAS] = (struct dim_parts){ 1, { q }, { l->n_heads } };
    s->parts[DIM_KV_BIAS] = (struct dim_parts){ 1, { kv }, { l->n_kv_heads } };
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    static const struct causal_defaults defaults = { 32, 4096, 151936, 32768, 1e-6 };
    struct dense_cfg *cfg = out;
    struct layer_shape l = { .mixer = MIX_ATTENTION, .kv_parts = 2 };
    const char *type;
    bool qwen3;

    TRY(cfg_str(config, "model_type", NULL, &type, e));
    qwen3 = strcmp(type, "qwen3") == 0;
    TRY(cfg_want_str(config, "hidden_act", "silu", e));
    if (qwen3) TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(causal_sizes(config, defaults, s, &cfg->base, e));
    TRY(cfg_u32(config, "intermediate_size", 22016, 1, CFG_MAX_FF, &l.n_ff, e));
    TRY(cfg_u32(config, "num_attention_heads", 32, 1, CFG_MAX_HEADS, &l.n_heads, e));
    TRY(cfg_heads(config, 32, 32, qwen3 ? 128 : s->hidden / l.n_heads, &l, e));
    TRY(read_layers(config, l, s, e));
    TRY(cfg_rope_only(config, NULL, 1e4, DENSE_ROPE, &cfg->base.rope[0], e));
    cfg->base.scale = 1 / sqrtf((float)l.head_dim);
    cfg->act = ACT_SILU;
    set_sizes(s, &l, qwen3);
    return 0;
}

const struct arch arch_qwen = {
    .name = "qwen",
    .hf_types = (const char *const[]){ "qwen2", "qwen3", NULL },
    .weights = weights,
    .configure = configure,
    DENSE_ARCH,
};
