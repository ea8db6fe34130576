/* qwen.c - Qwen 2, 2.5 and 3, dense models.
 *
 * As Llama, except: Qwen 2 adds biases to q, k and v; Qwen 3 norms the heads of q and k instead.
 * Layers from max_window_layers on may have a sliding window.
 * Source: Qwen2ForCausalLM and Qwen3ForCausalLM of transformers 5.17, whose tensor names this file
 * follows.
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

struct qwen_layer {
    struct tensor attn_norm;      /* [hidden] */
    struct tensor qkv;            /* [q + kv + kv, hidden] */
    struct tensor qkv_bias;       /* [q + kv + kv]; Qwen 3: none */
    struct tensor q_norm, k_norm; /* [head_dim]; Qwen 2: none */
    struct tensor o;              /* [hidden, q] */
    struct tensor ff_norm;        /* [hidden] */
    struct tensor gate_up;        /* [2 ff, hidden], gate rows first */
    struct tensor down;           /* [hidden, ff] */
};

struct qwen_cfg {
    float eps;
    float scale; /* 1 / sqrt(head_dim) */
    struct rope_params rope;
};

#define TOP(f) IN_TOP, offsetof(struct block_top, f)
#define LAYER(f) IN_LAYER, offsetof(struct qwen_layer, f)
/* Qwen 2 has the biases, Qwen 3 the norms; the sizes of absent tensors are 0. */
#define DIM_Q_BIAS DIM_OWN_0
#define DIM_KV_BIAS DIM_OWN_1
#define DIM_NORM DIM_OWN_2

#define L "model.layers.%u."
#define ATTN L "self_attn."

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                   field             rows         cols        */
    { "model.embed_tokens.weight",         TOP(embed),       DIM_VOCAB,   DIM_HIDDEN, 0 },
    { "model.norm.weight",                 TOP(norm),        DIM_1,       DIM_HIDDEN, W_FP32 },
    { "lm_head.weight",                    TOP(head),        DIM_VOCAB,   DIM_HIDDEN, W_TIED | W_SPLIT_ROWS },
    { L "input_layernorm.weight",          LAYER(attn_norm), DIM_1,       DIM_HIDDEN, W_FP32 },
    { ATTN "q_proj.weight",                LAYER(qkv),       DIM_Q,       DIM_HIDDEN, W_SPLIT_ROWS },
    { ATTN "k_proj.weight",                LAYER(qkv),       DIM_KV,      DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { ATTN "v_proj.weight",                LAYER(qkv),       DIM_KV,      DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { ATTN "q_proj.bias",                  LAYER(qkv_bias),  DIM_Q_BIAS,  DIM_1,      W_FP32 | W_SPLIT_ROWS },
    { ATTN "k_proj.bias",                  LAYER(qkv_bias),  DIM_KV_BIAS, DIM_1,      W_FP32 | W_SPLIT_ROWS | W_STACKED },
    { ATTN "v_proj.bias",                  LAYER(qkv_bias),  DIM_KV_BIAS, DIM_1,      W_FP32 | W_SPLIT_ROWS | W_STACKED },
    { ATTN "q_norm.weight",                LAYER(q_norm),    DIM_1,       DIM_NORM,   W_FP32 },
    { ATTN "k_norm.weight",                LAYER(k_norm),    DIM_1,       DIM_NORM,   W_FP32 },
    { ATTN "o_proj.weight",                LAYER(o),         DIM_HIDDEN,  DIM_Q,      W_SPLIT_COLS },
    { L "post_attention_layernorm.weight", LAYER(ff_norm),   DIM_1,       DIM_HIDDEN, W_FP32 },
    { L "mlp.gate_proj.weight",            LAYER(gate_up),   DIM_FF,      DIM_HIDDEN, W_SPLIT_ROWS },
    { L "mlp.up_proj.weight",              LAYER(gate_up),   DIM_FF,      DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { L "mlp.down_proj.weight",            LAYER(down),      DIM_HIDDEN,  DIM_FF,     W_SPLIT_COLS },
    { 0 },
};
/* clang-format on */

enum { QWEN_ROPE = 1 << ROPE_DEFAULT | 1 << ROPE_LINEAR | 1 << ROPE_LLAMA3 | 1 << ROPE_YARN };

/* sliding_window counts only if use_sliding_window is true. */
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
        l.window = slides ? window : 0;
        l.kv = slides ? KV_WINDOW : KV_FULL;
        l.kv_from = (uint16_t)i;
        s->layer[i] = l;
    }
    return 0;
}

static int
read_heads(const json_t *config, bool qwen3, uint32_t hidden, struct layer_shape *l, struct err *e)
{
    TRY(cfg_u32(config, "num_attention_heads", 32, 1, CFG_MAX_HEADS, &l->n_heads, e));
    return cfg_heads(config, 32, 32, qwen3 ? 128 : hidden / l->n_heads, l, e);
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
    struct qwen_cfg *cfg = out;
    struct layer_shape l = { .mixer = MIX_ATTENTION, .kv_parts = 2 };
    const char *type;
    bool qwen3;

    TRY(cfg_str(config, "model_type", NULL, &type, e));
    qwen3 = strcmp(type, "qwen3") == 0;
    TRY(cfg_want_str(config, "hidden_act", "silu", e));
    if (qwen3) TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_bool(config, "tie_word_embeddings", false, &s->tied, e));
    TRY(cfg_u32(config, "num_hidden_layers", 32, 1, MAX_LAYERS, &s->n_layers, e));
    TRY(cfg_u32(config, "hidden_size", 4096, 1, CFG_MAX_HIDDEN, &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", 151936, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "intermediate_size", 22016, 1, CFG_MAX_FF, &l.n_ff, e));
    TRY(cfg_u32(config, "max_position_embeddings", 32768, 1, CFG_MAX_POSITIONS, &s->max_len, e));
    TRY(cfg_f32(config, "rms_norm_eps", 1e-6, 0, 1, &cfg->eps, e));
    TRY(read_heads(config, qwen3, s->hidden, &l, e));
    TRY(read_layers(config, l, s, e));
    TRY(cfg_rope_only(config, NULL, 1e4, QWEN_ROPE, &cfg->rope, e));
    cfg->scale = 1 / sqrtf((float)l.head_dim);
    set_sizes(s, &l, qwen3);
    return 0;
}

static int
tables(struct model *m, struct err *e)
{
    const struct qwen_cfg *cfg = m->cfg;

    return host_tables_rope(m, 0, &cfg->rope, m->shape.layer[0].head_dim, e);
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct qwen_cfg *cfg = m->cfg;
    const struct block_top *top = m->top;
    const struct qwen_layer *w = (const struct qwen_layer *)m->layer + first;
    struct tensor h = block_scratch(s, BLOCK_NORMED, s->rows.n_tokens, m->shape.hidden);

    if (first == 0) TRY(op->embed(s->lane, s->x, top->embed, s->rows.token, 1));
    TRY(op->rms_norm(s->lane, h, s->x, w->attn_norm, cfg->eps, 0));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct block_attention a = {
            .qkv = w->qkv,
            .bias = w->qkv_bias,
            .q_norm = w->q_norm,
            .k_norm = w->k_norm,
            .norm_eps = cfg->eps,
            .cos_sin = m->table[0],
            .scale = cfg->scale,
        };
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

const struct arch arch_qwen = {
    .name = "qwen",
    .hf_types = (const char *const[]){ "qwen2", "qwen3", NULL },
    .cfg_bytes = sizeof(struct qwen_cfg),
    .top_bytes = sizeof(struct block_top),
    .layer_bytes = sizeof(struct qwen_layer),
    .weights = weights,
    .divide = sharding_agrees,
    .prefixes = (const char *const[]){ "", NULL },
    .configure = configure,
    .tables = tables,
    .forward = forward,
    .logits = block_logits,
    .ends_with_logit_rows = true,
};
