/* llama.c - Llama 2, 3 and 3.1, and Mistral, which adds a sliding window.
 *
 * Pre-norm decoder: rms norm, grouped-query attention with rotary positions, rms norm, SwiGLU.
 * Source: LlamaForCausalLM and MistralForCausalLM of transformers 5.17, whose tensor names this
 * file follows.
 */
#include "worker/arch/registry.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/host_tables.h"
#include "worker/model/model.h"
#include "worker/model/sharding.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct llama_layer {
    struct tensor attn_norm; /* [hidden] */
    struct tensor qkv;       /* [q + kv + kv, hidden] */
    struct tensor o;         /* [hidden, q] */
    struct tensor ff_norm;   /* [hidden] */
    struct tensor gate_up;   /* [2 ff, hidden], gate rows first */
    struct tensor down;      /* [hidden, ff] */
};

struct llama_cfg {
    float eps;
    float scale; /* 1 / sqrt(head_dim) */
    struct rope_params rope;
};

#define TOP(f) IN_TOP, offsetof(struct block_top, f)
#define LAYER(f) IN_LAYER, offsetof(struct llama_layer, f)

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                                 field             rows        cols        */
    { "model.embed_tokens.weight",                       TOP(embed),       DIM_VOCAB,  DIM_HIDDEN, 0 },
    { "model.norm.weight",                               TOP(norm),        DIM_1,      DIM_HIDDEN, W_FP32 },
    { "lm_head.weight",                                  TOP(head),        DIM_VOCAB,  DIM_HIDDEN, W_TIED | W_SPLIT_ROWS },
    { "model.layers.%u.input_layernorm.weight",          LAYER(attn_norm), DIM_1,      DIM_HIDDEN, W_FP32 },
    { "model.layers.%u.self_attn.q_proj.weight",         LAYER(qkv),       DIM_Q,      DIM_HIDDEN, W_SPLIT_ROWS },
    { "model.layers.%u.self_attn.k_proj.weight",         LAYER(qkv),       DIM_KV,     DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { "model.layers.%u.self_attn.v_proj.weight",         LAYER(qkv),       DIM_KV,     DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { "model.layers.%u.self_attn.o_proj.weight",         LAYER(o),         DIM_HIDDEN, DIM_Q,      W_SPLIT_COLS },
    { "model.layers.%u.post_attention_layernorm.weight", LAYER(ff_norm),   DIM_1,      DIM_HIDDEN, W_FP32 },
    { "model.layers.%u.mlp.gate_proj.weight",            LAYER(gate_up),   DIM_FF,     DIM_HIDDEN, W_SPLIT_ROWS },
    { "model.layers.%u.mlp.up_proj.weight",              LAYER(gate_up),   DIM_FF,     DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { "model.layers.%u.mlp.down_proj.weight",            LAYER(down),      DIM_HIDDEN, DIM_FF,     W_SPLIT_COLS },
    { 0 },
};
/* clang-format on */

enum { LLAMA_ROPE = 1 << ROPE_DEFAULT | 1 << ROPE_LINEAR | 1 << ROPE_LLAMA3 };
/* Defaults of MistralConfig. */
enum { MISTRAL_WINDOW = 4096, MISTRAL_KV_HEADS = 8, MISTRAL_POSITIONS = 131072 };

/* Mistral: null means no window, absent means the default. */
static int
read_window(const json_t *config, bool mistral, uint32_t *ret, struct err *e)
{
    *ret = 0;
    if (!mistral || cfg_state(config, "sliding_window") == CFG_NULL) return 0;
    return cfg_u32(config, "sliding_window", MISTRAL_WINDOW, 1, CFG_MAX_POSITIONS, ret, e);
}

/* Refuses a window in Llama's config: transformers applies it to its KV cache but not within a
 * prompt. A window of at least max_len has no effect. */
static int
refuse_window(const json_t *config, const struct model_shape *s, struct err *e)
{
    uint32_t window;
    bool slides;

    TRY(cfg_u32(config, "sliding_window", CFG_MAX_POSITIONS, 1, CFG_MAX_POSITIONS, &window, e));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        TRY(cfg_slides(config, i, s->n_layers, true, &slides, e));
        if (slides && window < s->max_len)
            return err_set(
                e, -ENOTSUP,
                "sliding_window is %u, which is implemented for mistral but not for llama", window);
    }
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    struct llama_cfg *cfg = out;
    struct layer_shape l = { .mixer = MIX_ATTENTION, .kv_parts = 2 };
    const char *type;
    bool mistral;

    TRY(cfg_str(config, "model_type", NULL, &type, e));
    mistral = strcmp(type, "mistral") == 0;
    TRY(cfg_want_str(config, "hidden_act", "silu", e));
    TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_want_bool(config, "mlp_bias", false, e));
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(cfg_u32(config, "num_hidden_layers", CFG_REQUIRED, 1, MAX_LAYERS, &s->n_layers, e));
    TRY(cfg_u32(config, "hidden_size", CFG_REQUIRED, 1, CFG_MAX_HIDDEN, &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", CFG_REQUIRED, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "intermediate_size", CFG_REQUIRED, 1, CFG_MAX_FF, &l.n_ff, e));
    TRY(cfg_u32(config, "num_attention_heads", CFG_REQUIRED, 1, CFG_MAX_HEADS, &l.n_heads, e));
    TRY(cfg_heads(config, l.n_heads, mistral ? MISTRAL_KV_HEADS : l.n_heads, s->hidden / l.n_heads,
                  &l, e));
    TRY(cfg_u32(config, "max_position_embeddings", mistral ? MISTRAL_POSITIONS : 2048, 1,
                CFG_MAX_POSITIONS, &s->max_len, e));
    TRY(cfg_f32(config, "rms_norm_eps", 1e-6, 0, 1, &cfg->eps, e));
    TRY(read_window(config, mistral, &l.window, e));
    if (!mistral) TRY(refuse_window(config, s, e));
    TRY(cfg_rope_only(config, NULL, 1e4, LLAMA_ROPE, &cfg->rope, e));
    cfg->scale = 1 / sqrtf((float)l.head_dim);
    l.kv = l.window ? KV_WINDOW : KV_FULL;
    for (; l.kv_from < s->n_layers; l.kv_from++) s->layer[l.kv_from] = l;
    return 0;
}

static int
tables(struct model *m, struct err *e)
{
    const struct llama_cfg *cfg = m->cfg;

    return host_tables_rope(m, 0, &cfg->rope, m->shape.layer[0].head_dim, e);
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct llama_cfg *cfg = m->cfg;
    const struct block_top *top = m->top;
    const struct llama_layer *w = (const struct llama_layer *)m->layer + first;
    struct tensor h = block_scratch(s, BLOCK_NORMED, s->rows.n_tokens, m->shape.hidden);

    if (first == 0) TRY(op->embed(s->lane, s->x, top->embed, s->rows.token, 1));
    TRY(op->rms_norm(s->lane, h, s->x, w->attn_norm, cfg->eps, 0));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct block_attention a = { .qkv = w->qkv, .cos_sin = m->table[0], .scale = cfg->scale };
        struct residual middle = { .y_norm = w->ff_norm, .eps = cfg->eps }, end;
        struct tensor heads, inner;

        TRY(block_attend(m, s, l, h, &a, &heads));
        TRY(block_logit_rows(m, s, l, &heads, &h));
        middle.x = s->x;
        middle.y = h;
        TRY(block_residual(m, s, heads, w->o, middle));

        TRY(block_gated(m, s, h, w->gate_up, ACT_SILU, &inner));
        end = block_layer_end(m, s, h, l, first + n,
                              l + 1 < m->shape.n_layers ? w[1].attn_norm : top->norm);
        end.eps = cfg->eps;
        TRY(block_residual(m, s, inner, w->down, end));
    }
    return 0;
}

const struct arch arch_llama = {
    .name = "llama",
    .hf_types = (const char *const[]){ "llama", "mistral", NULL },
    .cfg_bytes = sizeof(struct llama_cfg),
    .top_bytes = sizeof(struct block_top),
    .layer_bytes = sizeof(struct llama_layer),
    .weights = weights,
    .divide = sharding_agrees,
    .prefixes = (const char *const[]){ "", NULL },
    .configure = configure,
    .tables = tables,
    .forward = forward,
    .logits = block_logits,
    .ends_with_logit_rows = true,
};
