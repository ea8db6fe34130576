/* cost.c - see cost.h. */
#include "sim/cost.h"

struct load {
    double bytes, flops;
};

/* What the rows of one run do in one group. */
static struct load
load_of(const struct setting *st, uint32_t group, const struct batch_run *r)
{
    const struct kv_group *g = &st->kv.group[group];
    double a_token = (double)g->slice_bytes * g->n_layers * g->n_parts / st->kv.tokens_per_block;
    double rows = r->n_rows, keys = r->first_pos + rows,
           seen; /* of the last row; seen, on average */

    if (g->kind == KV_CROSS) {
        keys = seen = r->cross_tokens;
    } else {
        if (g->kind == KV_WINDOW && keys > g->window + rows) keys = g->window + rows;
        seen = keys - (rows - 1) / 2;
        if (g->kind == KV_WINDOW && seen > g->window) seen = g->window;
    }
    return (struct load){ keys * a_token, rows * seen * st->cost.attend[group] };
}

nsec
cost_of(const struct setting *st, const struct batch *b)
{
    const struct cost *c = &st->cost;
    struct load w = { 0, 0 };
    uint32_t rows = 0;
    double layers = st->sched.n_enc_layers, memory, compute;

    for (uint32_t i = 0; i < b->n_runs; i++) {
        rows += b->run[i].n_rows;
        for (uint32_t g = 0; g < st->kv.n_groups; g++) {
            struct load more = load_of(st, g, &b->run[i]);

            w.bytes += more.bytes;
            w.flops += more.flops;
        }
    }
    if (rows > 0) w.bytes += (double)c->weights;
    w.flops += rows * c->row_flops;
    for (uint32_t i = 0; i < b->n_encode; i++)
        w.flops += b->encode[i].n_rows * c->encoder_flops * b->encode[i].n_layers / layers;
    if (b->n_encode > 0) w.bytes += (double)c->encoder_weights * b->encode[0].n_layers / layers;
    memory = w.bytes / c->bandwidth;
    compute = w.flops / c->peak;
    return c->launch + (nsec)((memory > compute ? memory : compute) * 1e9);
}
