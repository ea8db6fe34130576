/* mamba.h - the Mamba-2 mixer, the sublayer that replaces attention in most layers of Bamba,
 * Granite 4 and Nemotron-H.
 *
 *     in_proj    [gate | x B C | dt] per token
 *     conv       x B C over the last n_taps tokens, then silu
 *     scan       state = state exp(dt A) + (dt x) B;  y = (state C + D x) silu(gate)
 *     norm       RMS norm of the whole row y, or of each group's columns of y
 *
 * In shapes, inner = n_heads * head_dim; taps are the inputs of the convolution; channels are the
 * columns of x, B and C. A group is a set of consecutive heads with the same B and C.
 *
 * Families differ in struct mamba_shape (clamping, the norm) and in names (families' files). */
#pragma once
#include "worker/model/config.h"
#include "worker/model/model.h"
#include "worker/model/sharding.h"

enum { MAMBA_MAX_TAPS = 8 };

struct mamba_shape {
    uint32_t n_heads, head_dim, n_groups, state_dim, n_taps;
    bool norm_groups;   /* the columns of each group are normed separately */
    struct span normed; /* without norm_groups: this rank's columns of y; n 0: one rank has all */
    float eps, dt_min, dt_max;
};

struct mamba_weights {
    struct tensor in;                /* [2 inner + 2 groups state + heads, hidden] */
    struct tensor conv;              /* fp32 [channels, taps] */
    struct tensor conv_bias;         /* fp32 [channels] or none */
    struct tensor dt_bias, a_log, d; /* fp32 [heads] */
    struct tensor norm;              /* [inner], of all ranks unless norm_groups */
    struct tensor out;               /* [hidden, inner] */
};

/* Sizes in model_shape.dim that the lines of MAMBA_RULES use. */
#define DIM_MAMBA_IN DIM_OWN_0
#define DIM_MAMBA_CHANNELS DIM_OWN_1
#define DIM_MAMBA_TAPS DIM_OWN_2
#define DIM_MAMBA_INNER DIM_OWN_3
#define DIM_MAMBA_HEADS DIM_OWN_4

/* Lines of the weight table that fill the struct mamba_weights `mamba` of a layer. LAYER(f): home
 * and offset of field f in the family's layer; norm_flags: more flags of norm.weight. */
/* clang-format off */
#define MAMBA_RULES(prefix, LAYER, norm_flags) \
    { prefix "in_proj.weight",  LAYER(mamba.in),        DIM_MAMBA_IN,       DIM_HIDDEN,      W_STATE | W_SPLIT_ROWS }, \
    { prefix "conv1d.weight",   LAYER(mamba.conv),      DIM_MAMBA_CHANNELS, DIM_MAMBA_TAPS,  W_STATE | W_SPLIT_ROWS | W_FP32 }, \
    { prefix "conv1d.bias",     LAYER(mamba.conv_bias), DIM_MAMBA_CHANNELS, DIM_1,           W_STATE | W_SPLIT_ROWS | W_FP32 }, \
    { prefix "dt_bias",         LAYER(mamba.dt_bias),   DIM_1,              DIM_MAMBA_HEADS, W_STATE | W_SPLIT_COLS | W_FP32 }, \
    { prefix "A_log",           LAYER(mamba.a_log),     DIM_1,              DIM_MAMBA_HEADS, W_STATE | W_SPLIT_COLS | W_FP32 }, \
    { prefix "D",               LAYER(mamba.d),         DIM_1,              DIM_MAMBA_HEADS, W_STATE | W_SPLIT_COLS | W_FP32 }, \
    { prefix "norm.weight",     LAYER(mamba.norm),      DIM_1,              DIM_MAMBA_INNER, W_STATE | W_FP32 | (norm_flags) }, \
    { prefix "out_proj.weight", LAYER(mamba.out),       DIM_HIDDEN,         DIM_MAMBA_INNER, W_STATE | W_SPLIT_COLS }
/* clang-format on */

/* Reads c from the keys of Bamba and Granite (mamba_n_heads, ...); calls mamba_sizes(). */
int mamba_configure(const json_t *config, struct model_shape *s, struct mamba_shape *c,
                    struct err *e) MUST_USE;
/* Sets s->dim[DIM_MAMBA_*], s->parts and s->own_cols from c. -EINVAL: impossible sizes. */
int mamba_sizes(struct model_shape *s, const struct mamba_shape *c, struct err *e) MUST_USE;

/* Reduces c and the layers' states to this rank's heads. -ENOTSUP: they do not divide. */
int mamba_divide(struct model *m, struct mamba_shape *c, struct err *e) MUST_USE;

/* Makes l a layer with a recurrent state of c's size. */
void mamba_layer(const struct mamba_shape *c, struct layer_shape *l);
/* Queues the mixer of h [n, hidden] up to *y [n, inner], the input of the output projection w->out,
 * which the caller queues. */
int mamba_mix(const struct model *m, struct step *s, uint32_t layer, const struct mamba_shape *c,
              const struct mamba_weights *w, struct tensor h, struct tensor *y);
