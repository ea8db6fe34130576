/* kv_find.c - finds the longest cached prefix: see kv_find.h. */
#include "worker/kv/kv_find.h"

#include "worker/kv/kv_evict.h"

enum { MAX_CHILDREN = 32 }; /* most children of a node compared in the search of a partial block */

static uint32_t
n_positions(const struct kv *kv, const struct kv_found *f)
{
    return f->depth * kv->c.tokens_per_block + f->part;
}

uint32_t
kv_find_ref(const struct kv *kv, uint32_t node, uint32_t group)
{
    const struct kv_node *n = kv_node(kv, node);

    if (n->slot[group]) return n->slot[group];
    if (kv->host_tier_away) return 0;
    return *(kv->c.group[group].kind == KV_STATE ? &kv->onboard_state_pays : &kv->onboard_pays)
               ? n->host[group]
               : 0;
}

/* Returns true if the node has a block of each decoder group and a slot may copy these blocks or
 * take them over. Without kv_config.copy_partial it may only take over cached blocks of a leaf. */
static bool
may_take_part(const struct kv *kv, uint32_t node)
{
    const struct kv_node *n = kv_node(kv, node);

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (!kv_is_self(kv, g)) continue;
        if (!n->slot[g]) return false;
        if (kv->c.copy_partial) continue;
        if (!kv_is_leaf(kv, node) || kv_blocks(kv)[n->slot[g] - 1].state != BLOCK_CACHED)
            return false;
    }
    return true;
}

/* Finds the child of f->node with the most leading tokens in common with *t. Window groups need no
 * check: within the child, a query sees only full blocks that the query at its start sees too. */
static void
find_part(const struct kv *kv, const struct kv_text *t, struct kv_found *f)
{
    uint32_t tokens = kv->c.tokens_per_block, n = 0;
    uint32_t rest = MIN(t->n - 1 - f->depth * tokens, tokens);
    struct kv_piece p;

    if (rest == 0 || !f->node || kv->has_state || kv->c.whole_blocks) return;
    p = kv_piece(kv, t, f->depth, rest);
    for (uint32_t i = kv_node(kv, f->node)->child; i && n < MAX_CHILDREN;
         i = kv_node(kv, i)->next, n++) {
        uint32_t common = kv_tree_common(kv, i, &p);

        if (common <= f->part || !may_take_part(kv, i)) continue;
        f->tail = i;
        f->part = common;
    }
}

/* Finds the longest prefix of *t for which all groups have the blocks that the next query sees. */
static void
find_self(const struct kv *kv, const struct kv_text *t, struct kv_found *f)
{
    uint32_t tokens = kv->c.tokens_per_block, run[MAX_GROUPS] = { 0 };
    bool lost[MAX_GROUPS] = { false }; /* a sink block of the group is not cached */
    uint32_t node = kv_tree_root(kv, t->namespace->self), n = (t->n - 1) / tokens;

    f->node = node;
    for (uint32_t i = 0; node && i < n; i++) {
        struct kv_piece p = kv_piece(kv, t, i, tokens);
        bool valid = true;
        uint64_t name[2];

        kv_tree_name(kv_node(kv, node)->key, &p, name);
        node = kv_tree_child(kv, node, name, &p);
        for (uint32_t g = 0; node && g < kv->c.n_groups; g++) {
            const struct kv_group *k = &kv->c.group[g];
            bool has = kv_find_ref(kv, node, g);

            if (k->kind == KV_CROSS) continue;
            if (k->kind == KV_STATE) {
                valid = valid && has;
                continue;
            }
            if (k->kind == KV_FULL && !has) {
                node = 0;
                break;
            }
            run[g] = has ? run[g] + 1 : 0;
            lost[g] = lost[g] || (!has && i < kv_kind_sinks(k, tokens));
            valid = valid && !lost[g] &&
                    run[g] >= i + 1 - kv_kind_first(k, tokens, (i + 1) * tokens);
        }
        if (!node || !valid) continue;
        f->node = node;
        f->depth = i + 1;
    }
    find_part(kv, t, f);
}

static void
find_cross(const struct kv *kv, const struct kv_text *t, struct kv_found *f)
{
    uint32_t tokens = kv->c.tokens_per_block, node = kv_tree_root(kv, t->namespace->cross);
    struct kv_text source = { .token = t->source, .n = t->n_source };

    for (uint32_t at = 0; node && at < t->n_source; at += tokens) {
        struct kv_piece p = kv_piece(kv, &source, at / tokens, MIN(tokens, t->n_source - at));
        uint64_t name[2];

        kv_tree_name(kv_node(kv, node)->key, &p, name);
        node = kv_tree_child(kv, node, name, &p);
        for (uint32_t g = 0; node && g < kv->c.n_groups; g++)
            if (!kv_is_self(kv, g) && !kv_find_ref(kv, node, g)) node = 0;
    }
    f->cross = node;
}

static bool
has_kind(const struct kv *kv, bool self)
{
    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (kv_is_self(kv, g) == self) return true;
    return false;
}

struct kv_found
kv_find(const struct kv *kv, const struct kv_text *t)
{
    struct kv_found f = { 0 };

    if (!kv->c.reuse || !t || kv_text_of_features(t)) return f;
    check(t->n > 0);
    if (has_kind(kv, true)) find_self(kv, t, &f);
    if (has_kind(kv, false) && t->n_source) find_cross(kv, t, &f);
    return f;
}

uint32_t
kv_find_cross_entries(const struct kv *kv, const struct kv_text *t)
{
    return t ? CEIL_DIV(t->n_source, kv->c.tokens_per_block) : 0;
}

uint32_t
kv_find_range(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
              uint32_t group, uint32_t *first)
{
    const struct kv_group *g = &kv->c.group[group];

    *first = 0;
    if (!kv_is_self(kv, group)) return f->cross ? kv_find_cross_entries(kv, t) : 0;
    *first = MIN(kv_kind_first(g, kv->c.tokens_per_block, n_positions(kv, f)), f->depth);
    if (g->kind != KV_STATE || !f->depth) return f->depth;
    *first = g->n_layers; /* the entries after the live state: the first snapshot */
    return 2 * g->n_layers;
}

struct kv_walk
kv_find_walk(const struct kv *kv, const struct kv_text *t, const struct kv_found *f, uint32_t group)
{
    struct kv_walk w = { .group = group };

    w.end = w.entry = kv_find_range(kv, t, f, group, &w.first);
    w.n_sinks = MIN(w.first, kv_kind_sinks(&kv->c.group[group], kv->c.tokens_per_block));
    w.node = kv_is_self(kv, group) ? f->node : f->cross;
    if (kv->c.group[group].kind == KV_STATE) w.entry = w.first;
    return w;
}

bool
kv_walk_next(const struct kv *kv, struct kv_walk *w)
{
    bool begins = !w->ref;

    if (kv->c.group[w->group].kind == KV_STATE) { /* from the first layer to the last */
        w->entry += !begins;
        if (w->entry >= w->end) return false;
        w->ref = begins ? kv_find_ref(kv, w->node, w->group) : kv_blocks(kv)[w->ref - 1].more;
        return true;
    }
    do {
        if (w->entry == (w->n_sinks ? 0 : w->first)) return false;
        if (!begins) w->node = kv_node(kv, w->node)->parent;
        begins = false;
        w->entry--;
    } while (w->entry < w->first && w->entry >= w->n_sinks);
    w->ref = kv_find_ref(kv, w->node, w->group);
    return true;
}

void
kv_find_describe(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                 struct kv_hit *ret)
{
    uint32_t tokens = kv->c.tokens_per_block;

    *ret = (struct kv_hit){ .n_tokens = n_positions(kv, f), .n_full = f->depth, .cross = f->cross };
    if (!kv->c.reuse || !t) return;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        struct kv_walk w = kv_find_walk(kv, t, f, g);

        while (kv_walk_next(kv, &w)) {
            uint32_t block = w.ref - 1;
            bool host_block = kv_is_host_block(kv, block);

            ret->n_host[g] += host_block;
            ret->n_held[g] += !host_block && kv_blocks(kv)[block].state == BLOCK_HELD;
            ret->n_cached[g] += !host_block && kv_blocks(kv)[block].state == BLOCK_CACHED;
        }
    }
    if ((f->depth + 1) * tokens < t->n) {
        struct kv_piece p = kv_piece(kv, t, f->depth, tokens);

        kv_tree_name(f->node ? kv_node(kv, f->node)->key : t->namespace->self, &p, ret->next);
    }
}

void
kv_lookup(const struct kv *kv, const struct kv_text *t, struct kv_hit *ret)
{
    struct kv_found f = kv_find(kv, t);

    kv_find_describe(kv, t, &f, ret);
}

uint32_t
kv_lookup_length(struct kv *kv, const struct kv_text *t, bool with_host_tier)
{
    bool away = kv->host_tier_away;
    struct kv_found f;

    kv->host_tier_away = away && !with_host_tier;
    f = kv_find(kv, t);
    kv->host_tier_away = away;
    return n_positions(kv, &f);
}
