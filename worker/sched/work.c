/* work.c - see work.h. */
#include "worker/sched/work.h"

/* What the rows of one run do in one group. */
static void
add_run(struct work_done *w, const struct work_costs *c, const struct kv_config *kv, uint32_t group,
        const struct batch_run *r)
{
    const struct kv_group *g = &kv->group[group];
    double a_token = (double)g->slice_bytes * g->n_layers * g->n_parts / kv->tokens_per_block;
    double rows = r->n_rows, keys = r->first_pos + rows,
           seen; /* of the last row; seen, on average */

    if (g->kind == KV_STATE) { /* read and written once, whatever came before */
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

struct work_done
work_of(const struct work_costs *c, const struct kv_config *kv, const struct batch *b,
        unsigned work)
{
    struct work_done w = { 0 };
    uint32_t rows = 0;
    double layers = MAX(c->n_enc_layers, 1u);

    for (uint32_t i = 0; i < b->n_runs; i++) {
        if (!(b->run[i].work & work)) continue;
        rows += b->run[i].n_rows;
        for (uint32_t g = 0; g < kv->n_groups; g++) add_run(&w, c, kv, g, &b->run[i]);
    }
    if (rows > 0) w.weights += (double)c->weights;
    w.matmul += rows * c->row_flops;
    if (!(work & WORK_ENCODER)) return w;
    for (uint32_t i = 0; i < b->n_encode; i++)
        w.matmul += b->encode[i].n_rows * c->encoder_flops * b->encode[i].n_layers / layers;
    if (b->n_encode > 0) w.weights += (double)c->encoder_weights * b->encode[0].n_layers / layers;
    return w;
}
