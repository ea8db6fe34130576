/* kv_tree_export.c - exports changed nodes and adopts nodes: see kv_tree_export.h. */
#include "worker/kv/kv_tree_export.h"

#include "worker/kv/kv_evict.h"

bool
kv_tree_export_known(const struct kv *kv, uint32_t node)
{
    return kv_node(kv, node)->live;
}

uint32_t
kv_tree_n_exports(const struct kv *kv)
{
    return kv->n_changed;
}

/* Returns true if the block is filled: no copy fills it, or that copy is done. */
static bool
is_filled(struct kv *kv, uint32_t ref)
{
    struct kv_block *b = &kv_blocks(kv)[ref - 1];

    for (unsigned l = 0; b->fill_pending && l < kv->c.n_lanes; l++)
        if (b->step[l] > kv->done[l]) return false;
    b->fill_pending = false;
    return true;
}

void
kv_tree_export_take(struct kv *kv, struct kv_tree_export *ret)
{
    uint32_t node = kv->first_changed;
    struct kv_node *n = kv_node(kv, node);
    bool again = false;

    check(node);
    kv->first_changed = n->next_changed;
    if (!kv->first_changed) kv->last_changed = 0;
    kv->n_changed--;
    n->changed = false;
    *ret = (struct kv_tree_export){ .node = node,
                                    .parent = n->parent,
                                    .live = n->live && !n->has_extra, /* extra: not exported */
                                    .key = { n->key[0], n->key[1] },
                                    .n_tokens = n->n_tokens,
                                    .token = kv_tree_tokens(kv, node) };
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t ref[2] = { n->slot[g], n->host[g] };

        for (int host = 0; host < 2; host++) {
            slice_id *at = host ? &ret->host[g] : &ret->at[g];

            *at = SLICE_NONE;
            if (!ref[host] || kv->c.group[g].kind == KV_STATE) continue; /* no export of state */
            if (is_filled(kv, ref[host])) *at = kv_slice(kv, g, ref[host] - 1);
            again = again || *at == SLICE_NONE;
            ret->priority[g] = kv_blocks(kv)[ref[host] - 1].priority;
        }
    }
    if (again) kv_tree_note(kv, node);
}

static int
check_node(const struct kv *kv, const struct kv_tree_export *x)
{
    struct kv_piece p = { .token = x->token, .n = x->n_tokens };
    uint32_t tokens = kv->c.tokens_per_block;
    const struct kv_node *parent;
    uint64_t name[2];

    if (x->node == 0 || x->node > kv->n_nodes || kv_node(kv, x->node)->live) return -EBADMSG;
    if (x->parent == 0) return x->n_tokens || kv_tree_root(kv, x->key) ? -EBADMSG : 0;
    if (x->parent > kv->n_nodes) return -EBADMSG;
    if (!kv_node(kv, x->parent)->live) return -ENODATA;
    parent = kv_node(kv, x->parent);
    if (parent->parent && parent->n_tokens != tokens) return -EBADMSG;
    if (x->n_tokens == 0 || x->n_tokens > tokens) return -EBADMSG;
    kv_tree_name(parent->key, &p, name);
    if (name[0] != x->key[0] || name[1] != x->key[1]) return -ENODATA;
    return kv_tree_child(kv, x->parent, x->key, &p) ? -EBADMSG : 0;
}

/* Checks the block of an adopted node: it is free, or full in an adopted slot at the same depth. */
static int
check_block(const struct kv *kv, const struct kv_tree_export *x, uint32_t group, uint32_t *block)
{
    const struct kv_group *g = &kv->c.group[group];
    const struct kv_block *b;
    const struct kv_slab *s;

    TRY(kv_block_at(kv, group, x->at[group], block));
    b = &kv_blocks(kv)[*block];
    s = &kv_slabs(kv)[kv_slab_of(kv, *block)];
    if (b->node || (s->pool && s->pool != g->pool + 1)) return -EBADMSG;
    if (b->state == BLOCK_FREE && g->max_blocks &&
        kv->reserved_blocks[group] + kv->cached[group] >= g->max_blocks)
        return -ENODATA;
    if (b->state == BLOCK_FREE) return 0;
    if (b->state != BLOCK_HELD || b->group != group) return -EBADMSG;
    if (!b->owner) return -ENODATA; /* partial in a slot whose EDIT_CLEAR is missing (kv_adopt.c) */
    if (kv_is_self(kv, group) && x->n_tokens < kv->c.tokens_per_block) return -EBADMSG;
    if (kv_table(kv, group, b->owner - 1)[kv_tree_depth(kv, x->parent)] != *block + 1)
        return -EBADMSG;
    return 0;
}

static int
check_host_block(const struct kv *kv, const struct kv_tree_export *x, uint32_t group,
                 uint32_t *host_block)
{
    uint64_t byte = (uint64_t)x->host[group] * kv->c.group[group].slice_bytes;
    uint64_t i = byte / MAX(kv->host_block_bytes, UINT64_C(1));

    if (i >= kv->n_host_blocks || byte % kv->host_block_bytes) return -EBADMSG;
    *host_block = kv->n_slabs * kv->stride + (uint32_t)i;
    return kv_blocks(kv)[*host_block].state == BLOCK_FREE ? 0 : -EBADMSG;
}

/* Attaches the block to the node, as cached if no slot holds it. Blocks attached later are evicted
 * first, so a node's children are evicted before the node. */
static void
cache_block(struct kv *kv, const struct kv_tree_export *x, uint32_t group, uint32_t block)
{
    struct kv_block *b = &kv_blocks(kv)[block];
    struct kv_pool *p = &kv->pool[kv->c.group[group].pool];
    struct kv_slab *s = &kv_slabs(kv)[kv_slab_of(kv, block)];

    if (b->state == BLOCK_HELD) {
        kv_tree_attach(kv, x->node, block);
        return;
    }
    *b = (struct kv_block){ .state = BLOCK_CACHED,
                            .group = (uint8_t)group,
                            .priority = MIN(x->priority[group], KV_PRIORITY_MAX) };
    kv_tree_attach(kv, x->node, block);
    kv_evict_queue_push_first(kv, block);
    if (kv_is_host_block(kv, block)) {
        kv->n_cached_host_blocks++;
        kv->n_fresh_host_blocks = MAX(kv->n_fresh_host_blocks,
                                      block - kv->n_slabs * kv->stride + 1);
        return;
    }
    if (!s->pool) kv_slab_claim(kv, kv_slab_of(kv, block), kv->c.group[group].pool);
    s->n_cached++;
    p->n_cached++;
    kv->cached[group]++;
}

int
kv_tree_export_adopt(struct kv *kv, const struct kv_tree_export *x, bool host)
{
    struct kv_piece p = { .token = x->token, .n = x->n_tokens };
    uint32_t block[2 * MAX_GROUPS], group[2 * MAX_GROUPS], n = 0;
    bool less = false;

    if (!kv->c.reuse) return -EBADMSG;
    TRY(check_node(kv, x));
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (kv->c.group[g].kind == KV_STATE) continue;
        if (!x->parent && (x->at[g] != SLICE_NONE || x->host[g] != SLICE_NONE)) return -EBADMSG;
        if (x->at[g] != SLICE_NONE) {
            TRY(check_block(kv, x, g, &block[n]));
            group[n++] = g;
        }
        less = less || (x->host[g] != SLICE_NONE && !host);
        if (x->host[g] != SLICE_NONE && host) {
            TRY(check_host_block(kv, x, g, &block[n]));
            group[n++] = g;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++) {
            if (block[i] == block[k]) return -EBADMSG;
            if (kv_slab_of(kv, block[i]) == kv_slab_of(kv, block[k]) &&
                !kv_is_host_block(kv, block[i]) &&
                kv->c.group[group[i]].pool != kv->c.group[group[k]].pool)
                return -EBADMSG;
        }
    kv->suppress_exports = true; /* the manifest has the node already */
    kv_tree_put(kv, x->node, x->parent, x->key, x->parent ? &p : NULL);
    for (uint32_t i = 0; i < n; i++) cache_block(kv, x, group[i], block[i]);
    kv->suppress_exports = false;
    kv->n_fresh_nodes = MAX(kv->n_fresh_nodes, x->node);
    if (less) kv_tree_note(kv, x->node);
    return 0;
}

void
kv_tree_export_end(struct kv *kv)
{
    struct kv_block *host_blocks = &kv_blocks(kv)[(size_t)kv->n_slabs * kv->stride];

    for (uint32_t i = kv->n_fresh_host_blocks; i > 0; i--) {
        if (host_blocks[i - 1].state != BLOCK_FREE) continue;
        host_blocks[i - 1].next = kv->first_free_host_block;
        kv->first_free_host_block = i;
        kv->n_free_host_blocks++;
    }
    for (uint32_t i = kv->n_fresh_nodes; i > 0; i--) {
        if (kv_node(kv, i)->live) continue;
        kv_node(kv, i)->next = kv->first_free_node;
        kv->first_free_node = i;
    }
    for (uint32_t i = kv->n_fresh_nodes; i > 0; i--)
        if (kv_node(kv, i)->live) kv_tree_prune(kv, i);
}
