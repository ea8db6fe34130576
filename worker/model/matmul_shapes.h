/* matmul_shapes.h - the matmul shapes of a model, from its weight table; `laganctl tune` measures
 * them. */
#pragma once

#include "worker/model/model.h"

struct matmul {
    struct tensor w; /* one weight of that shape */
    bool head;       /* rows are the vocabulary; the result is fp32 logits */
};

enum { MAX_MATMULS = 64 };

/* Fills ret with one weight of each shape, in weight-table order. Returns their number. Left out:
 * norms and bias tables, which are fp32; experts, which have their own op. An embedding has the
 * shape of the head. */
uint32_t model_matmuls(const struct model *m, struct matmul ret[MAX_MATMULS]);
