/* mamba.h - Mamba-2's mixer, as the hybrids have it to the letter alike.
 *
 *     in_proj    [gate | x B C | dt] of a row
 *     conv       x B C over the last taps rows, then silu
 *     scan       state = state exp(dt A) + (dt x) B;  y = (state C + D x) silu(gate)
 *     norm       over all of y, or over each group's part
 *
 * What differs between families (names in the checkpoint, what is clamped, how the norm goes) is in struct
 * mamba_shape and in their own files.
 */
#ifndef MODEL_MAMBA_H
#define MODEL_MAMBA_H

#include "worker/model/config.h"
#include "worker/model/model.h"
#include "worker/model/sharding.h"

enum { MAMBA_MAX_TAPS = 8 };

struct mamba_shape {
    uint32_t n_heads, head_dim, n_groups, state_dim, n_taps;
    bool norm_groups;   /* each group's part is normed for itself */
    struct span normed; /* our part of what is normed together; n 0: all of it */
    float eps, dt_min, dt_max;
};

struct mamba_weights {
    struct tensor in;                /* [2 inner + 2 groups state + heads, hidden] */
    struct tensor conv;              /* fp32 [channels, taps] */
    struct tensor conv_bias;         /* fp32 [channels] or none */
    struct tensor dt_bias, a_log, d; /* fp32 [heads] */
    struct tensor norm;              /* [inner]; of all ranks, but with norm_groups */
    struct tensor out;               /* [hidden, inner] */
};

/* The model's dims for lines of the weight table. */
#define DIM_MAMBA_IN DIM_OWN_0
#define DIM_MAMBA_CHANNELS DIM_OWN_1
#define DIM_MAMBA_TAPS DIM_OWN_2
#define DIM_MAMBA_INNER DIM_OWN_3
#define DIM_MAMBA_HEADS DIM_OWN_4

/* Sizes as Bamba and Granite spell them in config.json (mamba_n_heads, ...), into c and s: mamba_sizes(). */
int mamba_configure(const json_t *config, struct model_shape *s, struct mamba_shape *c,
                    struct err *e) MUST_USE;
/* s's dims and scratch for a shape that is read; -EINVAL: it cannot be. */
int mamba_sizes(struct model_shape *s, const struct mamba_shape *c, struct err *e) MUST_USE;

/* Among ranks, heads with their inputs, convolution and states: c becomes our part of it, and so do m's layers. */
int mamba_divide(struct model *m, struct mamba_shape *c, struct err *e) MUST_USE;

/* Of a layer: heads times their dim, x B C, and rows of in_proj. */
uint32_t mamba_inner(const struct mamba_shape *c);
uint32_t mamba_channels(const struct mamba_shape *c);
uint32_t mamba_in(const struct mamba_shape *c);
/* What makes a layer one that keeps state: its bytes, and its place among the kinds. */
void mamba_layer(const struct mamba_shape *c, struct layer_shape *l);
/* *y [n, inner] of the layer, from h [n, hidden]: what w->out is to be applied to. */
int mamba_mix(const struct model *m, struct step *s, uint32_t layer, const struct mamba_shape *c,
              const struct mamba_weights *w, struct tensor h, struct tensor *y);

#endif
