/* causal.h - code for several decoder-only ("causal") families: lines of weight tables, keys of
 * config.json, rotary tables, layers with either Mamba-2 or attention ("hybrid"), and the forward
 * pass of models with attention and a feed-forward in each layer ("dense").
 *
 * The cfg of a family that uses these functions begins with a struct causal_cfg; m->top begins with
 * a struct block_top. worker/model/blocks.h has the parts of a layer. */
#pragma once
#include "worker/arch/registry.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/mamba.h"

struct causal_cfg {
    float eps;         /* of every norm */
    float scale;       /* of attention scores */
    float embed_scale; /* factor of the embedding */
    /* Number of rotary tables in m->table[]. 0: no rotation. 1: one for all layers. 2: CAUSAL_FULL
     * for layers with full attention, CAUSAL_WINDOW for layers with a window. */
    uint32_t n_ropes;
    struct rope_params rope[2];
};
enum { CAUSAL_FULL, CAUSAL_WINDOW };

/* Defaults, or CFG_REQUIRED, of num_hidden_layers, hidden_size, vocab_size, max_position_embeddings
 * and rms_norm_eps. */
struct causal_defaults {
    int64_t n_layers, hidden, vocab, max_len;
    double eps;
};
/* Reads the keys of causal_defaults into s and cfg; n_ropes and embed_scale get the default 1. */
int causal_sizes(const json_t *config, struct causal_defaults d, struct model_shape *s,
                 struct causal_cfg *cfg, struct err *e) MUST_USE;
/* Sets layer i to a copy of l with its own KV and this window; window 0: full attention. */
void causal_layer(struct model_shape *s, uint32_t i, struct layer_shape l, uint32_t window);
/* Implements arch.tables. A table has the head size of the first attention layer that uses it. */
int causal_tables(struct model *m, struct err *e) MUST_USE;
/* Returns the rotary table of layer l; NO_TENSOR: no rotation. */
struct tensor causal_rope(const struct model *m, uint32_t l);

/* clang-format off */
#define TOP(f) IN_TOP, offsetof(struct block_top, f)
#define TOP_RULES(embed_name, norm_name) \
    { embed_name,              TOP(embed),     DIM_VOCAB,  DIM_HIDDEN, 0 }, \
    { norm_name,               TOP(norm),      DIM_1,      DIM_HIDDEN, W_FP32 }, \
    { "lm_head.weight",        TOP(head),      DIM_VOCAB,  DIM_HIDDEN, W_TIED | W_SPLIT_ROWS }
/* Lines for the fields qkv, gate_up and down of a layer. LAYER(f): enum weight_home and offset of f
 * in the family's layer; kv_flags: more flags of the lines of K and V. */
#define QKV_RULES(prefix, LAYER, kv_flags) \
    { prefix "q_proj.weight",  LAYER(qkv),     DIM_Q,      DIM_HIDDEN, W_SPLIT_ROWS }, \
    { prefix "k_proj.weight",  LAYER(qkv),     DIM_KV,     DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED | (kv_flags) }, \
    { prefix "v_proj.weight",  LAYER(qkv),     DIM_V,      DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED | (kv_flags) }
#define GATED_RULES(prefix, LAYER) \
    { prefix "gate_proj.weight", LAYER(gate_up), DIM_FF,   DIM_HIDDEN, W_SPLIT_ROWS }, \
    { prefix "up_proj.weight", LAYER(gate_up), DIM_FF,     DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED }, \
    { prefix "down_proj.weight", LAYER(down),  DIM_HIDDEN, DIM_FF,     W_SPLIT_COLS }
/* clang-format on */

/* Begins the range of layers from `first` on: embeds the tokens if first is 0, and sets *h ([n,
 * hidden] in BLOCK_NORMED) to rms_norm(x) with the weight norm + plus. */
int causal_begin(const struct model *m, struct step *s, uint32_t first, struct tensor norm,
                 float plus, struct tensor *h) MUST_USE;
/* Returns block_layer_end() with the norm weight *next of layer l + 1 or, if l is the last layer of
 * the model, with the norm of the model. The range of layers ends before layer `end`. */
struct residual causal_end(const struct model *m, const struct step *s, struct tensor h, uint32_t l,
                           uint32_t end, const struct tensor *next);

/* A layer of self-attention and a gated feed-forward. Fields that a family lacks are NO_TENSOR. */
struct dense_layer {
    struct tensor attn_norm;      /* [hidden] */
    struct tensor qkv, qkv_bias;  /* [q + kv + kv, hidden], [q + kv + kv] */
    struct tensor q_norm, k_norm; /* [head_dim] */
    struct tensor o;              /* [hidden, q] */
    struct tensor attn_post;      /* [hidden]: norm of the output of attention */
    struct tensor ff_norm;        /* [hidden] */
    struct tensor gate_up, down;  /* [2 ff, hidden], gate rows first; [hidden, ff] */
    struct tensor ff_post;        /* [hidden]: norm of the output of the feed-forward */
};
/* Rope types of llama.c and qwen.c: all types that transformers implements for each family. */
#define DENSE_ROPE \
    (1 << ROPE_DEFAULT | 1 << ROPE_LINEAR | 1 << ROPE_DYNAMIC | 1 << ROPE_LLAMA3 | \
     1 << ROPE_YARN | 1 << ROPE_LONGROPE)
#define DENSE(f) IN_LAYER, offsetof(struct dense_layer, f)
struct dense_cfg {
    struct causal_cfg base;
    enum act act;
    float norm_plus;      /* norm weights are norm_plus + w */
    float scores_softcap; /* 0: none */
};
/* Implements arch.forward for layers that begin with a struct dense_layer. */
int dense_forward(const struct model *m, struct step *s, uint32_t first, uint32_t n);
/* Fields of struct arch for a family that uses dense_forward(). */
#define DENSE_ARCH \
    .cfg_bytes = sizeof(struct dense_cfg), .top_bytes = sizeof(struct block_top), \
    .layer_bytes = sizeof(struct dense_layer), .divide = sharding_agrees, .tables = causal_tables, \
    .forward = dense_forward, .logits = block_logits, .ends_with_logit_rows = true

/* The weights of a layer's mixer, which is either Mamba-2 or attention. */
struct hybrid_mixer {
    struct mamba_weights mamba;
    struct tensor qkv, o; /* [q + kv + kv, hidden], [hidden, q] */
};
struct hybrid_cfg {
    struct causal_cfg base;
    struct mamba_shape mamba;
};
/* Implements arch.divide for a family whose cfg begins with a struct hybrid_cfg. */
int hybrid_divide(struct model *m, struct err *e) MUST_USE;
/* Queues the mixer of layer l for h [n, hidden] up to *y, the input of its output projection. The
 * caller queues the projection, whose weight is *out. */
int hybrid_mix(const struct model *m, struct step *s, uint32_t l, const struct hybrid_mixer *w,
               struct tensor h, struct tensor *y, struct tensor *out) MUST_USE;
