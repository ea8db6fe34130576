/* gemma3.c - Gemma 3, text only: gemma3_text, and the text_config of gemma3.
 *
 * Norms before and after each sublayer, with weight 1 + w; q and k are normed per head before
 * rotation. 5 of 6 layers have a sliding window and rotary base 1e4, the sixth has full attention
 * and base 1e6. query_pre_attn_scalar sets the attention scale.
 * Source: Gemma3ForCausalLM of transformers 5.17.
 */
#include "worker/arch/registry.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/host_tables.h"
#include "worker/model/model.h"
#include "worker/model/sharding.h"

#include <math.h>
#include <string.h>

struct gemma3_layer {
    struct tensor attn_norm, attn_post; /* [hidden] */
    struct tensor qkv;                  /* [q + kv + kv, hidden] */
    struct tensor q_norm, k_norm;       /* [head_dim] */
    struct tensor o;                    /* [hidden, q] */
    struct tensor ff_norm, ff_post;     /* [hidden] */
    struct tensor gate_up;              /* [2 ff, hidden], gate rows first */
    struct tensor down;                 /* [hidden, ff] */
};

struct gemma3_cfg {
    float eps;
    float scale;       /* query_pre_attn_scalar ^ -0.5 */
    float embed_scale; /* sqrt(hidden) */
    float attn_cap;    /* 0: none */
    struct rope_params rope[2];
};
enum { TABLE_FULL, TABLE_WINDOW }; /* m->table[], cfg->rope[] */

#define TOP(f) IN_TOP, offsetof(struct block_top, f)
#define LAYER(f) IN_LAYER, offsetof(struct gemma3_layer, f)

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                           field             rows        cols        */
    { "embed_tokens.weight",                       TOP(embed),       DIM_VOCAB,  DIM_HIDDEN, 0 },
    { "norm.weight",                               TOP(norm),        DIM_1,      DIM_HIDDEN, W_FP32 },
    { "layers.%u.input_layernorm.weight",          LAYER(attn_norm), DIM_1,      DIM_HIDDEN, W_FP32 },
    { "layers.%u.self_attn.q_proj.weight",         LAYER(qkv),       DIM_Q,      DIM_HIDDEN, W_SPLIT_ROWS },
    { "layers.%u.self_attn.k_proj.weight",         LAYER(qkv),       DIM_KV,     DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { "layers.%u.self_attn.v_proj.weight",         LAYER(qkv),       DIM_KV,     DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { "layers.%u.self_attn.q_norm.weight",         LAYER(q_norm),    DIM_1,      DIM_HEAD,   W_FP32 },
    { "layers.%u.self_attn.k_norm.weight",         LAYER(k_norm),    DIM_1,      DIM_HEAD,   W_FP32 },
    { "layers.%u.self_attn.o_proj.weight",         LAYER(o),         DIM_HIDDEN, DIM_Q,      W_SPLIT_COLS },
    { "layers.%u.post_attention_layernorm.weight", LAYER(attn_post), DIM_1,      DIM_HIDDEN, W_FP32 },
    { "layers.%u.pre_feedforward_layernorm.weight", LAYER(ff_norm),  DIM_1,      DIM_HIDDEN, W_FP32 },
    { "layers.%u.mlp.gate_proj.weight",            LAYER(gate_up),   DIM_FF,     DIM_HIDDEN, W_SPLIT_ROWS },
    { "layers.%u.mlp.up_proj.weight",              LAYER(gate_up),   DIM_FF,     DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { "layers.%u.mlp.down_proj.weight",            LAYER(down),      DIM_HIDDEN, DIM_FF,     W_SPLIT_COLS },
    { "layers.%u.post_feedforward_layernorm.weight", LAYER(ff_post), DIM_1,      DIM_HIDDEN, W_FP32 },
    { 0 },
};
/* clang-format on */

static int
read_layers(const json_t *config, struct model_shape *s, struct err *e)
{
    struct layer_shape l = { .mixer = MIX_ATTENTION, .kv_parts = 2 };
    uint32_t window, pattern;
    bool slides;

    TRY(cfg_u32(config, "intermediate_size", 9216, 1, CFG_MAX_FF, &l.n_ff, e));
    TRY(cfg_heads(config, 8, 4, 256, &l, e));
    TRY(cfg_u32(config, "sliding_window", 4096, 1, CFG_MAX_POSITIONS, &window, e));
    /* Older configs without layer_types: every pattern-th layer has full attention. */
    TRY(cfg_u32(config, "sliding_window_pattern", 6, 1, MAX_LAYERS, &pattern, e));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        TRY(cfg_slides(config, i, s->n_layers, (i + 1) % pattern, &slides, e));
        l.window = slides ? window : 0;
        l.kv = slides ? KV_WINDOW : KV_FULL;
        l.kv_from = (uint16_t)i;
        s->layer[i] = l;
    }
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    struct gemma3_cfg *cfg = out;
    float scalar;

    TRY(cfg_want_str(config, "hidden_activation", "gelu_pytorch_tanh", e));
    TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_want_bool(config, "use_bidirectional_attention", false, e));
    TRY(cfg_want_bool(config, "tie_word_embeddings", true, e));
    TRY(cfg_u32(config, "num_hidden_layers", 26, 1, MAX_LAYERS, &s->n_layers, e));
    TRY(cfg_u32(config, "hidden_size", 2304, 1, CFG_MAX_HIDDEN, &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", 262208, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "max_position_embeddings", 131072, 1, CFG_MAX_POSITIONS, &s->max_len, e));
    TRY(cfg_f32(config, "rms_norm_eps", 1e-6, 0, 1, &cfg->eps, e));
    TRY(cfg_f32(config, "query_pre_attn_scalar", 256, 1e-6, 1e6, &scalar, e));
    TRY(cfg_f32(config, "attn_logit_softcapping", 0, 0, 1e6, &cfg->attn_cap, e));
    TRY(cfg_f32(config, "final_logit_softcapping", 0, 0, 1e6, &s->logit_cap, e));
    TRY(cfg_rope_only(config, "full_attention", 1e6, 1 << ROPE_DEFAULT | 1 << ROPE_LINEAR,
                      &cfg->rope[TABLE_FULL], e));
    TRY(cfg_rope_only(config, "sliding_attention", 1e4, 1 << ROPE_DEFAULT | 1 << ROPE_LINEAR,
                      &cfg->rope[TABLE_WINDOW], e));
    TRY(read_layers(config, s, e));
    cfg->scale = (float)(1 / sqrt((double)scalar));
    /* Differs: a bf16 run of transformers rounds this factor to bf16. The reference is the fp32
     * run. */
    cfg->embed_scale = sqrtf((float)s->hidden);
    return 0;
}

static int
tables(struct model *m, struct err *e)
{
    const struct gemma3_cfg *cfg = m->cfg;

    for (uint32_t i = TABLE_FULL; i <= TABLE_WINDOW; i++)
        TRY(host_tables_rope(m, i, &cfg->rope[i], m->shape.layer[0].head_dim, e));
    return 0;
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3_cfg *cfg = m->cfg;
    const struct block_top *top = m->top;
    const struct gemma3_layer *w = (const struct gemma3_layer *)m->layer + first;
    struct tensor h = block_scratch(s, BLOCK_NORMED, s->rows.n_tokens, m->shape.hidden);

    if (first == 0) TRY(op->embed(s->lane, s->x, top->embed, s->rows.token, cfg->embed_scale));
    TRY(op->rms_norm(s->lane, h, s->x, w->attn_norm, cfg->eps, 1));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct block_attention a = {
            .qkv = w->qkv,
            .q_norm = w->q_norm,
            .k_norm = w->k_norm,
            .norm_eps = cfg->eps,
            .norm_plus = 1,
            .cos_sin = m->table[m->shape.layer[l].window ? TABLE_WINDOW : TABLE_FULL],
            .scale = cfg->scale,
            .softcap = cfg->attn_cap,
        };
        /* in_norm: the sum over the ranks is normed before it is added. */
        struct residual middle = {
            .in_norm = w->attn_post, .y_norm = w->ff_norm, .eps = cfg->eps, .plus = 1
        };
        struct residual end;
        struct tensor heads, inner;

        TRY(block_attend(m, s, l, h, &a, &heads));
        TRY(block_logit_rows(m, s, l, &heads, &h));
        middle.x = s->x;
        middle.y = h;
        TRY(block_residual(m, s, heads, w->o, middle));

        TRY(block_gated(m, s, h, w->gate_up, ACT_GELU_TANH, &inner));
        end = block_layer_end(m, s, h, l, first + n,
                              l + 1 < m->shape.n_layers ? w[1].attn_norm : top->norm);
        end.in_norm = w->ff_post;
        end.eps = cfg->eps;
        end.plus = 1;
        TRY(block_residual(m, s, inner, w->down, end));
    }
    return 0;
}

const struct arch arch_gemma3 = {
    .name = "gemma3",
    .hf_types = (const char *const[]){ "gemma3_text", "gemma3", NULL },
    .cfg_bytes = sizeof(struct gemma3_cfg),
    .top_bytes = sizeof(struct block_top),
    .layer_bytes = sizeof(struct gemma3_layer),
    .weights = weights,
    .divide = sharding_agrees,
    .prefixes = (const char *const[]){ "model.", "language_model.model.", "model.language_model.",
                                       NULL },
    .configure = configure,
    .tables = tables,
    .forward = forward,
    .logits = block_logits,
    .ends_with_logit_rows = true,
};
