/* groups.c - divides the layers of a model into KV groups, which have one block table each, and the
 * KV arena between the groups: model_groups(), model_shares().
 *
 * Layers with equal kind, window, K/V heads, head size, parts and state size form a group; groups
 * are in the order of their first layer. The cross KV of all layers is the last group. */
#include "worker/model/model.h"

enum { ALIGN = 128, MIN_TOKENS = 4, MAX_TOKENS = 128, MAX_BLOCK = 16 << 20 };

/* The groups so far: like[g] is the first layer of group g, layers[g] the number of its layers. */
struct making {
    const struct model_shape *shape;
    enum dtype dtype;
    uint32_t n;
    const struct layer_shape *like[MAX_GROUPS];
    uint32_t layers[MAX_GROUPS];
};

static bool
alike(const struct layer_shape *a, const struct layer_shape *b)
{
    return a->kv == b->kv && a->window == b->window && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->kv_parts == b->kv_parts &&
           a->state_bytes == b->state_bytes;
}

/* Adds n_layers layers of the same shape l to the group of such layers or to a new group. */
static int
join(struct making *g, struct layer_shape *l, uint32_t n_layers, struct err *e)
{
    uint32_t i = 0;

    while (i < g->n && !alike(g->like[i], l)) i++;
    if (i == MAX_GROUPS)
        return err_set(e, -ENOTSUP, "the model needs more than %d KV groups", MAX_GROUPS);
    if (i == g->n) {
        g->like[g->n] = l;
        g->layers[g->n++] = 0;
    }
    l->group = (uint8_t)i;
    l->in_group = (uint8_t)g->layers[i];
    g->layers[i] += n_layers;
    return 0;
}

static int
place_layers(struct making *g, struct model_shape *s, struct err *e)
{
    for (uint32_t i = 0; i < s->n_layers; i++) {
        struct layer_shape *l = &s->layer[i];

        if (l->mixer == MIX_STATE || (l->mixer == MIX_ATTENTION && l->kv_from == i))
            TRY(join(g, l, 1, e));
    }
    for (uint32_t i = 0; i < s->n_layers; i++) {
        struct layer_shape *l = &s->layer[i], *from = &s->layer[l->kv_from];

        if (l->mixer != MIX_ATTENTION || l->kv_from == i) continue;
        check(l->kv_from < i && from->kv_from == l->kv_from && from->mixer == MIX_ATTENTION);
        l->group = from->group;
        l->in_group = from->in_group;
    }
    if (!s->n_encoder_layers) return 0;
    s->cross.kv = KV_CROSS;
    return join(g, &s->cross, s->n_layers, e);
}

static uint64_t
slice_bytes(const struct making *g, const struct layer_shape *l, uint32_t tokens)
{
    uint64_t bytes = dtype_bytes(g->dtype, (uint64_t)l->n_kv_heads * tokens * l->head_dim);

    return ROUND_UP(bytes, (uint64_t)ALIGN);
}

static uint64_t
largest_block(const struct making *g, uint32_t tokens)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < g->n; i++)
        most = MAX(most, slice_bytes(g, g->like[i], tokens) * g->layers[i] * g->like[i]->kv_parts);
    return most;
}

/* Sets slice_bytes and max_entries of groups with recurrent state, where a block is the state of
 * one layer. The size of the state is rounded up to a multiple of the largest slice of the other
 * groups, which keeps the slab, a common multiple of all slice sizes, small. */
static void
make_states(const struct making *g, struct kv_config *c)
{
    uint32_t slice = ALIGN;

    for (uint32_t i = 0; i < g->n; i++)
        if (c->group[i].kind != KV_STATE) slice = MAX(slice, c->group[i].slice_bytes);
    for (uint32_t i = 0; i < g->n; i++) {
        struct kv_group *k = &c->group[i];

        if (k->kind != KV_STATE) continue;
        k->slice_bytes = ROUND_UP(g->like[i]->state_bytes, slice);
        k->max_entries = k->n_layers * (1 + KV_SNAPSHOTS);
    }
}

int
model_groups(struct model *m, enum dtype kv_dtype, uint32_t tokens, struct kv_config *c,
             struct err *e)
{
    struct making g = { .shape = &m->shape, .dtype = kv_dtype };

    if (tokens && (tokens < MIN_TOKENS || tokens > MAX_TOKENS || (tokens & (tokens - 1))))
        return err_set(e, -EINVAL, "kv.tokens_per_block is %u, want a power of two from %d to %d",
                       tokens, MIN_TOKENS, MAX_TOKENS);
    TRY(place_layers(&g, &m->shape, e));
    for (uint32_t t = 64; !tokens; t /= 2)
        if (t == 16 || largest_block(&g, t) <= MAX_BLOCK) tokens = t;
    if (largest_block(&g, tokens) > UINT32_MAX)
        return err_set(e, -EINVAL,
                       "with kv.tokens_per_block %u a block has %llu bytes; the limit is 4 GiB",
                       tokens, (unsigned long long)largest_block(&g, tokens));
    c->tokens_per_block = tokens;
    c->n_groups = g.n;
    for (uint32_t i = 0; i < g.n; i++) {
        const struct layer_shape *l = g.like[i];
        uint32_t reach = l->kv == KV_CROSS ? m->shape.max_source : m->shape.max_len;

        c->group[i] = (struct kv_group){
            .kind = l->kv,
            .window = l->window,
            .n_layers = g.layers[i],
            .n_parts = l->kv_parts,
            .slice_bytes = (uint32_t)slice_bytes(&g, l, tokens),
            .max_entries = CEIL_DIV(reach, tokens),
        };
    }
    make_states(&g, c);
    return 0;
}

uint32_t
model_keep_first(struct model *m, uint32_t n, struct kv_config *c)
{
    uint32_t windows = 0;

    for (uint32_t i = 0; i < m->shape.n_layers; i++)
        if (m->shape.layer[i].window) m->shape.layer[i].kept = n;
    for (uint32_t i = 0; i < c->n_groups; i++)
        if (c->group[i].kind == KV_WINDOW) {
            c->group[i].sinks = n;
            windows++;
        }
    return windows;
}

static uint32_t
kind_of(const char *name, size_t n)
{
    uint32_t k = 0;

    while (k < KV_KINDS && (strlen(kv_kind_name(k)) != n || memcmp(kv_kind_name(k), name, n))) k++;
    return k;
}

/* Parses one KIND=SHARE of kv.shares into share[KIND]. */
static int
read_share(const char *at, size_t n, double *share, struct err *e)
{
    const char *equals = memchr(at, '=', n);
    size_t name = equals ? (size_t)(equals - at) : n;
    uint32_t kind = kind_of(at, name);
    char *end = NULL;
    double x = equals ? strtod(equals + 1, &end) : 0;

    if (kind == KV_KINDS)
        return err_set(e, -EINVAL, "kv.shares: \"%.*s\" is none of full, window, cross and state",
                       (int)name, at);
    if (!equals || end == equals + 1 || end != at + n || !(x > 0 && x <= 1))
        return err_set(e, -EINVAL,
                       "kv.shares: \"%.*s\" does not have the form KIND=SHARE with a share above 0 "
                       "and up to 1, for example %s=0.5",
                       (int)n, at, kv_kind_name(kind));
    if (share[kind] > 0)
        return err_set(e, -EINVAL, "kv.shares: the kind %s is given twice", kv_kind_name(kind));
    share[kind] = x;
    return 0;
}

int
model_shares(const char *text, double cross, struct kv_config *c, struct err *e)
{
    double share[KV_KINDS] = { 0 }, sum = 0;
    uint32_t n[KV_KINDS] = { 0 }, self = 0;

    if (*text && cross > 0)
        return err_set(e, -EINVAL,
                       "kv.shares and cross_kv_cache_fraction are both set; set only one");
    for (uint32_t i = 0; i < c->n_groups; i++) n[c->group[i].kind]++;
    self = c->n_groups - n[KV_CROSS];
    for (size_t len; *text; text += len + (text[len] == ',')) {
        len = strcspn(text, ",");
        TRY(read_share(text, len, share, e));
    }
    for (uint32_t k = 0; k < KV_KINDS; k++) {
        if (cross > 0 && k != KV_CROSS && self) share[k] = (1 - cross) * n[k] / self;
        if (cross > 0 && k == KV_CROSS) share[k] = cross;
        sum += share[k];
        if (share[k] > 0 && n[k] == 0)
            return err_set(e, -EINVAL, "%s names kind %s, which no layer of the model has",
                           cross > 0 ? "cross_kv_cache_fraction" : "kv.shares", kv_kind_name(k));
    }
    if (sum > 1.0001) return err_set(e, -EINVAL, "kv.shares sum to %.2f, want at most 1", sum);
    for (uint32_t i = 0; i < c->n_groups; i++)
        c->group[i].share = (float)(share[c->group[i].kind] / n[c->group[i].kind]);
    return 0;
}
