/* sharding.h - tensor parallelism: computes which rows and columns of the model this rank has.
 *
 * Ranks divide heads, feed-forward and vocabulary. A rank has its part of each tensor whose line in
 * the weight table has W_SPLIT_ROWS or W_SPLIT_COLS, and all of every other tensor. With fewer K/V
 * heads than ranks, neighbouring ranks have the same head. Each rank has a slice of every expert
 * instead of some whole experts, because all ranks then have equal work for any routing and no
 * token is sent between ranks. Sizes that do not divide are refused by name. */
#pragma once
#include "worker/model/model.h"

/* A range of rows or columns of the whole model. */
struct span {
    uint32_t first, n;
};

/* Copies m->shape to m->whole and reduces m->shape to this rank's part. Called after configure().
 * -ENOTSUP: ranks cannot share a size equally; the message names it. */
int sharding_divide(struct model *m, struct err *e) MUST_USE;
/* Does nothing: arch.divide of a family whose cfg is equal on all ranks. */
int sharding_agrees(struct model *m, struct err *e);
/* Returns this rank's share of n rows, columns or units that all ranks divide evenly. */
struct span sharding_share(const struct model *m, uint32_t n);
/* Sets part[] to this rank's rows or columns of size d, n in the whole model, of layer l (NULL: not
 * of a layer); one span for each part of struct dim_parts. Returns the number of spans. */
uint32_t sharding_parts(const struct model *m, enum dim d, uint32_t n, const struct layer_shape *l,
                        struct span part[DIM_PARTS]);
