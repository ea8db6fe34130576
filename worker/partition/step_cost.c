/* step_cost.c - counts the bytes and FLOP of a step: see step_cost.h. */
#include "worker/partition/step_cost.h"

/* Adds to *w the KV bytes and attention FLOP that segment r causes in one KV group. */
static void
add_segment(struct step_cost *w, const struct step_costs *c, const struct kv_config *kv,
            uint32_t group, const struct batch_segment *r)
{
    const struct kv_group *g = &kv->group[group];
    double a_token = (double)g->slice_bytes * g->n_layers * g->n_parts / kv->tokens_per_block;
    double rows = r->n_tokens, keys = r->first_pos + rows, /* number of keys of the last token */
        seen;                                              /* mean number of keys per token */

    if (g->kind == KV_STATE) { /* a recurrent state is read and written once, at any position */
        w->kv += 2. * g->slice_bytes * g->n_layers;
        return;
    }
    if (g->kind == KV_CROSS) {
        keys = seen = r->cross_tokens;
    } else {
        if (g->kind == KV_WINDOW && keys > g->window + rows) keys = g->window + rows;
        seen = keys - (rows - 1) / 2;
        if (g->kind == KV_WINDOW && seen > g->window) seen = g->window;
    }
    w->kv += keys * a_token;
    w->attend += rows * seen * c->attend[group];
}

struct step_cost
step_cost_of(const struct step_costs *c, const struct kv_config *kv, const struct batch *b,
             unsigned work)
{
    struct step_cost w = { 0 };
    uint32_t rows = 0;
    double layers = MAX(c->n_enc_layers, 1u);

    for (uint32_t i = 0; i < b->n_segments; i++) {
        if (!(b->segment[i].work & work)) continue;
        rows += b->segment[i].n_tokens;
        for (uint32_t g = 0; g < kv->n_groups; g++) add_segment(&w, c, kv, g, &b->segment[i]);
    }
    if (rows > 0) w.weights += (double)c->weights;
    w.matmul += rows * c->row_flops;
    if (!(work & WORK_ENCODER)) return w;
    for (uint32_t i = 0; i < b->n_encode; i++)
        w.matmul += b->encode[i].n_tokens * c->encoder_flops * b->encode[i].n_layers / layers;
    if (b->n_encode > 0) w.weights += (double)c->encoder_weights * b->encode[0].n_layers / layers;
    return w;
}
