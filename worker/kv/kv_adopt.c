/* kv_adopt.c - adopts the previous worker's blocks: see kv.h.
 *
 * kv_adopt() sets the pools of slabs, the states of blocks, and all counts. The lists of free
 * blocks and of slabs with a free block are invalid until kv_adopt_end() rebuilds them.
 */
#include "worker/kv/kv_evict.h"
#include "worker/kv/kv_seq.h"
#include "worker/kv/kv_tree_export.h"

/* Returns true if all positions of the entry are written, so that its block does not change. */
static bool
is_full(const struct kv *kv, const struct kv_entry_found *r, uint32_t group, uint32_t entry)
{
    return !kv_is_positions(kv, group) ||
           (entry + 1) * (uint64_t)kv->c.tokens_per_block <= r->committed;
}

/* Returns true if the slot may share the block: it is a full block at the same entry of a slot that
 * was adopted before; without kv_config.reuse, of a slot of the same request. */
static bool
is_shared(const struct kv *kv, const struct kv_entry_found *r, uint32_t group, uint32_t entry,
          uint32_t block)
{
    const struct kv_block *b = &kv_blocks(kv)[block];

    if (b->state != BLOCK_HELD || b->group != group) return false;
    if (!b->owner || !is_full(kv, r, group, entry)) return false;
    if (!kv->c.reuse && kv_seqs(kv)[b->owner - 1].adopted != r->id) return false;
    return kv_table(kv, group, b->owner - 1)[entry] == block + 1;
}

/* Makes the slot hold the block with the slice_id `at` as its entry. During adoption,
 * kv_block.owner is a slot in which the block is full, for is_shared(); 0: the block is partial. */
static int
claim_entry(struct kv *kv, const struct kv_entry_found *r, uint32_t group, uint32_t entry,
            slice_id at)
{
    uint32_t pool = kv->c.group[group].pool, block;
    seq_slot slot = r->slot;
    struct kv_slab *s;
    struct kv_block *b;

    TRY(kv_block_at(kv, group, at, &block));
    s = &kv_slabs(kv)[kv_slab_of(kv, block)];
    b = &kv_blocks(kv)[block];
    if (is_shared(kv, r, group, entry, block)) {
        b->n_refs++;
        kv_table(kv, group, slot)[entry] = block + 1;
        return 0;
    }
    if ((s->pool && s->pool != pool + 1) || b->state != BLOCK_FREE) return -EBADMSG;
    *b = (struct kv_block){
        .state = BLOCK_HELD,
        .n_refs = 1,
        .group = (uint8_t)group,
        .priority = KV_PRIORITY,
        .owner = is_full(kv, r, group, entry) ? slot + 1 : 0,
    };
    if (!s->pool) kv_slab_claim(kv, kv_slab_of(kv, block), pool);
    if (s->n_used++ == 0) kv->pool[pool].n_hot++;
    kv->pool[pool].n_used++;
    kv->used[group]++;
    kv_table(kv, group, slot)[entry] = block + 1;
    return 0;
}

static void
unclaim_entry(struct kv *kv, uint32_t group, seq_slot slot, uint32_t entry)
{
    uint32_t *row = kv_table(kv, group, slot), block = row[entry] - 1;
    struct kv_slab *s = &kv_slabs(kv)[kv_slab_of(kv, block)];
    uint32_t pool = kv->c.group[group].pool;

    row[entry] = 0;
    if (--kv_blocks(kv)[block].n_refs > 0) return;
    kv_blocks(kv)[block] = (struct kv_block){ 0 };
    kv->used[group]--;
    kv->pool[pool].n_used--;
    if (--s->n_used > 0) return;
    s->pool = 0;
    kv->n_drawn--;
    kv->pool[pool].n_slabs--;
    kv->pool[pool].n_hot--;
}

/* Returns the ring index of the last complete snapshot; KV_SNAPSHOTS: no snapshot is complete. */
static uint32_t
last_snapshot(const struct kv *kv, const struct kv_entry_found *r, uint32_t group)
{
    uint32_t n = kv->c.group[group].n_layers, best = KV_SNAPSHOTS;

    for (uint32_t i = 0; i < KV_SNAPSHOTS; i++) {
        if (r->snapshot[i] == 0 || r->snapshot[i] > r->committed) continue;
        if (r->snapshot[i] % kv->c.tokens_per_block || n * (2 + i) > r->n_entries[group]) continue;
        if (best == KV_SNAPSHOTS || r->snapshot[i] > r->snapshot[best]) best = i;
    }
    return best;
}

uint32_t
kv_entry_resume(const struct kv *kv, const struct kv_entry_found *r)
{
    uint32_t pos = r->committed;

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t i = kv->c.group[g].kind == KV_STATE ? last_snapshot(kv, r, g) : 0;

        if (i == KV_SNAPSHOTS) return 0;
        if (kv->c.group[g].kind == KV_STATE) pos = MIN(pos, r->snapshot[i]);
    }
    return pos;
}

/* The slot's entries to adopt in a group. Entry i gets block i + shift of the manifest entry's
 * list; shift skips to the last complete snapshot of recurrent state, else it is 0. */
struct claim {
    uint32_t first, end, shift;
};

static int
check_found(const struct kv *kv, const struct kv_entry_found *r, uint32_t group, struct claim *ret)
{
    const struct kv_group *g = &kv->c.group[group];
    uint32_t tokens = kv->c.tokens_per_block, n = r->n_entries[group], first = 0;
    uint32_t need = kv_kind_entries(g, tokens, r->committed, r->cross_tokens);
    uint32_t sinks = kv_kind_sinks(g, tokens), held;

    if (n > g->max_entries) return -EBADMSG;
    if (g->kind == KV_STATE) {
        *ret = (struct claim){ g->n_layers, 2 * g->n_layers,
                               g->n_layers * last_snapshot(kv, r, group) };
        held = 2 * g->n_layers; /* the snapshot, and the live state that the slot will allocate */
    } else {
        if (n < need || (g->kind == KV_CROSS && n > need)) return -EBADMSG;
        if (g->kind == KV_WINDOW && n > sinks && r->entry[group][sinks] == SLICE_NONE)
            first = sinks;
        while (first >= sinks && first < n && r->entry[group][first] == SLICE_NONE) first++;
        if (first > kv_kind_first(g, tokens, r->committed)) return -EBADMSG;
        *ret = (struct claim){ first, n, 0 };
        held = n - first + MIN(first, sinks);
    }
    if (g->max_blocks && kv->reserved_blocks[group] + (uint64_t)held > g->max_blocks)
        return -EBADMSG;
    return 0;
}

static void
unclaim_before(struct kv *kv, seq_slot slot, uint32_t group, uint32_t end)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];

    for (uint32_t i = kv_begin(kv, s, group); i < end; i = kv_after(kv, s, group, i))
        unclaim_entry(kv, group, slot, i);
    s->first[group] = s->end[group] = 0;
}

static int
claim_group(struct kv *kv, const struct kv_entry_found *r, uint32_t group, const struct claim *c)
{
    struct kv_seq *s = &kv_seqs(kv)[r->slot];

    s->first[group] = c->first;
    s->end[group] = c->end;
    for (uint32_t i = kv_begin(kv, s, group); i < c->end; i = kv_after(kv, s, group, i)) {
        if (claim_entry(kv, r, group, i, r->entry[group][i + c->shift]) == 0) continue;
        unclaim_before(kv, r->slot, group, i);
        return -EBADMSG;
    }
    return 0;
}

int
kv_adopt(struct kv *kv, const struct kv_entry_found *r)
{
    struct kv_seq *s;
    uint32_t used[MAX_GROUPS];
    struct claim c[MAX_GROUPS];

    if (r->slot >= kv->c.n_slots || kv_seqs(kv)[r->slot].live || !r->committed) return -EBADMSG;
    if (kv_entry_resume(kv, r) == 0) return -ENODATA;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) TRY(check_found(kv, r, g, &c[g]));
    s = &kv_seqs(kv)[r->slot];
    s->adopted = r->id;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        used[g] = kv->used[g];
        if (claim_group(kv, r, g, &c[g]) == 0) continue;
        while (g-- > 0) unclaim_before(kv, r->slot, g, s->end[g]);
        return -EBADMSG;
    }
    s->live = true;
    s->snapshot[0] = kv->has_state ? kv_entry_resume(kv, r) : 0;
    s->next_snapshot = kv->has_state;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        s->reserved[g] = kv_n_entries(kv, s, g);
        kv_charge(kv, g, kv_counts_once(kv, g) ? kv->used[g] - used[g] : s->reserved[g]);
    }
    return 0;
}

/* Lists the free blocks below the last held or cached one; those above count as never allocated. */
static void
list_free_blocks(struct kv *kv, uint32_t slab)
{
    struct kv_slab *s = &kv_slabs(kv)[slab];
    struct kv_block *b = &kv_blocks(kv)[(size_t)slab * kv->stride];

    s->n_fresh = kv->pool[s->pool - 1].per_slab;
    while (b[s->n_fresh - 1].state == BLOCK_FREE) s->n_fresh--;
    s->first_free = 0;
    for (uint32_t i = s->n_fresh; i > 0; i--) {
        b[i - 1].owner = 0;
        if (b[i - 1].state != BLOCK_FREE) continue;
        b[i - 1] = (struct kv_block){ .next = s->first_free };
        s->first_free = i;
    }
}

void
kv_adopt_end(struct kv *kv)
{
    struct kv_slab *all = kv_slabs(kv);

    for (uint32_t p = 0; p < kv->n_pools; p++) kv->pool[p].first_open = kv->pool[p].last_open = 0;
    kv->first_slab = kv->last_slab = 0;
    kv->n_fresh = kv->n_slabs;
    while (kv->n_fresh > 0 && !all[kv->n_fresh - 1].pool) kv->n_fresh--;
    for (uint32_t i = kv->n_fresh; i > 0; i--) {
        struct kv_slab *s = &all[i - 1];

        s->prev = s->next = 0;
        if (s->pool) {
            list_free_blocks(kv, i - 1);
            if (s->n_used + s->n_cached < kv->pool[s->pool - 1].per_slab)
                kv_slab_open_first(kv, i - 1);
            if (s->n_used == 0) kv_slab_cold(kv, i - 1);
        } else {
            s->next = kv->first_slab;
            kv->first_slab = i;
            if (!kv->last_slab) kv->last_slab = i;
        }
    }
    kv_tree_export_end(kv);
}

/* Returns true if no other slot holds a block of entry `first` or later, which the slot will write.
 * detach: also removes these blocks from the tree, because the slot may write other tokens. */
static bool
is_sole_holder(struct kv *kv, seq_slot slot, uint32_t first, bool detach)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];

    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        for (uint32_t i = MAX(first, s->first[g]); kv_is_positions(kv, g) && i < s->end[g]; i++) {
            uint32_t block = kv_table(kv, g, slot)[i] - 1;

            if (kv_blocks(kv)[block].n_refs > 1) return false;
            if (detach && kv_blocks(kv)[block].node) kv_tree_detach(kv, block, KV_ASKED);
        }
    return true;
}

int
kv_resume(struct kv *kv, seq_slot slot, uint32_t pos, const struct kv_need *n)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t first = pos / kv->c.tokens_per_block;

    check(slot < kv->c.n_slots && s->live);
    for (uint32_t i = 0; i < kv->c.n_groups; i++) {
        const struct kv_group *g = &kv->c.group[i];

        if (g->kind == KV_STATE && s->snapshot[0] != pos) return -ENODATA;
        if (!kv_is_positions(kv, i)) continue;
        if (s->first[i] > kv_kind_first(g, kv->c.tokens_per_block, pos)) return -ENODATA;
        if (s->end[i] < CEIL_DIV(pos, kv->c.tokens_per_block)) return -ENODATA;
    }
    if (!is_sole_holder(kv, slot, first, /* detach= */ false)) return -ENODATA;
    TRY(kv_raise(kv, slot, n));
    is_sole_holder(kv, slot, first, /* detach= */ true);
    s->starting = true;
    return 0;
}
