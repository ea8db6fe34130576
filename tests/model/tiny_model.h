/* tiny_model.h - a family of the tests' own: no arithmetic, one line in its weight table for every flag. */
#ifndef TESTS_MODEL_TINY_MODEL_H
#define TESTS_MODEL_TINY_MODEL_H

#include "tests/model/checkpoint_writer.h"
#include "worker/model/model.h"

enum { TOY_HIDDEN = 32, TOY_VOCAB = 48, TOY_LAYERS = 3, TOY_KV = 16 };

struct toy {
    struct tensor embed, norm, head, extra;
};

struct toy_layer {
    struct tensor qkv;         /* three stacked */
    struct tensor norm;        /* fp32 always */
    struct tensor wide, local; /* only where there is no window; only where there is one */
    struct tensor first;       /* layer 0 */
    struct tensor gated;       /* as many rows as config.json says: none by default */
};

extern const struct arch arch_toy;
extern const struct arch *const toy_families[];
extern struct gpu *toy_gpu; /* a group's, between these two */
int toy_open_gpu(void **state);
int toy_close_gpu(void **state);
extern bool toy_prepared; /* prepare() saw all weights in place */

/* config.json with `more` (",\"key\":1") put in. */
void toy_config(struct ckpt *c, const char *more);
/* Every tensor of the toy but the one called skip, with a prefix; norms in norm_dtype. */
void toy_add(struct ckpt *c, const char *prefix, const char *dtype, const char *norm_dtype,
             const char *skip);

#endif
