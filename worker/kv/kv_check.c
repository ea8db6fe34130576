/* kv_check.c - kv_check(): recomputes all counts and checks every block and list. */
#include "worker/kv/kv_evict.h"

struct kv_tally { /* recomputed counts of one group; own: tails that their slot owns (kv_reuse.c) */
    uint64_t held, cached, nodeless, refs, entries, tails, own, reserved, queued, host_blocks;
};

/* Checks that the block's node refers to it; of a snapshot, that the blocks of its layers form a
 * ring and have equal state and n_refs. */
static void
check_found(const struct kv *kv, uint32_t block)
{
    const struct kv_block *all = kv_blocks(kv), *b = &all[block];
    const struct kv_node *node = kv_node(kv, b->node);
    uint32_t first = (kv_is_host_block(kv, block) ? node->host : node->slot)[b->group], at = first;

    if (kv->c.group[b->group].kind != KV_STATE) {
        check(first == block + 1);
        return;
    }
    for (uint32_t i = 0; i < kv->c.group[b->group].n_layers; i++, at = all[at - 1].more) {
        check(at && (i == 0 || at != first) && all[at - 1].node == b->node);
        check(all[at - 1].group == b->group && all[at - 1].state == b->state);
        check(all[at - 1].n_refs == b->n_refs);
    }
    check(at == first);
}

static void
check_slab(const struct kv *kv, uint32_t slab, struct kv_tally n[MAX_GROUPS])
{
    const struct kv_slab *s = &kv_slabs(kv)[slab];
    const struct kv_block *b = &kv_blocks(kv)[(size_t)slab * kv->stride];
    uint32_t per_slab = kv->pool[s->pool - 1].per_slab, used = 0, cached = 0, on_list = 0;

    for (uint32_t i = 0; i < s->n_fresh; i++) {
        used += b[i].state == BLOCK_HELD || b[i].state == BLOCK_SCRATCH;
        cached += b[i].state == BLOCK_CACHED;
        check(b[i].state == BLOCK_FREE || kv->c.group[b[i].group].pool == s->pool - 1);
        check(b[i].state != BLOCK_FREE || (!b[i].node && !b[i].n_refs));
        check(b[i].state != BLOCK_CACHED || (!b[i].n_refs && (b[i].node || kv->c.fifo)));
        check(!b[i].owner || (b[i].state == BLOCK_HELD && b[i].node));
        if (b[i].node) check_found(kv, slab * kv->stride + i);
        if (b[i].state == BLOCK_HELD) {
            check(b[i].n_refs > 0);
            n[b[i].group].held++;
            n[b[i].group].refs += b[i].n_refs;
        }
        n[b[i].group].cached += b[i].state == BLOCK_CACHED;
        n[b[i].group].nodeless += b[i].state == BLOCK_CACHED && !b[i].node;
    }
    for (uint32_t i = s->first_free; i; i = b[i - 1].next) {
        check(i <= s->n_fresh && b[i - 1].state == BLOCK_FREE);
        check(++on_list <= per_slab);
    }
    check(s->n_fresh <= per_slab && used == s->n_used && cached == s->n_cached);
    check(used + cached + on_list == s->n_fresh);
    check(used + cached > 0); /* an empty slab is returned at once */
}

static void
check_slabs(const struct kv *kv, struct kv_tally n[MAX_GROUPS])
{
    uint32_t drawn = 0, given_back = 0;

    for (uint32_t slab = 0; slab < kv->n_fresh; slab++) {
        if (kv_slabs(kv)[slab].pool == 0) continue;
        check_slab(kv, slab, n);
        drawn++;
    }
    for (uint32_t i = kv->first_slab; i; i = kv_slabs(kv)[i - 1].next) {
        check(i <= kv->n_fresh && kv_slabs(kv)[i - 1].pool == 0 && ++given_back <= kv->n_slabs);
        check(kv_slabs(kv)[i - 1].next || kv->last_slab == i);
    }
    check(drawn == kv->n_drawn && drawn + given_back == kv->n_fresh && kv->n_fresh <= kv->n_slabs);
}

/* Returns how many slots hold the block, as this entry or as their tail. */
static uint32_t
n_holders(const struct kv *kv, uint32_t group, uint32_t entry, uint32_t block)
{
    uint32_t n = 0, last = entry, layers = kv->c.group[group].n_layers;

    /* A snapshot may be at any index of a slot's snapshot ring, so all of them are compared. */
    if (kv->c.group[group].kind == KV_STATE) last = layers * KV_SNAPSHOTS + (entry %= layers);
    for (uint32_t i = 0; i < kv->n_rows; i++) {
        const struct kv_seq *s = &kv_seqs(kv)[i];

        for (uint32_t e = entry; e <= last; e += layers)
            n += kv_has_entry(kv, s, group, e) && kv_table(kv, group, i)[e] == block + 1;
        n += s->tail[group] == block + 1;
    }
    return n;
}

static void
check_slot(const struct kv *kv, seq_slot slot, uint32_t group, struct kv_tally *n)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];
    const struct kv_block *all = kv_blocks(kv);
    const uint32_t *row = kv_table(kv, group, slot);
    uint32_t host_blocks = 0;

    check(s->first[group] <= s->end[group]);
    check(kv_n_entries(kv, s, group) <= s->reserved[group]);
    check(s->live || (s->reserved[group] == 0 && !s->tail[group] && !s->cursor && !s->starting));
    for (uint32_t i = kv_begin(kv, s, group); i < s->end[group]; i = kv_after(kv, s, group, i)) {
        check(row[i] > 0);
        host_blocks += kv_is_host_block(kv, row[i] - 1);
        check(all[row[i] - 1].state == BLOCK_HELD && all[row[i] - 1].group == group);
        check(all[row[i] - 1].n_refs == 1 ||
              all[row[i] - 1].n_refs == n_holders(kv, group, i, row[i] - 1));
        if (kv->c.group[group].kind != KV_STATE && all[row[i] - 1].node)
            check(kv_tree_depth(kv, all[row[i] - 1].node) == i + 1);
    }
    check(host_blocks == s->n_host[group] && (host_blocks == 0 || s->starting));
    if (s->tail[group]) {
        const struct kv_block *b = &all[s->tail[group] - 1];

        check(s->starting && b->state == BLOCK_HELD && b->group == group && b->node);
        check(s->part > 0 && s->part <= kv_node(kv, b->node)->n_tokens);
        n->tails++;
        n->own += b->owner == slot + 1;
    }
    n->entries += kv_n_entries(kv, s, group) - host_blocks;
    n->host_blocks += host_blocks;
    n->reserved += s->reserved[group];
}

static uint64_t
check_queue(const struct kv *kv, uint32_t group, uint64_t max)
{
    const struct kv_evict_queue *q = &kv->queue[group];
    uint64_t n = 0;

    for (unsigned p = 0; p <= KV_PRIORITY_MAX; p++) {
        uint32_t prev = 0;

        check((q->some[p / 64] >> p % 64 & 1) == (q->first[p] != 0));
        for (uint32_t i = q->first[p]; i; prev = i, i = kv_blocks(kv)[i - 1].next) {
            const struct kv_block *b = &kv_blocks(kv)[i - 1];

            check(b->state == BLOCK_CACHED && b->queue == p);
            check(kv_is_host_block(kv, i - 1) ? group == MAX_GROUPS : b->group == group);
            check(b->prev == prev && ++n <= max);
        }
        check(q->last[p] == prev);
    }
    return n;
}

static void
check_host_blocks(const struct kv *kv, const struct kv_tally n[MAX_GROUPS])
{
    uint32_t held = 0, cached = 0, listed = 0;
    uint64_t refs = 0, host_blocks = 0;

    for (uint32_t i = 0; i < kv->n_fresh_host_blocks; i++) {
        const struct kv_block *c = &kv_blocks(kv)[kv->n_slabs * kv->stride + i];

        if (c->state == BLOCK_FREE) continue;
        check_found(kv, kv->n_slabs * kv->stride + i);
        check(c->node && !c->owner && (c->state == BLOCK_HELD || c->state == BLOCK_CACHED));
        check((c->state == BLOCK_HELD) == (c->n_refs > 0));
        held += c->state == BLOCK_HELD;
        cached += c->state == BLOCK_CACHED;
        refs += c->n_refs;
    }
    for (uint32_t g = 0; g < kv->c.n_groups; g++) host_blocks += n[g].host_blocks;
    check(held == kv->n_held_host_blocks && cached == kv->n_cached_host_blocks &&
          refs == host_blocks);
    for (uint32_t i = kv->first_free_host_block; i;
         i = kv_blocks(kv)[kv->n_slabs * kv->stride + i - 1].next)
        check(i <= kv->n_fresh_host_blocks && ++listed <= kv->n_free_host_blocks);
    check(listed == kv->n_free_host_blocks && held + cached + listed == kv->n_fresh_host_blocks);
    check(kv->n_fresh_host_blocks <= (kv->host_tier_away ? kv->n_host_blocks : kv->n_mapped) &&
          kv->n_mapped <= kv->n_host_blocks);
    check(check_queue(kv, MAX_GROUPS, cached) == cached);
}

static void
check_group(const struct kv *kv, uint32_t group, struct kv_tally *n)
{
    const struct kv_group *g = &kv->c.group[group];
    uint64_t reserved_blocks = n->reserved + n->tails - n->own;

    if (kv_counts_once(kv, group)) reserved_blocks = n->held + n->reserved - n->entries - n->own;
    n->queued = check_queue(kv, group, n->cached);
    check(kv_blocks(kv)[kv->scratch[group]].state == BLOCK_SCRATCH);
    check(n->held == kv->used[group] && n->refs == n->entries + n->tails);
    check(n->cached == kv->cached[group] && n->queued == n->cached);
    check(reserved_blocks == kv->reserved_blocks[group] && n->held <= reserved_blocks);
    check(!g->max_blocks || reserved_blocks <= g->max_blocks);
    check(!g->max_blocks || n->held + n->cached <= g->max_blocks);
}

static void
check_pool(const struct kv *kv, uint32_t p, const struct kv_tally n[MAX_GROUPS])
{
    const struct kv_pool *pool = &kv->pool[p];
    uint64_t in_slabs = 0, held = 0, cached = 0, nodeless = 0, reserved_blocks = 0;
    uint32_t slabs = 0, open = 0, listed = 0, hot = 0, cold = 0, cold_listed = 0;

    for (uint32_t slab = 0; slab < kv->n_fresh; slab++) {
        const struct kv_slab *s = &kv_slabs(kv)[slab];

        if (s->pool != p + 1) continue;
        slabs++;
        in_slabs += s->n_used;
        hot += s->n_used > 0;
        cold += s->n_used == 0;
        open += s->n_used + s->n_cached < pool->per_slab;
    }
    for (uint32_t i = pool->first_open; i; i = kv_slabs(kv)[i - 1].next) {
        check(kv_slabs(kv)[i - 1].pool == p + 1 && ++listed <= open);
        check(kv_slabs(kv)[i - 1].next || pool->last_open == i);
    }
    for (uint32_t i = pool->first_cold; i; i = kv_slabs(kv)[i - 1].cold_next) {
        check(kv_slabs(kv)[i - 1].pool == p + 1 && ++cold_listed <= cold);
        check(kv_slabs(kv)[i - 1].cold_next || pool->last_cold == i);
    }
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (kv->c.group[g].pool != p) continue;
        held += n[g].held;
        cached += n[g].cached;
        nodeless += n[g].nodeless;
        reserved_blocks += kv->reserved_blocks[g];
    }
    check(slabs == pool->n_slabs && listed == open && hot == pool->n_hot && cold_listed == cold);
    check(in_slabs == held + pool->n_scratch && held == pool->n_used);
    check(cached == pool->n_cached && nodeless == pool->n_nodeless &&
          reserved_blocks == pool->n_reserved_blocks);
}

void
kv_check(const struct kv *kv)
{
    struct kv_tally n[MAX_GROUPS] = { { 0 } };
    uint64_t needed = 0;
    uint32_t ending = 0, pins = 0, cursors = 0;

    check_slabs(kv, n);
    for (seq_slot slot = 0; slot < kv->n_rows; slot++) {
        ending += kv_seqs(kv)[slot].ending;
        cursors += kv_seqs(kv)[slot].cursor != 0;
        for (uint32_t g = 0; g < kv->c.n_groups; g++) check_slot(kv, slot, g, &n[g]);
    }
    check(ending == kv->n_ends);
    for (uint32_t g = 0; g < kv->c.n_groups; g++) check_group(kv, g, &n[g]);
    check_host_blocks(kv, n);
    for (uint32_t p = 0; p < kv->n_pools; p++) {
        check_pool(kv, p, n);
        needed += kv_pool_slabs(kv, p, 0);
    }
    check(needed <= kv->n_slabs); /* the slab sum (kv_internal.h) holds */
    for (uint32_t i = 1; i <= kv->n_fresh_nodes; i++) pins += kv_node(kv, i)->n_pins;
    check(pins == cursors && !kv->busy_node);
    kv_tree_check(kv);
}
