/* matmul_shapes.h - the shapes of a model's matmuls, by its weight table: what `laganctl tune` measures. */
#ifndef MODEL_MATMUL_SHAPES_H
#define MODEL_MATMUL_SHAPES_H

#include "worker/model/model.h"

struct matmul {
    struct tensor w; /* one of the model's weights of that shape */
    bool head;       /* its rows are a vocabulary: it makes logits, in fp32 */
};

enum { MAX_MATMULS = 64 };

/* One weight of each shape, in the order of the weight table, MAX_MATMULS at most; their number. Norms, and
 * bias tables, which stay fp32, are no matmuls. An embedding that is no head has the head's shape, experts have a product of their own. */
uint32_t model_matmuls(const struct model *m, struct matmul ret[MAX_MATMULS]);

#endif
