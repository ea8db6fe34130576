/* gemma.h - what Gemma 3n and Gemma 4 do to the letter alike.
 *
 * Inputs of each layer: beside the residual stream a layer reads `each` numbers of its own for every token,
 *
 *     (rms_norm(x0 projection^T / sqrt(hidden)) norm + table[token] sqrt(each)) / sqrt(2)
 *
 * x0 the scaled embedding. They follow from the tokens alone, so every range of layers makes its own, and
 * nothing but x goes from one range to the next.
 */
#ifndef ARCH_GEMMA_H
#define ARCH_GEMMA_H

#include "worker/model/blocks.h"

#include <jansson.h>

/* The last num_kv_shared_layers, or `otherwise`, read the cache of the last layer before them that slides, or does
 * not, as they do: kv_from of all. Windows and heads are set. */
int gemma_share_kv(const json_t *config, uint32_t otherwise, struct model_shape *s,
                   struct err *e) MUST_USE;

/* hidden_activation, attention_bias, use_bidirectional_attention, tie_word_embeddings: what there is one of. */
int gemma_refuse_others(const json_t *config, struct err *e) MUST_USE;

struct gemma_inputs {
    struct tensor embed;      /* [vocab, hidden] */
    struct tensor table;      /* [tokens, layers * each] */
    struct tensor projection; /* [layers * each, hidden] */
    struct tensor norm;       /* [each] */
    uint32_t each;
    float embed_scale, eps;
};
/* Words a row of BLOCK_OWN that they take, from its begin. */
uint32_t gemma_input_words(uint32_t n_layers, uint32_t each);
/* Queue the inputs of layers [first, first + n): [rows, n * each]. Takes h [rows, hidden] on its way. */
int gemma_inputs(const struct model *m, struct step *s, const struct gemma_inputs *g,
                 uint32_t first, uint32_t n, struct tensor h, struct tensor *ret);
/* out = (gelu(h gate^T) input) projection^T; input [rows, each]. */
int gemma_use_input(const struct model *m, struct step *s, struct tensor out, struct tensor h,
                    struct tensor gate, struct tensor projection, struct tensor input);

#endif
