/* sharding.c - divides the sizes of a model between ranks (sharding.h). */
#include "worker/model/sharding.h"

struct span
sharding_share(const struct model *m, uint32_t n)
{
    uint64_t rank = m->rank, ranks = m->ranks;
    uint32_t first = (uint32_t)(n * rank / ranks);

    return (struct span){ first, (uint32_t)(n * (rank + 1) / ranks) - first };
}

/* Returns this rank's part of n rows or columns that consist of equal units, which are not cut;
 * with fewer units than ranks, neighbouring ranks have the same unit. */
static struct span
units_of(const struct model *m, uint32_t n, uint32_t units)
{
    struct span ours = units >= m->ranks ? sharding_share(m, units)
                                         : (struct span){ m->rank / (m->ranks / units), 1 };
    uint32_t each = n / units;

    return (struct span){ ours.first * each, ours.n * each };
}

uint32_t
sharding_parts(const struct model *m, enum dim d, uint32_t n, const struct layer_shape *l,
               struct span part[DIM_PARTS])
{
    const struct dim_parts *p = d < DIM_Q && m->whole.parts[d].n ? &m->whole.parts[d] : NULL;
    uint32_t at = 0;

    part[0] = l && (d == DIM_KV || d == DIM_V) && n ? units_of(m, n, l->n_kv_heads)
                                                    : sharding_share(m, n);
    for (uint32_t i = 0; p && i < p->n; at += p->size[i++]) {
        part[i] = units_of(m, p->size[i], p->units[i]);
        part[i].first += at;
    }
    return p ? p->n : 1;
}

int
sharding_agrees(struct model *m, struct err *e)
{
    (void)m, (void)e;
    return 0;
}

/* Reduces *n columns to this rank's part, a multiple of unit. -ENOTSUP: a rank has no column. */
static int
reduce_to_share(const struct model *m, uint32_t *n, uint32_t unit, const char *what, struct err *e)
{
    uint32_t units = *n / unit;

    if (units > 0 && units < m->ranks)
        return err_set(e, -ENOTSUP, "%s has %u %s, too few for %u ranks; lower tensor_parallel",
                       what, units, unit > 1 ? "groups of columns that share a scale" : "columns",
                       m->ranks);
    *n = sharding_share(m, units).n * unit;
    return 0;
}

static int
divide_layer(const struct model *m, struct layer_shape *l, struct err *e)
{
    uint32_t ranks = m->ranks;

    if (l->n_heads % ranks)
        return err_set(e, -ENOTSUP,
                       "there are %u attention heads, which %u ranks cannot share equally",
                       l->n_heads, ranks);
    l->n_heads /= ranks;
    TRY(reduce_to_share(m, &l->n_ff, 1, "the feed-forward", e));
    TRY(reduce_to_share(m, &l->expert_ff, m->whole.expert_run, "each expert", e));
    if (l->n_kv_heads == 0) return 0;
    if (l->n_kv_heads % ranks && ranks % l->n_kv_heads)
        return err_set(e, -ENOTSUP,
                       "there are %u key-value heads, neither a multiple nor a divisor of %u ranks",
                       l->n_kv_heads, ranks);
    l->n_kv_heads = MAX(l->n_kv_heads / ranks, 1u);
    return 0;
}

static uint32_t
size_of_ours(const struct model *m, enum dim d)
{
    struct span part[DIM_PARTS];
    uint32_t n = sharding_parts(m, d, m->whole.dim[d], &m->whole.layer[0], part), sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += part[i].n;
    return sum;
}

/* Reduces every m->shape.dim that a line with W_SPLIT_ROWS or W_SPLIT_COLS names to this rank's
 * part, except the vocabulary, because every rank has the whole embedding. */
static void
divide_sizes(struct model *m)
{
    uint32_t *dim = m->shape.dim;

    for (const struct weight_rule *r = m->arch->weights; r->name; r++) {
        if (r->flags & W_SPLIT_ROWS && r->rows != DIM_VOCAB)
            dim[r->rows] = size_of_ours(m, r->rows);
        if (r->flags & W_SPLIT_COLS) dim[r->cols] = size_of_ours(m, r->cols);
    }
}

int
sharding_divide(struct model *m, struct err *e)
{
    struct model_shape *s = &m->shape;
    uint32_t ranks = m->ranks;

    m->whole = m->shape;
    if (ranks == 1) return 0;
    if (!m->arch->divide)
        return err_set(e, -ENOTSUP, "tensor parallelism is not implemented for %s", m->arch->name);
    for (uint32_t i = 0; i < s->n_layers; i++) TRY(divide_layer(m, &s->layer[i], e));
    for (uint32_t i = 0; i < s->n_encoder_layers; i++) TRY(divide_layer(m, &s->encoder[i], e));
    if (s->n_encoder_layers) TRY(divide_layer(m, &s->cross, e));
    TRY(reduce_to_share(m, &(uint32_t){ s->vocab }, 1, "the vocabulary", e));
    divide_sizes(m);
    return m->arch->divide(m, e);
}
