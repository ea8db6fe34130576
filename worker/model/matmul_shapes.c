/* matmul_shapes.c - lists the matmul shapes of a model for `laganctl tune`: model_matmuls(). */
#include "worker/model/model.h"

static bool
seen(const struct matmul *list, uint32_t n, const struct tensor *w)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i].w.dim[0] == w->dim[0] && list[i].w.dim[1] == w->dim[1]) return true;
    return false;
}

/* Adds to list[n] a tensor of line r for each shape that the list lacks. Returns the new n. home:
 * the struct of the first of `layers` layers, whose structs are `each` bytes apart. */
static uint32_t
add(struct matmul *list, uint32_t n, const struct weight_rule *r, const char *home, uint32_t layers,
    size_t each)
{
    for (uint32_t i = 0; i < layers && n < MAX_MATMULS; i++) {
        const struct tensor *w = (const void *)(home + i * each + r->field);

        /* w->data is NULL if the line does not apply to this layer. */
        if (w->data && !seen(list, n, w))
            list[n++] = (struct matmul){ .w = *w, .head = r->rows == DIM_VOCAB };
    }
    return n;
}

uint32_t
model_matmuls(const struct model *m, struct matmul ret[MAX_MATMULS])
{
    const struct model_shape *s = &m->shape;
    const struct arch *a = m->arch;
    uint32_t n = 0;

    for (const struct weight_rule *r = a->weights; r->name; r++) {
        if (r->rows == DIM_1 || (r->flags & (W_FP32 | W_STACKED | W_EXPERTS | W_EMBEDDING)))
            continue;
        if (r->home == IN_TOP) n = add(ret, n, r, m->top, 1, 0);
        if (r->home == IN_ENCODER)
            n = add(ret, n, r, m->encoder, s->n_encoder_layers, a->encoder_bytes);
        if (r->home == IN_LAYER) n = add(ret, n, r, m->layer, s->n_layers, a->layer_bytes);
    }
    return n;
}
