/* kv_host_tier.c - see kv_host_tier.h. */
#include "worker/kv/kv_host_tier.h"

#include "worker/kv/kv_evict_queue.h"
#include "worker/kv/kv_internal.h"
#include "worker/kv/kv_tree.h"

void
kv_host_tier_init(struct kv *kv)
{
    uint64_t bytes = 0, time;

    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (kv->c.group[g].kind != KV_CROSS) bytes += kv->pool[kv->c.group[g].pool].block_bytes;
    kv->n_there = kv->n_cells;
    kv->fetch = true;
    if (!kv->c.host_bandwidth || !kv->c.token_time) return;
    time = (uint64_t)kv->c.token_time * kv->c.tokens_per_block;
    kv->fetch = (double)bytes / (double)kv->c.host_bandwidth * 1e9 < (double)time;
}

void
kv_host_tier_set_size(struct kv *kv, uint64_t bytes)
{
    kv->n_there = (uint32_t)MIN(bytes / MAX(kv->cell_bytes, UINT64_C(1)), kv->n_cells);
    check(kv->n_there >= kv->n_fresh_cells || kv->away);
}

uint64_t
kv_host_tier_used(const struct kv *kv)
{
    return kv->n_fresh_cells * kv->cell_bytes;
}

void
kv_host_tier_away(struct kv *kv)
{
    check(kv->n_held_cells == 0);
    kv->away = true;
}

bool
kv_host_tier_is_away(const struct kv *kv)
{
    return kv->away;
}

void
kv_host_tier_came(struct kv *kv, bool whole)
{
    check(kv->away);
    if (!whole) kv_host_tier_clear(kv);
    kv->away = false;
}

/* What the steps that are out write there, or read, whoever takes the cell waits for. */
uint32_t
kv_host_tier_flush(struct kv *kv, uint32_t max, enum kv_why why, uint64_t *bytes)
{
    uint32_t first = kv->n_slabs * kv->stride, n = 0, at;

    for (; n < max && (at = kv_evict_queue_first(kv, MAX_GROUPS)); n++) {
        struct kv_block *c = &kv_blocks(kv)[at - 1];

        *bytes += kv_block_bytes(&kv->c.group[c->group]);
        kv_evict_queue_remove(kv, at - 1);
        kv->n_cached_cells--;
        kv_tree_detach(kv, at - 1, why);
        c->state = BLOCK_FREE;
        c->coming = false;
        c->prev = 0;
        c->next = kv->first_free_cell;
        kv->first_free_cell = at - first;
        kv->n_free_cells++;
    }
    return n;
}

void
kv_host_tier_clear(struct kv *kv)
{
    uint64_t bytes = 0;

    check(kv->away && kv->n_held_cells == 0);
    kv_host_tier_flush(kv, UINT32_MAX, KV_LOST, &bytes);
}

/* A cell that nobody had, or whose content the host misses least: index + 1; 0: all are being fetched. */
static uint32_t
take_cell(struct kv *kv)
{
    uint32_t first = kv->n_slabs * kv->stride, at;

    if (kv->first_free_cell) {
        at = first + kv->first_free_cell;
        kv->first_free_cell = kv_blocks(kv)[at - 1].next;
        kv->n_free_cells--;
        return at;
    }
    if (kv->n_fresh_cells < kv->n_there) return first + ++kv->n_fresh_cells;
    at = kv_evict_queue_first(kv, MAX_GROUPS);
    if (!at) return 0;
    kv->stats[kv_blocks(kv)[at - 1].group].host_dropped++;
    kv_evict_queue_remove(kv, at - 1);
    kv->n_cached_cells--;
    kv_tree_detach(kv, at - 1, kv_evict_queue_why(kv, at - 1));
    return at;
}

void
kv_host_tier_offload(struct kv *kv, uint32_t block, unsigned lane, struct kv_out *out)
{
    struct kv_block *all = kv_blocks(kv), *b = &all[block], *c;
    uint32_t node = b->node, cell;
    uint64_t step[MAX_LANES];

    if (kv->c.group[b->group].kind == KV_STATE) return; /* a snapshot is dropped */
    if (kv->n_cells == 0 || kv->away) return;
    if (b->priority < KV_OFFLOAD || kv_node(kv, node)->host[b->group]) return;
    if (out->n_copies >= out->max_copies / 2) return; /* the rest is for those who start */
    check(out->step > 0);
    kv_tree_pin(kv, node, &kv->busy); /* what the host drops now may be all that leads there */
    cell = take_cell(kv);
    if (cell) {
        c = &all[cell - 1];
        kv_wait_block(kv, lane, block, out);
        kv_wait_block(kv, lane, cell - 1, out);
        for (unsigned l = 0; l < MAX_LANES; l++) step[l] = l == lane ? out->step : 0;
        *c = (struct kv_block){ .state = BLOCK_CACHED,
                                .group = b->group,
                                .coming = true,
                                .priority = b->priority,
                                .step = { step[0], step[1], step[2] } };
        kv->n_cached_cells++;
        kv_tree_attach(kv, node, cell - 1);
        kv_evict_queue_push(kv, cell - 1);
        kv_add_copy(kv, b->group, block, cell - 1, out);
        /* Others of its slab are free from here on. */
        b->step[lane] = MAX(b->step[lane], out->step);
        kv->stats[b->group].offloaded++;
    }
    kv_tree_pin(kv, 0, &kv->busy);
}

void
kv_host_tier_hold(struct kv *kv, uint32_t cell)
{
    struct kv_block *c = &kv_blocks(kv)[cell];

    if (c->n_refs++ > 0) return;
    kv_evict_queue_remove(kv, cell);
    c->state = BLOCK_HELD;
    kv->n_cached_cells--;
    kv->n_held_cells++;
}

void
kv_host_tier_give(struct kv *kv, uint32_t cell, unsigned lane, uint64_t step)
{
    struct kv_block *c = &kv_blocks(kv)[cell];

    check(c->state == BLOCK_HELD && c->n_refs > 0);
    c->step[lane] = MAX(c->step[lane], step);
    if (--c->n_refs > 0) return;
    c->state = BLOCK_CACHED;
    kv->n_held_cells--;
    kv->n_cached_cells++;
    kv_evict_queue_push(kv, cell);
}
