/* quant.h - quantised weights: checkpoints whose config.json has a quantization_config.
 *
 * A family's weight table describes unquantised ("plain") weights. A quantisation method (struct
 * quant) says which lines of the weight table a checkpoint stores quantised, and which tensors
 * (codes, scales) it stores instead of the plain one; weights_plan.c then plans one field for each
 * stored tensor. The only method is MXFP4. */
#pragma once
#include "worker/model/model.h"

enum { QUANT_TENSORS = 2 };

/* A tensor, [rows, cols / cols_per_byte] bytes, stored instead of a plain one [rows, cols]. */
struct quant_tensor {
    const char *suffix; /* appended to the name of the plain tensor */
    uint32_t cols_per_byte;
    bool is_scale; /* the bytes are scales (tensor.scale), not codes (tensor.data) */
};

struct quant {
    const char *method, *name; /* quantization_config.quant_method; the name in error messages */
    enum dtype dtype;          /* of the matrix on the device */
    uint32_t run;              /* consecutive columns that share a scale; ranks do not cut a run */
    uint8_t random_scale;      /* value of every scale byte if weights are random */
    bool (*covers)(const struct weight_rule *rule); /* true if the line is stored quantised */
    struct quant_tensor tensor[QUANT_TENSORS];      /* stored instead of the line's plain tensor */
};
extern const struct quant quant_mxfp4;

/* Sets m->quant to the method that config names (NULL: plain weights), then runs the family's
 * configure(). -ENOTSUP: the method is not implemented, or not for this family; -EINVAL:
 * hidden_size or intermediate_size is not a multiple of quant.run. */
int quant_configure(struct model *m, json_t *config, struct err *e) MUST_USE;
