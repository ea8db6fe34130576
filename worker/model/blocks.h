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
    BLOCK_OUT, /* [n, hidden] a sublayer's output, before it is added; fp32 beside fp16 activations */
    /* Of a row's n_top experts, for block_experts() */
    BLOCK_ROUTE,       /* who goes where */
    BLOCK_PAIRS,       /* [n n_top, 2 expert_ff] */
    BLOCK_PAIRS_INNER, /* [n n_top, expert_ff] */
    BLOCK_PAIRS_OUT,   /* [n n_top, hidden] */
    BLOCK_OWN,         /* shape.own_cols words of 4 bytes a row, for whatever the family does */
};

/* The first rows x cols of it. */
struct tensor block_scratch(const struct step *s, enum block_scratch which, uint32_t rows,
                            uint32_t cols);

/* [rows, cols] without gaps in that scratch, behind the first `words` words of 4 bytes a row of it. */
struct tensor block_area(const struct step *s, enum block_scratch which, uint32_t words,
                         uint32_t rows, uint32_t cols, enum dtype t);

/* One layer's experts, of which all ranks have a slice, so that what they find is to be added up: out = sum over a row's n_top of share * down(act(gate_up x)); plain: down(act(up x)). */
struct block_experts {
    bool plain;
    bool sigmoid; /* of route(), with bias */
    struct tensor bias;
    struct tensor gate_up, gate_up_bias; /* [n_experts * 2 expert_ff, hidden]; fp32 or NO_TENSOR */
    struct tensor down, down_bias;       /* [n_experts * hidden, expert_ff]; fp32 or NO_TENSOR */
    struct tensor scale;                 /* of route() */
    float factor;                        /* of route() */
    enum act act;
};
/* fp32 [n, n_experts] for the router's logits, read by the next block_experts(). */
struct tensor block_logits(const struct step *s, const struct layer_shape *l, uint32_t rows);
int block_experts(const struct model *m, struct step *s, const struct layer_shape *l,
                  struct tensor out, struct tensor x, const struct block_experts *e);

/* Causal attention of layer l over its own cache: q, k and v of h [n, hidden] by qkv [q + 2 kv, hidden], rotated by
 * cos_sin unless that is NO_TENSOR, stored. *ret [n, q]: what the heads found. */
int block_attend(const struct model *m, struct step *s, uint32_t l, struct tensor h,
                 struct tensor qkv, struct tensor cos_sin, float scale, struct tensor *ret);

/* What is left of the last layer behind attention concerns the rows of s->few alone, if that is set: a chunk in the
 * middle of a prompt has none. Then *heads [n, q], s->x and s->normed are of those rows from here on. */
int block_logit_rows(const struct model *m, struct step *s, uint32_t l, struct tensor *heads);

/* The end of a sublayer: in w^T, summed over the ranks (w's columns are split among them, so each has a
 * part of the sum), is r.in; r's other fields are the caller's. */
int block_residual(const struct model *m, struct step *s, struct tensor in, struct tensor w,
                   struct residual r);

/* A rank's columns of logits. */
struct tensor block_own_logits(const struct model *m, struct tensor out);
/* out = x w^T + bias (fp32 [vocab] or NO_TENSOR) over the vocabulary, each rank its own columns: w is whole (an embedding)
 * or the rank's rows of it already. */
int block_head(const struct model *m, struct step *s, struct tensor out, struct tensor x,
               struct tensor w, struct tensor bias);

#endif
