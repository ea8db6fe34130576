/* arch.h - a model family: one const struct arch, defined in one file of worker/arch.
 *
 * A new family touches 4 product files: worker/arch/NAME.c, registry.c, registry.h and Makefile.am.
 * Its tests are lines in 5 files (docs/adding-a-model.md). The checkpoint side is data (the weight
 * table) and the arithmetic side is code (forward), because each is then easy to compare with the
 * original.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/kv/kv.h"

#include <jansson.h>

struct model;
struct step;

/* Named sizes: the weight table states shapes with them, the loader checks the checkpoint against
 * them. In lines of a layer, DIM_Q to DIM_EXPERTS come from that layer's layer_shape; all others
 * come from model_shape.dim. */
/* clang-format off */
enum dim {
    DIM_1, DIM_HIDDEN, DIM_VOCAB, DIM_BUCKETS,
    DIM_OWN_0, DIM_OWN_1, DIM_OWN_2, DIM_OWN_3, DIM_OWN_4, DIM_OWN_5, DIM_OWN_6, DIM_OWN_7,
    DIM_Q, DIM_KV, DIM_V, DIM_HEAD, DIM_HEADS, DIM_FF, DIM_EXPERTS, DIM_COUNT
};
/* clang-format on */

enum { MAX_LAYERS = 128 };
enum mixer { MIX_ATTENTION, MIX_STATE, MIX_NONE };

struct layer_shape {
    enum mixer mixer;
    uint32_t n_heads, n_kv_heads, head_dim, n_ff; /* of the whole model, before sharding */
    uint32_t n_experts, n_top, expert_ff;         /* 0: no experts; n_top experts per token */
    bool v_is_k; /* v equals k before its norm and rotation; no v projection */
    enum kv_kind kv;
    uint32_t window, kv_parts; /* 1: K = V stored once, or state */
    uint32_t kept;        /* out: first positions visible besides the window: model_keep_first() */
    uint16_t kv_from;     /* layer whose KV is read; its own number: its own KV */
    uint32_t state_bytes; /* MIX_STATE */
    uint8_t group, in_group; /* out: filled by model_groups() */
};

/* A size that consists of n consecutive parts (q, k and v in one tensor). Ranks divide a part
 * between its units. With fewer units than ranks, neighbouring ranks share a unit. n 0: one part,
 * units of 1. */
enum { DIM_PARTS = 5 };
struct dim_parts {
    uint32_t n, size[DIM_PARTS], units[DIM_PARTS];
};
/* ff gate rows, then ff up rows. */
static inline struct dim_parts
dim_halves(uint32_t ff)
{
    return (struct dim_parts){ 2, { ff, ff }, { ff, ff } };
}

struct model_shape {
    uint32_t n_layers, hidden, vocab, max_len;
    uint32_t n_encoder_layers, max_source; /* 0: decoder only */
    bool tied;                             /* tie_word_embeddings, for W_TIED lines */
    uint32_t n_streams;                    /* x is [n, n_streams * hidden]; 0: one */
    uint32_t own_cols;                     /* words of BLOCK_OWN scratch per token: blocks.h */
    float logit_scale, logit_cap;          /* of block_logits(); 0: none */
    uint32_t dim[DIM_COUNT];
    struct dim_parts parts[DIM_Q]; /* how ranks divide dim[] */
    uint32_t expert_run; /* columns of an expert that ranks do not divide; set before configure() */
    struct layer_shape layer[MAX_LAYERS], encoder[MAX_LAYERS];
    struct layer_shape cross; /* of every decoder layer; group and in_group are layer 0's */
};

enum weight_home { IN_TOP, IN_LAYER, IN_ENCODER };
/* Flags of a weight-table line. */
enum {
    W_STACKED = 1,  /* rows follow those of the line above in the same field: q, k, v */
    W_TIED = 2,     /* if absent and shape.tied: the field is the table's first, the embedding */
    W_OPTIONAL = 4, /* if absent: data is NULL, forward() checks */
    W_WINDOW_LAYERS = 8, /* only in layers with a window */
    W_FULL_LAYERS = 16,  /* only in layers without a window */
    W_SPLIT_ROWS = 32, /* ranks divide the rows, of every expert; neither flag: each rank has all */
    W_SPLIT_COLS = 64, /* ranks divide the columns */
    W_FIRST = 256,     /* only in layer 0 */
    W_FP32 = 512,      /* fp32 on the device for every dtype option: norms, bias tables */
    W_EXPERTS = 1024,  /* [experts, rows, cols]: becomes [experts * rows, cols] */
    W_TRANSPOSED = 2048, /* stored as [experts, cols, rows] */
    W_OWN_KV = 4096, /* only in layers with their own KV; elsewhere a stored tensor is ignored */
    W_STATE = 8192,  /* only in layers with recurrent state */
    W_ONE_BY_ONE = 16384,   /* W_EXPERTS: one tensor per expert; the name has a second %u */
    W_MOE_LAYERS = 32768,   /* only in layers with experts */
    W_DENSE_LAYERS = 65536, /* only in layers without experts */
    W_EMBEDDING = 131072,   /* rows are looked up; never a matmul operand */
};

/* One line of the weight table: which tensor of the checkpoint fills which field. */
struct weight_rule {
    const char *name; /* %u is the layer; NULL ends the table; prefixes are tried by the loader */
    enum weight_home home;
    uint32_t field; /* offsetof a struct tensor in the family's struct for that home */
    /* Rows DIM_1: a vector, [1, cols]. Cols DIM_1: a vector that W_STACKED lines may extend, [rows,
     * 1]. A size of 0: the line does not apply. */
    enum dim rows, cols;
    unsigned flags;
};

struct arch {
    const char *name;            /* as in logs: "llama" */
    const char *const *hf_types; /* "model_type" values of config.json, NULL-ended */
    bool by_layer;               /* configure() reads per_layer_config */
    size_t cfg_bytes, top_bytes, layer_bytes, encoder_bytes;
    const struct weight_rule *weights;
    const char *const *prefixes; /* of tensor names, tried in order; NULL-ended */
    /* Divides cfg between ranks; m->shape is this rank's part already. NULL: several ranks are
     * refused. */
    int (*divide)(struct model *m, struct err *e);

    /* Reads config.json into shape and cfg; the caller sets DIM_HIDDEN and DIM_VOCAB. Refuses by
     * name what forward() does not implement. */
    int (*configure)(json_t *config, struct model_shape *shape, void *cfg, struct err *e);
    /* Starts tables that need the shape only (rope); runs while the device is being opened. */
    int (*tables)(struct model *m, struct err *e);
    /* After the weights are loaded: tables made from weights (T5 bias) into m->table[]. */
    int (*prepare)(struct model *m, struct err *e);

    /* Queues layers [first, first + n). Layer 0 also embeds, the last layer also norms. Only x
     * connects two ranges, so the result has the same bits for every division: a step can be
     * launched in slices of 100 us or captured in pieces, and an encoder can run a few layers a
     * step. */
    int (*forward)(const struct model *m, struct step *s, uint32_t first, uint32_t n);
    int (*encode)(const struct model *m, struct step *s, uint32_t first, uint32_t n);
    /* Stores K and V of new encoder states. */
    int (*project_cross)(const struct model *m, struct step *s, uint32_t first, uint32_t n);
    /* Normed hidden states x to fp32 logits, with the family's cap or scale. */
    int (*logits)(const struct model *m, struct step *s, struct tensor out, struct tensor x);
    bool ends_with_logit_rows; /* forward() calls block_logit_rows(), so step.few may be set */
};
