/* arch.h - what the loader and the executor must know of a model family (Llama, T5): struct arch.
 *
 * Each family is one const struct arch, defined in one file of worker/arch. Its weight table says
 * which tensor of the checkpoint ("line" = struct weight_rule) fills which struct tensor ("field")
 * of the family's own structs. These structs have 3 homes: the top (tensors outside the layers), a
 * decoder layer, an encoder layer. The names of tensors are data and the arithmetic, forward(), is
 * code, because each is then easy to compare with the original in transformers.
 *
 * A new family needs changes in 4 files outside tests/: worker/arch/NAME.c, registry.c, registry.h
 * and Makefile.am. Its tests are lines in 5 files (docs/adding-a-model.md). */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/kv/kv.h"

#include <jansson.h>

struct model;
struct step;

/* Names of matrix sizes. A line of the weight table states rows and columns with them; the loader
 * compares their values with the shape of the tensor in the checkpoint. In a line of a layer, the
 * values of DIM_Q to DIM_EXPERTS come from the layer's struct layer_shape; all other values are in
 * model_shape.dim. DIM_OWN_x: sizes of the family's own choice. */
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
    /* configure() sets the whole model's sizes; sharding_divide() reduces them to this rank's. */
    uint32_t n_heads, n_kv_heads, head_dim, n_ff;
    uint32_t n_experts, n_top, expert_ff; /* n_experts 0: none. n_top experts compute each token */
    bool v_is_k; /* the layer has no v projection: v is k before k's norm and rotation */
    enum kv_kind kv;
    uint32_t window;         /* positions of the sliding window; 0: full attention */
    uint32_t kv_parts;       /* slices of a block per layer. 2: K and V; 1: K = V, or state */
    uint32_t kept;           /* attention sinks; model_keep_first() sets them, not configure() */
    uint16_t kv_from;        /* number of the layer whose K and V this layer reads, often its own */
    uint32_t state_bytes;    /* size of the recurrent state of a sequence; MIX_STATE only */
    uint8_t group, in_group; /* KV group, index among its layers; set by model_groups() */
};

/* How ranks divide a size that consists of n consecutive parts (q, k and v in one tensor). Part i
 * has size[i] rows or columns in units[i] equal units (heads), which are never cut: each rank gets
 * consecutive units of each part, or, with fewer units than ranks, neighbouring ranks get the same
 * unit. n 0: one part, each row or column is a unit. */
enum { DIM_PARTS = 5 };
struct dim_parts {
    uint32_t n, size[DIM_PARTS], units[DIM_PARTS];
};
/* The division of a tensor that has `ff` gate rows and then `ff` up rows. */
static inline struct dim_parts
dim_halves(uint32_t ff)
{
    return (struct dim_parts){ 2, { ff, ff }, { ff, ff } };
}

struct model_shape {
    uint32_t n_layers, hidden, vocab, max_len;
    uint32_t n_encoder_layers, max_source; /* 0: decoder only. max_source: encoder input tokens */
    bool tied;                             /* tie_word_embeddings, for W_TIED lines */
    uint32_t n_streams; /* hidden states per token (AltUp): x is [n, n_streams * hidden]; 0: 1 */
    uint32_t own_cols;  /* 4-byte words per token of the scratch BLOCK_OWN (blocks.h) */
    float logit_scale, logit_cap; /* factor and soft cap in block_logits(); 0: not applied */
    uint32_t dim[DIM_COUNT];
    struct dim_parts parts[DIM_Q]; /* how ranks divide dim[] */
    /* Ranks do not cut the units of expert_run columns of an expert, because the columns of a unit
     * share a scale; 1: experts are not quantised. Set before configure() is called. */
    uint32_t expert_run;
    struct layer_shape layer[MAX_LAYERS], encoder[MAX_LAYERS];
    struct layer_shape cross; /* cross attention of each decoder layer; in_group of layer 0 */
};

enum weight_home { IN_TOP, IN_LAYER, IN_ENCODER };
/* Flags of a weight-table line. */
enum {
    W_STACKED = 1,       /* its rows extend the field of the line above (q, then k, then v) */
    W_TIED = 2,          /* if absent and shape.tied: a copy of the table's first field, embed */
    W_OPTIONAL = 4,      /* if absent: the field's data is NULL, which forward() tests */
    W_WINDOW_LAYERS = 8, /* the line applies to layers with a sliding window only */
    W_FULL_LAYERS = 16,  /* the line applies to layers without a sliding window only */
    W_SPLIT_ROWS = 32,   /* ranks divide the rows (of every expert) */
    W_SPLIT_COLS = 64,   /* ranks divide the columns; neither W_SPLIT_*: each rank has all */
    W_FIRST = 256,       /* the line applies to layer 0 only */
    W_FP32 = 512,        /* fp32 on the device for every dtype option: norms, bias tables */
    W_EXPERTS = 1024,    /* stored as [experts, rows, cols]: the field is [experts * rows, cols] */
    W_TRANSPOSED = 2048, /* stored as [experts, cols, rows] */
    W_OWN_KV = 4096,     /* the line applies to layers with own KV; tensors of others are ignored */
    W_STATE = 8192,      /* the line applies to layers with recurrent state only */
    /* W_EXPERTS, but one tensor per expert: the name has a second %u. IN_TOP: one tensor per stream
     * but the first, whose name has a %u, from 0 */
    W_ONE_BY_ONE = 16384,
    W_MOE_LAYERS = 32768,   /* the line applies to layers with experts only */
    W_DENSE_LAYERS = 65536, /* the line applies to layers without experts only */
    W_EMBEDDING = 131072,   /* rows are looked up; the tensor is never a matmul operand */
};

/* One line of the weight table: which tensor of the checkpoint fills which field. */
struct weight_rule {
    /* Name without prefix; the loader tries arch.prefixes. %u: layer number. NULL: end of table. */
    const char *name;
    enum weight_home home;
    uint32_t field; /* offsetof a struct tensor in the family's struct for the home */
    /* Shape of the tensor. rows DIM_1: a vector, [1, cols]. cols DIM_1: a vector that W_STACKED
     * lines may extend, [rows, 1]. If a size is 0 in a layer, the line does not apply to it. */
    enum dim rows, cols;
    unsigned flags;
};

struct arch {
    const char *name;            /* as in logs: "llama" */
    const char *const *hf_types; /* "model_type" values of config.json, NULL-ended */
    bool by_layer;               /* configure() reads the key per_layer_config */
    bool exceeds_fp16;           /* activations exceed the range of fp16: fp16 is refused */
    size_t cfg_bytes, top_bytes, layer_bytes, encoder_bytes; /* of the family's structs */
    const struct weight_rule *weights;
    const char *const *prefixes; /* of tensor names, tried in order; NULL-ended */
    /* Reduces cfg to this rank's part, as m->shape already is. NULL: only one rank is supported. */
    int (*divide)(struct model *m, struct err *e);

    /* Reads config.json into shape and cfg; the caller then sets DIM_HIDDEN and DIM_VOCAB. Refuses
     * every value that forward() does not implement, with the name of its key. */
    int (*configure)(json_t *config, struct model_shape *shape, void *cfg, struct err *e);
    /* Starts threads that compute tables (rotary) from the shape while the device is opened. */
    int (*tables)(struct model *m, struct err *e);
    /* Computes tables from loaded weights (T5's biases) into m->table[]. */
    int (*prepare)(struct model *m, struct err *e);

    /* Queue decoder or encoder layers [first, first + n). Layer 0 also embeds the tokens, the last
     * layer also norms its output. Only the hidden states x pass from one range of layers to the
     * next, so the result has the same bits for every division into ranges: a step can be launched
     * in slices of 100 us or as several graphs, an encoder a few layers per step. */
    int (*forward)(const struct model *m, struct step *s, uint32_t first, uint32_t n);
    int (*encode)(const struct model *m, struct step *s, uint32_t first, uint32_t n);
    /* Queues cross-attention K and V of encoder states s->project_x, layers [first, first + n). */
    int (*project_cross)(const struct model *m, struct step *s, uint32_t first, uint32_t n);
    /* Queues fp32 logits `out` of the normed hidden states x, with the family's cap or scale. */
    int (*logits)(const struct model *m, struct step *s, struct tensor out, struct tensor x);
    bool ends_with_logit_rows; /* forward() calls block_logit_rows(): step.few may be set */
};
