/* blocks.c - see blocks.h. */
#include "worker/model/blocks.h"

#include <string.h>

static void
widen(uint32_t cols[8], const struct layer_shape *l)
{
    uint32_t q = l->n_heads * l->head_dim, kv = l->n_kv_heads * l->head_dim;

    cols[BLOCK_QKV] = MAX(cols[BLOCK_QKV], q + 2 * kv);
    cols[BLOCK_HEADS] = MAX(cols[BLOCK_HEADS], q);
    cols[BLOCK_GATE_UP] = MAX(cols[BLOCK_GATE_UP], 2 * l->n_ff);
    cols[BLOCK_INNER] = MAX(cols[BLOCK_INNER], l->n_ff);
}

void
model_scratch(const struct model *m, uint32_t cols[8])
{
    const struct model_shape *s = &m->shape;

    memset(cols, 0, 8 * sizeof *cols);
    cols[BLOCK_NORMED] = cols[BLOCK_OUT] = s->hidden;
    for (uint32_t i = 0; i < s->n_layers; i++) widen(cols, &s->layer[i]);
    for (uint32_t i = 0; i < s->n_encoder_layers; i++) widen(cols, &s->encoder[i]);
    if (s->n_encoder_layers) widen(cols, &s->cross);
}

struct tensor
block_scratch(const struct step *s, enum block_scratch which, uint32_t rows, uint32_t cols)
{
    return tensor_cols(tensor_rows(s->scratch[which], 0, rows), 0, cols);
}

int
block_residual(const struct model *m, struct step *s, struct tensor in, struct tensor w,
               struct residual r)
{
    r.in = block_scratch(s, BLOCK_OUT, r.x.dim[0], r.x.dim[1]);
    TRY(m->op->matmul(s->lane, r.in, in, w, NO_TENSOR, 0));
    TRY(m->op->all_reduce(s->lane, r.in));
    return m->op->residual(s->lane, &r);
}
