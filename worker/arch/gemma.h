/* gemma.h - code that Gemma 3, Gemma 3n and Gemma 4 share: config, weight table, per-layer inputs.
 *
 * Per-layer inputs are a second embedding: besides the hidden states, every layer reads `each`
 * values of its own for every token,
 *
 *     (rms_norm(x0 projection^T / sqrt(hidden)) norm + table[token] sqrt(each)) / sqrt(2)
 *
 * where x0 is the scaled embedding. They depend on the tokens only, so each range of layers
 * (arch.forward) computes its layers' inputs, and only x passes from one range to the next. */
#pragma once
#include "worker/arch/causal.h"

extern const char *const gemma_prefixes[];

/* Reads the rotary parameters of both kinds of layers; types: as for cfg_rope_only(). */
int gemma_ropes(const json_t *config, unsigned types, struct causal_cfg *cfg,
                struct err *e) MUST_USE;

/* Sets kv_from of all layers: each of the last num_kv_shared_layers layers (default: `otherwise`)
 * reads the KV of the last earlier layer with the same window. Windows and heads must be set. */
int gemma_share_kv(const json_t *config, uint32_t otherwise, struct model_shape *s,
                   struct err *e) MUST_USE;

/* Refuses values of hidden_activation, attention_bias, use_bidirectional_attention and
 * tie_word_embeddings that are not implemented. */
int gemma_refuse_others(const json_t *config, struct err *e) MUST_USE;

/* Weights outside the layers. The top of a family with per-layer inputs begins with this struct. */
struct gemma_top {
    struct block_top base;           /* embed is also the head */
    struct tensor table, projection; /* [tokens, layers * each], [layers * each, hidden] */
    struct tensor projection_norm;   /* [each] */
};
/* Weights of a layer for its per-layer inputs. The family's struct of a layer begins with a struct
 * dense_layer and has this struct as the field `input`. */
struct gemma_input {
    struct tensor gate, projection; /* [each, hidden], [hidden, each] */
    struct tensor post;             /* [hidden]: norm of the output of gemma_use_input() */
};

/* Sizes of the tensors for per-layer inputs; 0 in a model without per-layer inputs. */
#define DIM_EACH DIM_OWN_0     /* `each` */
#define DIM_EACH_ALL DIM_OWN_1 /* each * layers */
#define DIM_TOKENS DIM_OWN_2   /* rows of gemma_top.table */
#define DIM_INPUT DIM_OWN_3    /* hidden */
#define L "layers.%u."

/* clang-format off */
#define GEMMA_TOP_RULES \
    { "embed_tokens.weight",                 TOP(embed),              DIM_VOCAB,  DIM_HIDDEN, 0 }, \
    { "norm.weight",                         TOP(norm),               DIM_1,      DIM_HIDDEN, W_FP32 }
/* Lines for the fields of struct dense_layer. */
#define GEMMA_DENSE_RULES \
    { L "input_layernorm.weight",            DENSE(attn_norm),        DIM_1,      DIM_HIDDEN, W_FP32 }, \
    QKV_RULES(L "self_attn.", DENSE, W_OWN_KV), \
    { L "self_attn.q_norm.weight",           DENSE(q_norm),           DIM_1,      DIM_HEAD,   W_FP32 }, \
    { L "self_attn.k_norm.weight",           DENSE(k_norm),           DIM_1,      DIM_HEAD,   W_FP32 | W_OWN_KV }, \
    { L "self_attn.o_proj.weight",           DENSE(o),                DIM_HIDDEN, DIM_Q,      W_SPLIT_COLS }, \
    { L "post_attention_layernorm.weight",   DENSE(attn_post),        DIM_1,      DIM_HIDDEN, W_FP32 }, \
    { L "pre_feedforward_layernorm.weight",  DENSE(ff_norm),          DIM_1,      DIM_HIDDEN, W_FP32 }, \
    GATED_RULES(L "mlp.", DENSE), \
    { L "post_feedforward_layernorm.weight", DENSE(ff_post),          DIM_1,      DIM_HIDDEN, W_FP32 }
/* Lines of the weight table that fill struct gemma_top and, in GEMMA_INPUT_RULES(TO), the field
 * `input` of a layer. TO(f): home (arch.h) and offset of field f of the family's layer. */
#define GEMMA_TOP(f) IN_TOP, offsetof(struct gemma_top, f)
#define GEMMA_INPUT_TOP_RULES \
    { "embed_tokens_per_layer.weight",       GEMMA_TOP(table),         DIM_TOKENS, DIM_EACH_ALL, W_EMBEDDING }, \
    { "per_layer_model_projection.weight",   GEMMA_TOP(projection),    DIM_EACH_ALL, DIM_HIDDEN, 0 }, \
    { "per_layer_projection_norm.weight",    GEMMA_TOP(projection_norm), DIM_1,     DIM_EACH,   W_FP32 }
#define GEMMA_INPUT_RULES(TO) \
    { L "per_layer_input_gate.weight",       TO(input.gate),          DIM_EACH,   DIM_HIDDEN, 0 }, \
    { L "per_layer_projection.weight",       TO(input.projection),    DIM_HIDDEN, DIM_EACH,   0 }, \
    { L "post_per_layer_input_norm.weight",  TO(input.post),          DIM_1,      DIM_INPUT,  W_FP32 }
/* clang-format on */

/* Reads the sizes of per-layer inputs: *each (refused below min) and s->dim. Sets s->own_cols. */
int gemma_read_inputs(const json_t *config, uint32_t min, struct model_shape *s, uint32_t *each,
                      struct err *e) MUST_USE;
/* Returns the words per token at the start of BLOCK_OWN that hold per-layer inputs. */
uint32_t gemma_input_words(uint32_t n_layers, uint32_t each);
/* Queues the computation of the per-layer inputs of layers [first, first + n): *ret is [rows, n *
 * each], `each` values per layer. h [rows, hidden] is scratch. */
int gemma_inputs(const struct model *m, struct step *s, uint32_t each, uint32_t first, uint32_t n,
                 struct tensor h, struct tensor *ret);
/* Applies a layer's inputs, [rows, each]: out = (gelu(h gate^T) * input) projection^T. */
int gemma_use_input(const struct model *m, struct step *s, struct tensor out, struct tensor h,
                    const struct gemma_input *w, struct tensor input);
/* Queues block_attend() of layer l with normed v and scores that are not scaled. */
int gemma_attend(const struct model *m, struct step *s, uint32_t l, const struct dense_layer *w,
                 struct tensor h, struct tensor *heads);
