/* gemma3.c - Gemma 3, text only: gemma3_text, and the text_config of gemma3.
 *
 * Norms before and after each sublayer, with weight 1 + w; q and k are normed per head before
 * rotation. 5 of 6 layers have a window and rotary base 1e4, the sixth full attention and base 1e6.
 * query_pre_attn_scalar sets the score scale. Source: Gemma3ForCausalLM of transformers 5.17. */
#include "worker/arch/gemma.h"

static const struct weight_rule weights[] = {
    GEMMA_TOP_RULES,
    GEMMA_DENSE_RULES,
    { 0 },
};
static int
read_layers(const json_t *config, struct model_shape *s, struct err *e)
{
    struct layer_shape l = { .mixer = MIX_ATTENTION, .kv_parts = 2 };
    uint32_t window, pattern;
    bool slides;

    TRY(cfg_u32(config, "intermediate_size", 9216, 1, CFG_MAX_FF, &l.n_ff, e));
    TRY(cfg_heads(config, 8, 4, 256, &l, e));
    TRY(cfg_u32(config, "sliding_window", 4096, 1, CFG_MAX_POSITIONS, &window, e));
    /* If layer_types is absent, every pattern-th layer has full attention. */
    TRY(cfg_u32(config, "sliding_window_pattern", 6, 1, MAX_LAYERS, &pattern, e));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        TRY(cfg_slides(config, i, s->n_layers, (i + 1) % pattern, &slides, e));
        causal_layer(s, i, l, slides ? window : 0);
    }
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    static const struct causal_defaults defaults = { 26, 2304, 262208, 131072, 1e-6 };
    struct dense_cfg *cfg = out;
    float scalar;

    TRY(cfg_want_str(config, "hidden_activation", "gelu_pytorch_tanh", e));
    TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_want_bool(config, "use_bidirectional_attention", false, e));
    TRY(cfg_want_bool(config, "tie_word_embeddings", true, e));
    TRY(causal_sizes(config, defaults, s, &cfg->base, e));
    TRY(cfg_f32(config, "query_pre_attn_scalar", 256, 1e-6, 1e6, &scalar, e));
    TRY(cfg_f32(config, "attn_logit_softcapping", 0, 0, 1e6, &cfg->scores_softcap, e));
    TRY(cfg_f32(config, "final_logit_softcapping", 0, 0, 1e6, &s->logit_cap, e));
    TRY(gemma_ropes(config, 1 << ROPE_DEFAULT | 1 << ROPE_LINEAR, &cfg->base, e));
    TRY(read_layers(config, s, e));
    cfg->base.scale = (float)(1 / sqrt((double)scalar));
    /* sqrt(hidden) in fp32, also for bf16 models, where transformers rounds it to bf16. */
    cfg->base.embed_scale = sqrtf((float)s->hidden);
    cfg->act = ACT_GELU_TANH;
    cfg->norm_plus = 1;
    return 0;
}

const struct arch arch_gemma3 = {
    .name = "gemma3",
    .hf_types = (const char *const[]){ "gemma3_text", "gemma3", NULL },
    .exceeds_fp16 = true,
    .weights = weights,
    .prefixes = gemma_prefixes,
    .configure = configure,
    DENSE_ARCH,
};
