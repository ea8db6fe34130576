/* blocks.h - what families do to the letter alike: scratch by purpose, and a product with its sum.
 *
 * Anything that differs between two families by so much as a norm stays in their own files. A sublayer
 * ends with one pass over its rows: the sum, and the norm that the next one reads.
 */
#ifndef MODEL_BLOCKS_H
#define MODEL_BLOCKS_H

#include "worker/model/model.h"

/* What scratch[i] is for; model_scratch() sizes it for the widest layer of the model. */
enum block_scratch {
    BLOCK_NORMED,  /* [n, hidden] a sublayer's input */
    BLOCK_QKV,     /* [n, q + 2 kv] */
    BLOCK_HEADS,   /* [n, q] what attention hands on */
    BLOCK_GATE_UP, /* [n, 2 ff] */
    BLOCK_INNER,   /* [n, ff] */
    BLOCK_OUT,     /* [n, hidden] a sublayer's output, before it is added */
};

/* The first rows x cols of it. */
struct tensor block_scratch(const struct step *s, enum block_scratch which, uint32_t rows,
                            uint32_t cols);

/* The end of a sublayer: in w^T, summed over the ranks (w's columns are split among them, so each has a
 * part of the sum), is r.in; r's other fields are the caller's. */
int block_residual(const struct model *m, struct step *s, struct tensor in, struct tensor w,
                   struct residual r);

#endif
