/* blocks.h - what several families compute alike: scratch, attention, feed-forward, ends of
 * sublayers, the head.
 *
 * A step that two families share exactly is a function here; a step that differs stays in the
 * family's file. Each function queues ops on s->lane and does not block. A sublayer ends with one
 * residual op: it adds the sublayer's output to the hidden states x and norms the result for the
 * next sublayer.
 */
#pragma once

#include "worker/model/model.h"

/* Use of scratch[i]. model_scratch() sizes each for the widest layer of the model. */
enum block_scratch {
    BLOCK_NORMED,      /* [n, hidden] input of a sublayer */
    BLOCK_QKV,         /* [n, q + 2 kv] */
    BLOCK_HEADS,       /* [n, q] output of attention, before the output projection */
    BLOCK_GATE_UP,     /* [n, 2 ff] */
    BLOCK_INNER,       /* [n, ff] */
    BLOCK_OUT,         /* [n, hidden] output of a sublayer; fp32 if activations are fp16 */
    BLOCK_ROUTE,       /* router logits and struct pairs, for block_experts() */
    BLOCK_PAIRS,       /* [n n_top, 2 expert_ff] */
    BLOCK_PAIRS_INNER, /* [n n_top, expert_ff] */
    BLOCK_PAIRS_OUT,   /* [n n_top, hidden] */
    BLOCK_OWN,         /* shape.own_cols words of 4 bytes a token, for the family */
};

/* The first rows x cols of that scratch. */
struct tensor block_scratch(const struct step *s, enum block_scratch which, uint32_t rows,
                            uint32_t cols);

/* [rows, cols] without gaps in that scratch, after the first `words` words of 4 bytes a row; words
 * % 4 == 0. */
struct tensor block_area(const struct step *s, enum block_scratch which, uint32_t words,
                         uint32_t rows, uint32_t cols, enum dtype t);

/* Tensors outside the layers; other tensors of a family follow. */
struct block_top {
    struct tensor embed; /* [vocab, hidden] */
    struct tensor norm;  /* [hidden] */
    struct tensor head;  /* [vocab, hidden]; embed itself if tied; NO_TENSOR: embed */
};

/* Self-attention of one layer. 0 and NO_TENSOR: the family has none. */
struct block_attention {
    struct tensor qkv;  /* [q + 2 kv, hidden]; no v if v_is_k; only q if kv_from is another layer */
    struct tensor bias; /* fp32 [rows of qkv] */
    struct tensor q_norm, k_norm; /* [head_dim]; applied to each head before rotation */
    bool v_norm;                  /* v is normed without a weight */
    float norm_eps, norm_plus;
    struct tensor cos_sin;       /* rotary table */
    struct tensor sinks;         /* fp32 [n_heads]: one more logit in each head's softmax */
    struct tensor distance_bias; /* fp32 [n_heads, 2 * reach + 1], block_attend_*() only */
    uint32_t reach;
    float scale, softcap;
};

/* Causal attention of layer l over its KV cache: q, k and v of h [n, hidden] are normed, rotated
 * and stored. *heads becomes [n, q] in BLOCK_HEADS. */
int block_attend(const struct model *m, struct step *s, uint32_t l, struct tensor h,
                 const struct block_attention *a, struct tensor *heads);
/* The same for encoder-decoder families, without norms and rotation: the encoder's layers (no KV
 * cache), decoder layer l, and decoder layer l over the encoder's states, where qkv is [q,
 * hidden]. */
int block_attend_encoder(const struct model *m, struct step *s, struct tensor h,
                         const struct block_attention *a, struct tensor *heads);
int block_attend_decoder(const struct model *m, struct step *s, uint32_t l, struct tensor h,
                         const struct block_attention *a, struct tensor *heads);
int block_attend_cross(const struct model *m, struct step *s, uint32_t l, struct tensor h,
                       const struct block_attention *a, struct tensor *heads);
/* Stores K and V of new encoder states for cross attention of layer l. w is [2 q, hidden]. */
int block_project_cross(const struct model *m, struct step *s, uint32_t l, struct tensor w,
                        struct tensor bias);

/* In the last layer, if s->few is set, drops the batched tokens whose logits are not computed:
 * *heads, *h, s->x and s->normed keep the logit rows only. A chunk that does not end its prompt has
 * none. */
int block_logit_rows(const struct model *m, struct step *s, uint32_t l, struct tensor *heads,
                     struct tensor *h);

/* *inner = act(gate h) * up h, [n, ff] in BLOCK_INNER; gate_up [2 ff, hidden], gate rows first. */
int block_gated(const struct model *m, struct step *s, struct tensor h, struct tensor gate_up,
                enum act act, struct tensor *inner);

/* The experts of one layer: out = sum over n_top of share * down(act(gate_up x)). Each rank has a
 * slice of every expert, so out is this rank's part of a sum. */
struct block_experts {
    bool no_gate; /* act(up x): no gate rows */
    bool sigmoid; /* of struct route, with bias */
    struct tensor bias;
    struct tensor gate_up, gate_up_bias; /* [n_experts * 2 expert_ff, hidden]; fp32 or NO_TENSOR */
    struct tensor down, down_bias;       /* [n_experts * hidden, expert_ff]; fp32 or NO_TENSOR */
    struct tensor scale;                 /* of struct route */
    float factor;                        /* of struct route */
    enum act act;
};
/* Router logits, fp32 [n, n_experts]: the caller fills them, block_experts() reads them. */
struct tensor block_router_logits(const struct step *s, const struct layer_shape *l, uint32_t rows);
int block_experts(const struct model *m, struct step *s, const struct layer_shape *l,
                  struct tensor out, struct tensor x, const struct block_experts *e);

/* Ends a sublayer: r.in = in w^T, summed over the ranks, because each rank has some of w's columns.
 * The caller sets r's other fields. */
int block_residual(const struct model *m, struct step *s, struct tensor in, struct tensor w,
                   struct residual r);

/* The residual after layer l in a range of layers that ends before layer `end`. With y: in h for
 * layer l + 1, in s->normed after the model's last layer, none at the end of any other range. norm:
 * of layer l + 1, or of the model. */
struct residual block_layer_end(const struct model *m, const struct step *s, struct tensor h,
                                uint32_t l, uint32_t end, struct tensor norm);

/* This rank's columns of logits. */
struct tensor block_own_logits(const struct model *m, struct tensor out);
/* out = x w^T + bias (fp32 [vocab] or NO_TENSOR), each rank its own columns. w is whole (an
 * embedding) or has this rank's rows only. */
int block_head(const struct model *m, struct step *s, struct tensor out, struct tensor x,
               struct tensor w, struct tensor bias);
/* arch.logits of a family whose m->top begins with a struct block_top. */
int block_logits(const struct model *m, struct step *s, struct tensor out, struct tensor x);
