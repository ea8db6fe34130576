/* kv_tree_export.c - see kv_tree_export.h. */
#include "worker/kv/kv_tree_export.h"

#include "worker/kv/kv_evict_queue.h"
#include "worker/kv/kv_internal.h"
#include "worker/kv/kv_slab.h"
#include "worker/kv/kv_tree.h"

#include <errno.h>
#include <string.h>

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

/* What fills it is done. */
static bool
has_come(struct kv *kv, uint32_t link)
{
    struct kv_block *b = &kv_blocks(kv)[link - 1];

    for (unsigned l = 0; b->coming && l < kv->c.n_lanes; l++)
        if (b->step[l] > kv->done[l]) return false;
    b->coming = false;
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
                                    .live = n->live && !n->has_extra, /* those are not told */
                                    .key = { n->key[0], n->key[1] },
                                    .n_tokens = n->n_tokens,
                                    .token = kv_tree_tokens(kv, node) };
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t link[2] = { n->slot[g], n->host[g] };

        for (int host = 0; host < 2; host++) {
            slice_id *at = host ? &ret->host[g] : &ret->at[g];

            *at = SLICE_NONE;
            if (!link[host] || kv->c.group[g].kind == KV_STATE) continue; /* nobody adopts state */
            if (has_come(kv, link[host])) *at = kv_slice(kv, g, link[host] - 1);
            again = again || *at == SLICE_NONE;
            ret->priority[g] = kv_blocks(kv)[link[host] - 1].priority;
        }
    }
    if (again) kv_tree_note(kv, node);
}

static int
check_node(const struct kv *kv, const struct kv_tree_export *l)
{
    struct kv_piece p = { .token = l->token, .n = l->n_tokens };
    uint32_t tokens = kv->c.tokens_per_block;
    const struct kv_node *parent;
    uint64_t name[2];

    if (l->node == 0 || l->node > kv->n_nodes || kv_node(kv, l->node)->live) return -EBADMSG;
    if (l->parent == 0) return l->n_tokens || kv_tree_root(kv, l->key) ? -EBADMSG : 0;
    if (l->parent > kv->n_nodes) return -EBADMSG;
    if (!kv_node(kv, l->parent)->live) return -ENODATA;
    parent = kv_node(kv, l->parent);
    if (parent->parent && parent->n_tokens != tokens) return -EBADMSG;
    if (l->n_tokens == 0 || l->n_tokens > tokens) return -EBADMSG;
    kv_tree_name(parent->key, &p, name);
    if (name[0] != l->key[0] || name[1] != l->key[1]) return -ENODATA;
    return kv_tree_child(kv, l->parent, l->key, &p) ? -EBADMSG : 0;
}

/* A block that nobody has, or a row in which it is full and stands where the tree has it. */
static int
check_block(const struct kv *kv, const struct kv_tree_export *l, uint32_t group, uint32_t *block)
{
    const struct kv_group *g = &kv->c.group[group];
    const struct kv_block *b;
    const struct kv_slab *s;

    TRY(kv_block_at(kv, group, l->at[group], block));
    b = &kv_blocks(kv)[*block];
    s = &kv_slabs(kv)[kv_slab_of(kv, *block)];
    if (b->node || (s->pool && s->pool != g->pool + 1)) return -EBADMSG;
    if (b->state == BLOCK_FREE && g->max_blocks &&
        kv->reserved_blocks[group] + kv->cached[group] >= g->max_blocks)
        return -ENODATA;
    if (b->state == BLOCK_FREE) return 0;
    if (b->state != BLOCK_HELD || b->group != group) return -EBADMSG;
    if (!b->owner) return -ENODATA; /* its end: the row is told of it with the next launch */
    if (kv_is_self(kv, group) && l->n_tokens < kv->c.tokens_per_block) return -EBADMSG;
    if (kv_table(kv, group, b->owner - 1)[kv_tree_depth(kv, l->parent)] != *block + 1)
        return -EBADMSG;
    return 0;
}

static int
check_cell(const struct kv *kv, const struct kv_tree_export *l, uint32_t group, uint32_t *cell)
{
    uint64_t byte = (uint64_t)l->host[group] * kv->c.group[group].slice_bytes;
    uint64_t i = byte / MAX(kv->cell_bytes, UINT64_C(1));

    if (i >= kv->n_cells || byte % kv->cell_bytes) return -EBADMSG;
    *cell = kv->n_slabs * kv->stride + (uint32_t)i;
    return kv_blocks(kv)[*cell].state == BLOCK_FREE ? 0 : -EBADMSG;
}

/* Found, and nobody's. Who comes later is taken first, so that what leads somewhere outlives it. */
static void
cache(struct kv *kv, const struct kv_tree_export *l, uint32_t group, uint32_t block)
{
    struct kv_block *b = &kv_blocks(kv)[block];
    struct kv_pool *p = &kv->pool[kv->c.group[group].pool];
    struct kv_slab *s = &kv_slabs(kv)[kv_slab_of(kv, block)];

    if (b->state == BLOCK_HELD) {
        kv_tree_attach(kv, l->node, block);
        return;
    }
    *b = (struct kv_block){ .state = BLOCK_CACHED,
                            .group = (uint8_t)group,
                            .priority = MIN(l->priority[group], KV_PRIORITY_MAX) };
    kv_tree_attach(kv, l->node, block);
    kv_evict_queue_push_first(kv, block);
    if (kv_is_cell(kv, block)) {
        kv->n_cached_cells++;
        kv->n_fresh_cells = MAX(kv->n_fresh_cells, block - kv->n_slabs * kv->stride + 1);
        return;
    }
    if (!s->pool) kv_slab_claim(kv, kv_slab_of(kv, block), kv->c.group[group].pool);
    s->n_cached++;
    p->n_cached++;
    kv->cached[group]++;
}

int
kv_tree_export_adopt(struct kv *kv, const struct kv_tree_export *l, bool host)
{
    struct kv_piece p = { .token = l->token, .n = l->n_tokens };
    uint32_t block[2 * MAX_GROUPS], group[2 * MAX_GROUPS], n = 0;
    bool less = false;

    if (!kv->c.reuse) return -EBADMSG;
    TRY(check_node(kv, l));
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (kv->c.group[g].kind == KV_STATE) continue;
        if (!l->parent && (l->at[g] != SLICE_NONE || l->host[g] != SLICE_NONE)) return -EBADMSG;
        if (l->at[g] != SLICE_NONE) {
            TRY(check_block(kv, l, g, &block[n]));
            group[n++] = g;
        }
        less = less || (l->host[g] != SLICE_NONE && !host);
        if (l->host[g] != SLICE_NONE && host) {
            TRY(check_cell(kv, l, g, &block[n]));
            group[n++] = g;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++) {
            if (block[i] == block[k]) return -EBADMSG;
            if (kv_slab_of(kv, block[i]) == kv_slab_of(kv, block[k]) && !kv_is_cell(kv, block[i]) &&
                kv->c.group[group[i]].pool != kv->c.group[group[k]].pool)
                return -EBADMSG;
        }
    kv->quiet = true; /* it is told already */
    kv_tree_put(kv, l->node, l->parent, l->key, l->parent ? &p : NULL);
    for (uint32_t i = 0; i < n; i++) cache(kv, l, group[i], block[i]);
    kv->quiet = false;
    kv->n_fresh_nodes = MAX(kv->n_fresh_nodes, l->node);
    if (less) kv_tree_note(kv, l->node);
    return 0;
}

void
kv_tree_export_end(struct kv *kv)
{
    struct kv_block *cells = &kv_blocks(kv)[(size_t)kv->n_slabs * kv->stride];

    for (uint32_t i = kv->n_fresh_cells; i > 0; i--) {
        if (cells[i - 1].state != BLOCK_FREE) continue;
        cells[i - 1].next = kv->first_free_cell;
        kv->first_free_cell = i;
        kv->n_free_cells++;
    }
    for (uint32_t i = kv->n_fresh_nodes; i > 0; i--) {
        if (kv_node(kv, i)->live) continue;
        kv_node(kv, i)->next = kv->first_free_node;
        kv->first_free_node = i;
    }
    for (uint32_t i = kv->n_fresh_nodes; i > 0; i--)
        if (kv_node(kv, i)->live) kv_tree_prune(kv, i);
}
