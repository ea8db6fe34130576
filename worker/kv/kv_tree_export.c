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
    slice_id *host = kv_export_hosts(kv);
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
                                    .token = kv_tree_tokens(kv, node),
                                    .host = host };
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t n_host = kv_tree_n_host(&kv->c.group[g]), ref = n->host[g];
        bool filled = true;

        ret->at[g] = SLICE_NONE;
        if (n->slot[g] && kv->c.group[g].kind != KV_STATE) {
            if (is_filled(kv, n->slot[g])) ret->at[g] = kv_slice(kv, g, n->slot[g] - 1);
            again = again || ret->at[g] == SLICE_NONE;
            ret->priority[g] = kv_blocks(kv)[n->slot[g] - 1].priority;
        }
        if (ref) ret->priority[g] = kv_blocks(kv)[ref - 1].priority;
        for (uint32_t i = 0; i < n_host; i++) {
            filled = filled && (!ref || is_filled(kv, ref));
            host[i] = ref ? kv_slice(kv, g, ref - 1) : SLICE_NONE;
            if (ref && kv_blocks(kv)[ref - 1].more) ref = kv_blocks(kv)[ref - 1].more;
        }
        for (uint32_t i = 0; i < n_host && !filled; i++) host[i] = SLICE_NONE;
        again = again || !filled;
        host += n_host;
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

/* Returns the host block with the slice_id `at`; -EBADMSG: none begins there, or it is in use. */
static int
host_block_at(const struct kv *kv, uint32_t group, slice_id at, uint32_t *ret)
{
    uint64_t byte = (uint64_t)at * kv->c.group[group].slice_bytes;
    uint64_t i = byte / MAX(kv->host_block_bytes, UINT64_C(1));

    if (i >= kv->n_host_blocks || byte % kv->host_block_bytes) return -EBADMSG;
    *ret = kv->n_slabs * kv->stride + (uint32_t)i;
    return kv_blocks(kv)[*ret].state == BLOCK_FREE ? 0 : -EBADMSG;
}

/* Checks the host blocks of an adopted node in one group, of a snapshot all or none, and marks them
 * as held by `owner` 1, so that no second place names them. Returns how many it has marked. */
static int
mark_host_blocks(struct kv *kv, const struct kv_tree_export *x, uint32_t group,
                 const slice_id *host, uint32_t *n_marked)
{
    uint32_t n = kv_tree_n_host(&kv->c.group[group]), block;
    bool state = kv->c.group[group].kind == KV_STATE;

    *n_marked = 0;
    if (state && host[0] != SLICE_NONE && x->n_tokens < kv->c.tokens_per_block) return -EBADMSG;
    for (uint32_t i = 0; i < n; i++) {
        if ((host[i] == SLICE_NONE) != (host[0] == SLICE_NONE)) return -EBADMSG;
        if (host[i] == SLICE_NONE) continue;
        TRY(host_block_at(kv, group, host[i], &block));
        if (kv_blocks(kv)[block].owner) return -EBADMSG;
        kv_blocks(kv)[block].owner = 1;
        ++*n_marked;
    }
    return 0;
}

/* Checks the host blocks of all groups. On failure none is marked. */
static int
check_host_blocks(struct kv *kv, const struct kv_tree_export *x)
{
    uint32_t marked[MAX_GROUPS] = { 0 }, block;
    const slice_id *host = x->host;
    int r = 0;

    for (uint32_t g = 0; g < kv->c.n_groups && r == 0; g++) {
        r = mark_host_blocks(kv, x, g, host, &marked[g]);
        host += kv_tree_n_host(&kv->c.group[g]);
    }
    host = x->host;
    for (uint32_t g = 0; g < kv->c.n_groups && r < 0; g++) {
        for (uint32_t i = 0; i < marked[g]; i++)
            if (host_block_at(kv, g, host[i], &block) == 0) kv_blocks(kv)[block].owner = 0;
        host += kv_tree_n_host(&kv->c.group[g]);
    }
    return r;
}

/* Makes a free block a cached one. Blocks queued later are evicted first, so a node's children are
 * evicted before the node. */
static void
make_cached(struct kv *kv, const struct kv_tree_export *x, uint32_t group, uint32_t block)
{
    struct kv_pool *p = &kv->pool[kv->c.group[group].pool];
    struct kv_slab *s;

    kv_blocks(kv)[block] =
        (struct kv_block){ .state = BLOCK_CACHED,
                           .group = (uint8_t)group,
                           .priority = MIN(x->priority[group], KV_PRIORITY_MAX) };
    kv_evict_queue_push_first(kv, block);
    if (kv_is_host_block(kv, block)) {
        kv->n_cached_host_blocks++;
        kv->n_fresh_host_blocks = MAX(kv->n_fresh_host_blocks,
                                      block - kv->n_slabs * kv->stride + 1);
        return;
    }
    s = &kv_slabs(kv)[kv_slab_of(kv, block)];
    if (!s->pool) kv_slab_claim(kv, kv_slab_of(kv, block), kv->c.group[group].pool);
    s->n_cached++;
    p->n_cached++;
    kv->cached[group]++;
}

/* Attaches the host blocks, which are checked, to the adopted node. */
static void
cache_host_blocks(struct kv *kv, const struct kv_tree_export *x)
{
    const slice_id *host = x->host;

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t n = kv_tree_n_host(&kv->c.group[g]), first = 0, prev = 0, block = 0;

        for (uint32_t i = 0; i < n && host[0] != SLICE_NONE; i++, prev = block + 1) {
            check(host_block_at(kv, g, host[i], &block) == 0);
            make_cached(kv, x, g, block);
            if (prev) kv_blocks(kv)[prev - 1].more = block + 1;
            if (!first) first = block + 1;
        }
        if (first && kv->c.group[g].kind == KV_STATE) kv_blocks(kv)[prev - 1].more = first;
        if (first) kv_tree_attach(kv, x->node, first - 1);
        host += n;
    }
}

static bool
has_host_blocks(const struct kv *kv, const struct kv_tree_export *x)
{
    const slice_id *host = x->host;

    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        for (uint32_t i = kv_tree_n_host(&kv->c.group[g]); i > 0; i--)
            if (*host++ != SLICE_NONE) return true;
    return false;
}

int
kv_tree_export_adopt(struct kv *kv, const struct kv_tree_export *x, bool host)
{
    struct kv_piece p = { .token = x->token, .n = x->n_tokens };
    uint32_t block[MAX_GROUPS], group[MAX_GROUPS], n = 0;
    bool any_host = has_host_blocks(kv, x);

    if (!kv->c.reuse) return -EBADMSG;
    TRY(check_node(kv, x));
    if (!x->parent && any_host) return -EBADMSG;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (x->at[g] == SLICE_NONE) continue;
        if (!x->parent || kv->c.group[g].kind == KV_STATE) return -EBADMSG;
        TRY(check_block(kv, x, g, &block[n]));
        group[n++] = g;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++) {
            if (block[i] == block[k]) return -EBADMSG;
            if (kv_slab_of(kv, block[i]) == kv_slab_of(kv, block[k]) &&
                kv->c.group[group[i]].pool != kv->c.group[group[k]].pool)
                return -EBADMSG;
        }
    if (host) TRY(check_host_blocks(kv, x));
    kv->suppress_exports = true; /* the manifest has the node already */
    kv_tree_put(kv, x->node, x->parent, x->key, x->parent ? &p : NULL);
    for (uint32_t i = 0; i < n; i++) {
        if (kv_blocks(kv)[block[i]].state != BLOCK_HELD) make_cached(kv, x, group[i], block[i]);
        kv_tree_attach(kv, x->node, block[i]);
    }
    if (host) cache_host_blocks(kv, x);
    kv->suppress_exports = false;
    kv->n_fresh_nodes = MAX(kv->n_fresh_nodes, x->node);
    if (any_host && !host) kv_tree_note(kv, x->node);
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
