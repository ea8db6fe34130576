/* tiny_model.h - a test family without arithmetic; its weight table has a line for every flag. */
#pragma once
#include "tests/model/checkpoint_writer.h"
#include "worker/model/model.h"

enum { TOY_HIDDEN = 32, TOY_VOCAB = 48, TOY_LAYERS = 3, TOY_KV = 16 };

struct toy {
    struct tensor embed, norm, head, extra;
};

struct toy_layer {
    struct tensor qkv;         /* three stacked */
    struct tensor norm;        /* fp32 always */
    struct tensor wide, local; /* only without a window; only with one */
    struct tensor first;       /* layer 0 */
    struct tensor gated;       /* rows from config.json, 0 by default */
};

extern const struct arch arch_toy;
extern const struct arch *const toy_families[];
extern struct gpu *toy_gpu; /* setup and teardown of a test group */
int toy_open_gpu(void **state);
int toy_close_gpu(void **state);
extern bool toy_prepared; /* prepare() found all weights loaded */

/* config.json plus `more` (",\"key\":1"). */
void toy_config(struct ckpt *c, const char *more);
/* Every tensor of the toy family except skip, with a prefix; norms in norm_dtype. */
void toy_add(struct ckpt *c, const char *prefix, const char *dtype, const char *norm_dtype,
             const char *skip);
