/* blocks.h - the parts of a transformer layer that several model families compute alike: attention,
 * feed-forward, experts, the residual at the end of a sublayer, the logits head, and their scratch.
 *
 * A computation that two families share exactly is a function here; one that differs is in the
 * family's file. Each function queues ops (gpu.h) on s->lane and does not block. A layer consists
 * of sublayers (attention, feed-forward). A sublayer ends with one residual op, which adds the
 * sublayer's output to the hidden states x and norms the sum as the input of the next sublayer.
 *
 * In shapes, n is the number of batched tokens; q = n_heads * head_dim and kv = n_kv_heads *
 * head_dim are the columns of queries and of keys; ff is n_ff. */
#pragma once
#include "worker/model/model.h"

/* The scratch buffers step.scratch[i]. model_scratch() sizes each for the widest layer of the
 * model. A pair: a token and one of its experts. */
enum block_scratch {
    BLOCK_NORMED,      /* [n, hidden] input of a sublayer */
    BLOCK_QKV,         /* [n, q + 2 kv] queries, keys and values */
    BLOCK_HEADS,       /* [n, q] output of attention, before the output projection */
    BLOCK_GATE_UP,     /* [n, 2 ff] output of the gate and up projections */
    BLOCK_INNER,       /* [n, ff] input of the down projection */
    BLOCK_OUT,         /* [n, hidden] output of a sublayer; fp32 if activations are fp16 */
    BLOCK_ROUTE,       /* router logits and the arrays of struct pairs, for block_experts() */
    BLOCK_PAIRS,       /* [n n_top, 2 expert_ff] gate and up of each pair */
    BLOCK_PAIRS_INNER, /* [n n_top, expert_ff] input of down of each pair */
    BLOCK_PAIRS_OUT,   /* [n n_top, hidden] output of each pair */
    BLOCK_OWN,         /* shape.own_cols words of 4 bytes per token; each family defines its use */
};

/* Returns the first rows x cols of scratch buffer `which`. */
struct tensor block_scratch(const struct step *s, enum block_scratch which, uint32_t rows,
                            uint32_t cols);

/* Returns a dense tensor [rows, cols] in scratch buffer `which`, so that several tensors share the
 * buffer. `words`: 4-byte words per token that the tensors before it occupy, a multiple of 4. */
struct tensor block_area(const struct step *s, enum block_scratch which, uint32_t words,
                         uint32_t rows, uint32_t cols, enum dtype t);

/* Weights outside the layers. A family's struct for the top begins with this struct. */
struct block_top {
    struct tensor embed; /* [vocab, hidden] */
    struct tensor norm;  /* [hidden], of the output of the last layer */
    struct tensor head;  /* [vocab, hidden], computes the logits; NO_TENSOR: embed does */
};

/* Weights and constants of one layer's attention. 0 and NO_TENSOR: the family has none. */
struct block_attention {
    struct tensor qkv;  /* [q + 2 kv, hidden]; no v if v_is_k; only q if kv_from is another layer */
    struct tensor bias; /* fp32 [rows of qkv] */
    struct tensor q_norm, k_norm; /* [head_dim]; applied to each head before rotation */
    bool v_norm;                  /* v is normed without a weight */
    float norm_eps, norm_plus;
    struct tensor cos_sin; /* rotary table */
    struct tensor sinks; /* fp32 [n_heads]: one more logit, without a value, in a head's softmax */
    /* fp32 [n_heads, 2 * reach + 1], read by the block_attend_*() functions only: the bias of a
     * score by key position - query position, clamped to [-reach, reach] */
    struct tensor distance_bias;
    uint32_t reach;
    float scale, softcap; /* of the scores */
};

/* Causal self-attention of layer l over its KV cache. Projects h [n, hidden] to q, k and v, norms
 * and rotates them, stores k and v, and attends. *heads is the output, [n, q] in BLOCK_HEADS. */
int block_attend(const struct model *m, struct step *s, uint32_t l, struct tensor h,
                 const struct block_attention *a, struct tensor *heads);
/* Attention of encoder-decoder families, without norms and rotation of q and k: self-attention of
 * an encoder layer (not causal, no KV cache); self-attention of decoder layer l, whose K and V the
 * attention op stores; cross attention of decoder layer l, where qkv is q only, [q, hidden]. */
int block_attend_encoder(const struct model *m, struct step *s, struct tensor h,
                         const struct block_attention *a, struct tensor *heads);
int block_attend_decoder(const struct model *m, struct step *s, uint32_t l, struct tensor h,
                         const struct block_attention *a, struct tensor *heads);
int block_attend_cross(const struct model *m, struct step *s, uint32_t l, struct tensor h,
                       const struct block_attention *a, struct tensor *heads);
/* Projects encoder states s->project_x with w [2 q, hidden] to cross K and V of layer l. */
int block_project_cross(const struct model *m, struct step *s, uint32_t l, struct tensor w,
                        struct tensor bias);

/* Drops the batched tokens whose logits are not computed, if l is the last layer and s->few is set:
 * *heads, *h, s->x and s->normed then have the logit rows only. Called before the output
 * projection, so that the rest of the layer skips these tokens. */
int block_logit_rows(const struct model *m, struct step *s, uint32_t l, struct tensor *heads,
                     struct tensor *h);

/* Gated feed-forward up to the down projection: *inner = act(gate h) * (up h), [n, ff] in
 * BLOCK_INNER. h: [n, hidden]; gate_up: [2 ff, hidden], the gate rows, then the up rows. */
int block_gated(const struct model *m, struct step *s, struct tensor h, struct tensor gate_up,
                enum act act, struct tensor *inner);

/* Weights and constants of one layer's experts. sigmoid, bias, scale and factor go to struct route
 * (gpu.h), which selects a token's n_top experts and their shares (weights in the sum). */
struct block_experts {
    bool no_gate; /* an expert computes down(act(up x)); gate_up has no gate rows */
    bool sigmoid;
    struct tensor bias;
    struct tensor gate_up, gate_up_bias; /* [n_experts * 2 expert_ff, hidden]; fp32 or NO_TENSOR */
    struct tensor down, down_bias;       /* [n_experts * hidden, expert_ff]; fp32 or NO_TENSOR */
    struct tensor scale;
    float factor;
    enum act act;
};
/* Returns the buffer of router logits, fp32 [n, n_experts], that block_experts() reads. */
struct tensor block_router_logits(const struct step *s, const struct layer_shape *l, uint32_t rows);
/* Computes out = sum over a token's n_top experts of share * down(act(gate_up x)). Each rank has a
 * slice of every expert, so out is this rank's summand of the result. */
int block_experts(const struct model *m, struct step *s, const struct layer_shape *l,
                  struct tensor out, struct tensor x, const struct block_experts *e);

/* Ends a sublayer: computes r.in = in w^T and runs the residual op r, which sums r.in over the
 * ranks, because each rank has some of w's columns. The caller sets the other fields of r. */
int block_residual(const struct model *m, struct step *s, struct tensor in, struct tensor w,
                   struct residual r);

/* Returns the residual op that ends layer l in a range of layers that ends before layer `end`. Its
 * output y, the normed x, is h if layer l + 1 is in the range, and s->normed after the last layer
 * of the model. At the end of any other range there is no y, because the next range norms x itself.
 * norm: weight of the norm of layer l + 1, or of the model. */
struct residual block_layer_end(const struct model *m, const struct step *s, struct tensor h,
                                uint32_t l, uint32_t end, struct tensor norm);

/* Returns this rank's columns of the logits `out`. */
struct tensor block_own_logits(const struct model *m, struct tensor out);
/* Computes this rank's columns of the logits out = x w^T + bias. w has the rows of the whole
 * vocabulary (an embedding) or this rank's rows only; bias is fp32 [vocab] or NO_TENSOR. */
int block_head(const struct model *m, struct step *s, struct tensor out, struct tensor x,
               struct tensor w, struct tensor bias);
/* Implements arch.logits for a family whose m->top begins with a struct block_top. */
int block_logits(const struct model *m, struct step *s, struct tensor out, struct tensor x);
