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

/* Sizes by name, so that the weight table can state shapes and the loader can check them. */
/* clang-format off */
enum dim {
    DIM_1, DIM_HIDDEN, DIM_Q, DIM_KV, DIM_HEAD, DIM_HEADS, DIM_FF, DIM_VOCAB, DIM_BUCKETS,
    DIM_OWN_0, DIM_OWN_1, DIM_OWN_2, DIM_COUNT
};
/* clang-format on */

enum { MAX_LAYERS = 128 };
enum mixer { MIX_ATTENTION, MIX_STATE, MIX_NONE };

struct layer_shape {
    enum mixer mixer;
    uint32_t n_heads, n_kv_heads, head_dim, n_ff,
        n_experts; /* of the whole model, before sharding */
    enum kv_kind kv;
    uint32_t window, kv_parts; /* 1: K = V stored once, or state */
    uint16_t kv_from;          /* layer whose blocks it reads; itself: its own */
    uint32_t state_bytes;      /* MIX_STATE */
    uint8_t group, in_group;   /* out: filled by model_groups() */
};

struct model_shape {
    uint32_t n_layers, n_encoder_layers, hidden, vocab, max_len,
        max_source; /* encoder layers 0: none */
    uint32_t dim[DIM_COUNT];
    struct layer_shape layer[MAX_LAYERS], encoder[MAX_LAYERS];
    struct layer_shape cross; /* every decoder layer's, kv = KV_CROSS; group, in_group of layer 0 */
};

/* One line of the weight table: this tensor of the checkpoint goes to that field, in this shape. */
enum weight_home { IN_TOP, IN_LAYER, IN_ENCODER };
enum {
    W_BELOW = 1,    /* stack under the line above, in the same field: k under q, v under k */
    W_TIED = 2,     /* when absent, the field is the embedding itself: the table's first line */
    W_OPTIONAL = 4, /* when absent, data stays NULL and forward() looks */
    W_LOCAL = 8,    /* only in layers with a window */
    W_GLOBAL = 16,  /* only in layers without */
    W_SPLIT_ROWS = 32,
    W_SPLIT_COLS = 64,
    W_SPLIT_EXPERTS = 128, /* tensor parallel; none: copied */
    W_FIRST = 256,         /* only in layer 0 */
    W_FP32 = 512,          /* kept in fp32 whatever dtype= says: norms, bias tables */
};

struct weight_rule {
    const char *name; /* %u is the layer; NULL ends the table; prefixes are tried by the loader */
    enum weight_home home;
    uint32_t field;      /* offsetof a struct tensor in the family's struct for that home */
    enum dim rows, cols; /* as stored; rows DIM_1: a vector, [1, cols]. A size of 0: no such line */
    unsigned flags;
};

struct arch {
    const char *name;            /* as in logs: "llama" */
    const char *const *hf_types; /* "model_type" values of config.json, NULL-ended */
    size_t cfg_bytes, top_bytes, layer_bytes, encoder_bytes;
    const struct weight_rule *weights;
    const char *const *prefixes; /* tried before names, "" first; NULL-ended */

    /* Read config.json into shape and cfg; refuse what forward() does not implement, by name. */
    int (*configure)(json_t *config, struct model_shape *shape, void *cfg, struct err *e);
    /* After the weights are there: tables made on the host (rope, T5 bias) into m->table[] . */
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
};

#endif
