/* quant.h - checkpoints whose config.json has a quantization_config.
 *
 * A family's weight table states plain weights. A method says which lines of the table a checkpoint
 * stores quantised, and as which tensors; weights_plan.c plans one field for each stored tensor.
 * Only MXFP4 is served.
 */
#pragma once

#include "worker/model/model.h"

enum { QUANT_TENSORS = 2 };

/* One stored tensor, [rows, cols / cols_per_byte] bytes. */
struct quant_tensor {
    const char *suffix; /* of the plain tensor's name */
    uint32_t cols_per_byte;
    bool is_scale; /* becomes tensor.scale instead of tensor.data */
};

struct quant {
    const char *method, *name; /* quantization_config.quant_method; the name in error messages */
    enum dtype dtype;          /* of the matrix on the device */
    uint32_t run;              /* columns that share a scale; ranks divide between runs */
    uint8_t random_scale;      /* every scale byte of random weights */
    bool (*covers)(const struct weight_rule *rule);
    struct quant_tensor tensor[QUANT_TENSORS]; /* stored instead of a covered line's tensor */
};
extern const struct quant quant_mxfp4;

/* Picks the method that config names into m->quant (NULL: plain weights), then runs the family's
 * configure(). -ENOTSUP: the method is not served or not for this family; -EINVAL: a size is not a
 * multiple of the run. */
int quant_configure(struct model *m, json_t *config, struct err *e) MUST_USE;
