/* llama.c - Llama 2, 3 and 3.1, and Mistral, which adds a sliding window.
 *
 * Pre-norm decoder: rms norm, grouped-query attention with rotary positions, rms norm, SwiGLU.
 * Source: LlamaForCausalLM and MistralForCausalLM of transformers 5.17, whose tensor names this
 * file follows. */
#include "worker/arch/causal.h"

/* clang-format off */
static const struct weight_rule weights[] = {
    TOP_RULES("model.embed_tokens.weight", "model.norm.weight"),
    { "model.layers.%u.input_layernorm.weight",          DENSE(attn_norm), DIM_1,      DIM_HIDDEN, W_FP32 },
    QKV_RULES("model.layers.%u.self_attn.", DENSE, 0),
    { "model.layers.%u.self_attn.o_proj.weight",         DENSE(o),         DIM_HIDDEN, DIM_Q,      W_SPLIT_COLS },
    { "model.layers.%u.post_attention_layernorm.weight", DENSE(ff_norm),   DIM_1,      DIM_HIDDEN, W_FP32 },
    GATED_RULES("model.layers.%u.mlp.", DENSE),
    { 0 },
};
/* clang-format on */

/* Defaults of MistralConfig. */
enum { MISTRAL_WINDOW = 4096, MISTRAL_KV_HEADS = 8, MISTRAL_POSITIONS = 131072 };

/* Reads Mistral's window (Llama: 0). null: no window; an absent key: the default. */
static int
read_window(const json_t *config, bool mistral, uint32_t *ret, struct err *e)
{
    *ret = 0;
    if (!mistral || cfg_state(config, "sliding_window") == CFG_NULL) return 0;
    return cfg_u32(config, "sliding_window", MISTRAL_WINDOW, 1, CFG_MAX_POSITIONS, ret, e);
}

/* Refuses a sliding window in Llama's config, because transformers applies it to its KV cache but
 * not within a prompt. A window of at least max_len is accepted, because it has no effect. */
static int
refuse_window(const json_t *config, const struct model_shape *s, struct err *e)
{
    uint32_t window;
    bool slides;

    TRY(cfg_u32(config, "sliding_window", CFG_MAX_POSITIONS, 1, CFG_MAX_POSITIONS, &window, e));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        TRY(cfg_slides(config, i, s->n_layers, true, &slides, e));
        if (slides && window < s->max_len)
            return err_set(e, -ENOTSUP,
                           "sliding_window is %u, which is implemented for mistral, not for llama",
                           window);
    }
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    struct dense_cfg *cfg = out;
    struct layer_shape l = { .mixer = MIX_ATTENTION, .kv_parts = 2 };
    const char *type;
    uint32_t window;
    bool mistral;

    TRY(cfg_str(config, "model_type", NULL, &type, e));
    mistral = strcmp(type, "mistral") == 0;
    TRY(cfg_want_str(config, "hidden_act", "silu", e));
    TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_want_bool(config, "mlp_bias", false, e));
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(causal_sizes(config,
                     (struct causal_defaults){ CFG_REQUIRED, CFG_REQUIRED, CFG_REQUIRED,
                                               mistral ? MISTRAL_POSITIONS : 2048, 1e-6 },
                     s, &cfg->base, e));
    TRY(cfg_u32(config, "intermediate_size", CFG_REQUIRED, 1, CFG_MAX_FF, &l.n_ff, e));
    TRY(cfg_u32(config, "num_attention_heads", CFG_REQUIRED, 1, CFG_MAX_HEADS, &l.n_heads, e));
    TRY(cfg_heads(config, l.n_heads, mistral ? MISTRAL_KV_HEADS : l.n_heads, s->hidden / l.n_heads,
                  &l, e));
    TRY(read_window(config, mistral, &window, e));
    if (!mistral) TRY(refuse_window(config, s, e));
    TRY(cfg_rope_only(config, NULL, 1e4, DENSE_ROPE, &cfg->base.rope[0], e));
    cfg->base.scale = 1 / sqrtf((float)l.head_dim);
    cfg->act = ACT_SILU;
    for (uint32_t i = 0; i < s->n_layers; i++) causal_layer(s, i, l, window);
    return 0;
}

const struct arch arch_llama = {
    .name = "llama",
    .hf_types = (const char *const[]){ "llama", "mistral", NULL },
    .weights = weights,
    .configure = configure,
    DENSE_ARCH,
};
