/* sharding.h - one model on several ranks: which part of it is ours.
 *
 * Heads, the feed-forward and the vocabulary are divided; a rank has so much of each tensor as its line in the
 * weight table says (W_SPLIT_ROWS, W_SPLIT_COLS), and the whole of all others. Where there are fewer K/V heads
 * than ranks, neighbours have the same one. Of experts each rank has a slice of every one, not all of some:
 * then all ranks have the same to do whichever experts a token goes to, and no token is sent anywhere. What does
 * not divide is refused by name.
 */
#ifndef MODEL_SHARDING_H
#define MODEL_SHARDING_H

#include "worker/model/model.h"

/* Of a whole's rows or columns. */
struct span {
    uint32_t first, n;
};

/* After configure(): m->whole is the model, m->shape becomes our part of it. -ENOTSUP: it does not divide. */
int sharding_divide(struct model *m, struct err *e) MUST_USE;
/* For struct arch's divide: nothing more is to be done. */
int sharding_agrees(struct model *m, struct err *e);
/* Our part of n. */
struct span sharding_share(const struct model *m, uint32_t n);
/* Our part of a size of that layer (NULL: of the model), piece by piece; how many. */
uint32_t sharding_parts(const struct model *m, enum dim d, uint32_t n, const struct layer_shape *l,
                        struct span part[DIM_PARTS]);

#endif
