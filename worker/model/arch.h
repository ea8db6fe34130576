/* arch.h - what a model family is: one struct, filled in one file.
 *
 * To add a family, write worker/arch/<name>.c with one const struct arch in it and add its name to
 * worker/arch/registry.c. Nothing else changes. The checkpoint side is data (the weight table), the
 * arithmetic side is code (forward), because that is how each is easiest to compare with the original.
 */
#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/kv/kv.h"

#include <jansson.h>

struct model;
struct step;

/* Sizes by name, so that the weight table can state shapes and the loader can check them. In a layer's lines
 * those from DIM_Q to DIM_EXPERTS are that layer's (its layer_shape), the others the model's. */
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
    uint32_t n_experts, n_top, expert_ff;         /* 0: no experts; n_top of them see a row */
    bool v_is_k; /* v is what k is before its norm and rotation: no projection of its own */
    enum kv_kind kv;
    uint32_t window, kv_parts; /* 1: K = V stored once, or state */
    uint32_t kept;        /* out: first positions that stay beside the window: model_keep_first() */
    uint16_t kv_from;     /* layer whose blocks it reads; itself: its own */
    uint32_t state_bytes; /* MIX_STATE */
    uint8_t group, in_group; /* out: filled by model_groups() */
};

/* A size that is several one behind the other (q, k and v in one tensor), each of so many units that a rank has
 * whole. Fewer units than ranks: neighbours have the same one. n 0: one, of units of 1. */
enum { DIM_PARTS = 5 };
struct dim_parts {
    uint32_t n, size[DIM_PARTS], units[DIM_PARTS];
};
/* Gate and up rows, one behind the other. */
static inline struct dim_parts
dim_halves(uint32_t ff)
{
    return (struct dim_parts){ 2, { ff, ff }, { ff, ff } };
}

struct model_shape {
    uint32_t n_layers, n_encoder_layers, hidden, vocab, max_len,
        max_source;     /* encoder layers 0: none */
    bool tied;          /* tie_word_embeddings, for W_TIED lines */
    uint32_t n_streams; /* x is [n, n_streams * hidden]; 0: one */
    uint32_t own_cols;  /* of scratch that is the family's own: blocks.h */
    uint32_t dim[DIM_COUNT];
    struct dim_parts parts[DIM_Q]; /* of the model's sizes, where ranks divide them */
    uint32_t expert_run;           /* of expert_ff, that ranks divide in runs of so many; 0: 1 */
    struct layer_shape layer[MAX_LAYERS], encoder[MAX_LAYERS];
    struct layer_shape cross; /* every decoder layer's, kv = KV_CROSS; group, in_group of layer 0 */
};

/* One line of the weight table: this tensor of the checkpoint goes to that field, in this shape. */
enum weight_home { IN_TOP, IN_LAYER, IN_ENCODER };
enum {
    W_STACKED = 1, /* stack under the line above, in the same field: k under q, v under k */
    W_TIED =
        2, /* when absent, and shape.tied, the field is the embedding: the table's first line */
    W_OPTIONAL = 4,      /* when absent, data stays NULL and forward() looks */
    W_WINDOW_LAYERS = 8, /* only in layers with a window */
    W_FULL_LAYERS = 16,  /* only in layers without */
    W_SPLIT_ROWS =
        32, /* among ranks, and so the columns; none: each has the whole. Of experts, in each */
    W_SPLIT_COLS = 64,
    W_FIRST = 256,       /* only in layer 0 */
    W_FP32 = 512,        /* kept in fp32 whatever dtype= says: norms, bias tables */
    W_EXPERTS = 1024,    /* [experts, rows, cols]: the layer's experts one below the other */
    W_TRANSPOSED = 2048, /* an expert is stored as [cols, rows] */
    /* MXFP4: bytes of two codes each, [experts, rows, cols / 32, 16], and, on the next line for the same
     * field, a power of two for 32 of them, [experts, rows, cols / 32]. Kept so whatever dtype= says */
    W_FP4 = 4096,
    W_E8M0 = 8192,
    /* Not in layers that read another's cache, where nobody needs it if it is there */
    W_OWN_KV = 16384,
    W_STATE = 32768,         /* only in layers that keep recurrent state */
    W_ONE_BY_ONE = 65536,    /* W_EXPERTS: each a tensor of its own, the name's second %u */
    W_MOE_LAYERS = 131072,   /* only in layers with experts */
    W_DENSE_LAYERS = 262144, /* only in layers without */
    W_EMBEDDING = 524288,    /* rows are taken out of it; it is no side of a product */
};

struct weight_rule {
    const char *name; /* %u is the layer; NULL ends the table; prefixes are tried by the loader */
    enum weight_home home;
    uint32_t field; /* offsetof a struct tensor in the family's struct for that home */
    /* As stored; rows DIM_1: a vector, [1, cols]; cols DIM_1: a vector that others may stand below, [rows, 1].
     * A size of 0: no such line */
    enum dim rows, cols;
    unsigned flags;
};

struct arch {
    const char *name;            /* as in logs: "llama" */
    const char *const *hf_types; /* "model_type" values of config.json, NULL-ended */
    const char *quant_method;    /* of quantization_config, if it reads that one; NULL: none */
    bool by_layer;               /* it reads per_layer_config */
    size_t cfg_bytes, top_bytes, layer_bytes, encoder_bytes;
    const struct weight_rule *weights;
    const char *const *prefixes; /* tried before names, "" first; NULL-ended */
    /* Among ranks, as weights says: shape is our part of whole already, cfg is not. NULL: it is refused. */
    int (*divide)(struct model *m, struct err *e);

    /* Read config.json into shape and cfg; refuse what forward() does not implement, by name. */
    int (*configure)(json_t *config, struct model_shape *shape, void *cfg, struct err *e);
    /* Once the shape is known: tables that need nothing else (rope), begun beside the opening of a device. */
    int (*tables)(struct model *m, struct err *e);
    /* After the weights are there: other tables made on the host (T5 bias) into m->table[] . */
    int (*prepare)(struct model *m, struct err *e);

    /* Queue layers [first, first + n); 0 also embeds, the last also norms. So a lane can be launched
     * in slices of 100 us, captured in pieces, and an encoder can run a few layers a step. However it is
     * cut, the bits are the same: nothing but x goes from one slice to the next. */
    int (*forward)(const struct model *m, struct step *s, uint32_t first, uint32_t n);
    int (*encode)(const struct model *m, struct step *s, uint32_t first, uint32_t n);
    int (*project_cross)(const struct model *m, struct step *s, uint32_t first,
                         uint32_t n); /* new sources' K/V */
    /* Rows of normed hidden states to fp32 logits, with the family's cap or scale. */
    int (*logits)(const struct model *m, struct step *s, struct tensor out, struct tensor x);
    bool
        ends_with_logit_rows; /* forward() asks block_logit_rows() in its last layer, so that step.few may be set */
};

#endif
