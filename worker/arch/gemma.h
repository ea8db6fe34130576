/* gemma.h - steps that Gemma 3n and Gemma 4 share.
 *
 * Per-layer inputs: besides the hidden states, a layer reads `each` numbers for every token,
 *
 *     (rms_norm(x0 projection^T / sqrt(hidden)) norm + table[token] sqrt(each)) / sqrt(2)
 *
 * where x0 is the scaled embedding. The inputs depend on the tokens only, so each range of layers
 * computes its own, and only x connects two ranges.
 */
#pragma once

#include "worker/model/blocks.h"

#include <jansson.h>

/* Sets kv_from of all layers. Each of the last num_kv_shared_layers (default: otherwise) reads the
 * KV of the last earlier layer of its kind (window or full). Windows and heads must be set. */
int gemma_share_kv(const json_t *config, uint32_t otherwise, struct model_shape *s,
                   struct err *e) MUST_USE;

/* Refuses other values of hidden_activation, attention_bias, use_bidirectional_attention and
 * tie_word_embeddings. */
int gemma_refuse_others(const json_t *config, struct err *e) MUST_USE;

struct gemma_inputs {
    struct tensor embed;      /* [vocab, hidden] */
    struct tensor table;      /* [tokens, layers * each] */
    struct tensor projection; /* [layers * each, hidden] */
    struct tensor norm;       /* [each] */
    uint32_t each;
    float embed_scale, eps;
};
/* Words per token at the start of BLOCK_OWN for these inputs. */
uint32_t gemma_input_words(uint32_t n_layers, uint32_t each);
/* Queues the inputs of layers [first, first + n): *ret [rows, n * each]. Overwrites h [rows,
 * hidden]. */
int gemma_inputs(const struct model *m, struct step *s, const struct gemma_inputs *g,
                 uint32_t first, uint32_t n, struct tensor h, struct tensor *ret);
/* out = (gelu(h gate^T) input) projection^T; input [rows, each]. */
int gemma_use_input(const struct model *m, struct step *s, struct tensor out, struct tensor h,
                    struct tensor gate, struct tensor projection, struct tensor input);
