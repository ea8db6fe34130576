/* kv_seq.c - reserves, allocates and frees the blocks of a sequence: see kv_seq.h. */
#include "worker/kv/kv_seq.h"

#include "worker/kv/kv_evict.h"

static bool
reserve_more(struct kv *kv, seq_slot slot, const struct kv_need *more)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint64_t blocks[MAX_GROUPS] = { 0 }, slabs = 0;

    for (uint32_t i = 0; i < kv->c.n_groups; i++) {
        const struct kv_group *g = &kv->c.group[i];

        if (g->max_blocks && kv->reserved_blocks[i] + (uint64_t)more->n_blocks[i] > g->max_blocks)
            return false;
        blocks[g->pool] += more->n_blocks[i];
    }
    for (uint32_t p = 0; p < kv->n_pools; p++) slabs += kv_pool_slabs(kv, p, blocks[p]);
    if (slabs > kv->n_slabs) return false;
    for (uint32_t i = 0; i < kv->c.n_groups; i++) {
        s->reserved[i] += more->n_blocks[i];
        kv_charge(kv, i, more->n_blocks[i]);
    }
    return true;
}

int
kv_raise(struct kv *kv, seq_slot slot, const struct kv_need *n)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];
    struct kv_need more = { { 0 } };

    check(slot < kv->c.n_slots && s->live);
    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (n->n_blocks[g] > s->reserved[g]) more.n_blocks[g] = n->n_blocks[g] - s->reserved[g];
    return reserve_more(kv, slot, &more) ? 0 : -EAGAIN;
}

static void
set_reserved(struct kv *kv, struct kv_seq *s, uint32_t group, uint32_t n)
{
    uint32_t less = s->reserved[group] - n;

    check(n <= s->reserved[group]);
    s->reserved[group] = n;
    kv_charge(kv, group, -(int64_t)less);
}

void
kv_lower(struct kv *kv, seq_slot slot, const struct kv_need *n)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];

    check(s->live);
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t want = MAX(n->n_blocks[g], kv_n_entries(kv, s, g));

        if (want < s->reserved[g]) set_reserved(kv, s, g, want);
    }
}

static void
grow_group(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group, uint32_t end,
           struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t *row = kv_table(kv, group, slot);

    check(end <= kv->c.group[group].max_entries);
    while (s->end[group] < end) {
        uint32_t entry = s->end[group]++, block;

        check(kv_n_entries(kv, s, group) <= s->reserved[group]);
        block = kv_pool_take_for(kv, slot, group, lane, out);
        row[entry] = block + 1;
        kv_add_edit(out, EDIT_SET, group, slot, entry, kv_slice(kv, group, block));
    }
}

bool
kv_has_capacity(const struct kv *kv, seq_slot slot, uint32_t end_pos)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t end = CEIL_DIV(end_pos, kv->c.tokens_per_block);

    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (kv_is_positions(kv, g) && end + kv_n_sinks(kv, s, g) > s->first[g] + s->reserved[g])
            return false;
    return true;
}

void
kv_cross(struct kv *kv, unsigned lane, seq_slot slot, uint32_t n_source, struct kv_out *out)
{
    check(kv_seqs(kv)[slot].live);
    kv_wait_row(kv, lane, slot, out);
    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (kv->c.group[g].kind == KV_CROSS)
            grow_group(kv, lane, slot, g, CEIL_DIV(n_source, kv->c.tokens_per_block), out);
}

void
kv_trim(struct kv *kv, seq_slot slot, uint32_t first_pos, struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];

    check(s->live);
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t first, *row, sinks = kv->sinks[g];

        if (kv->c.group[g].kind != KV_WINDOW) continue;
        first = MIN(kv_kind_first(&kv->c.group[g], kv->c.tokens_per_block, first_pos), s->end[g]);
        row = kv_table(kv, g, slot);
        for (; s->first[g] < first; s->first[g]++) {
            if (s->first[g] < sinks) continue;
            kv_pool_give(kv, row[s->first[g]] - 1, s->lane, s->step);
            row[s->first[g]] = 0;
            kv->stats[g].trimmed++;
            kv_add_edit(out, EDIT_SET, g, slot, s->first[g], SLICE_NONE);
        }
    }
}

void
kv_grow(struct kv *kv, unsigned lane, seq_slot slot, uint32_t end_pos, struct kv_out *out)
{
    uint32_t end = CEIL_DIV(end_pos, kv->c.tokens_per_block);

    check(kv_seqs(kv)[slot].live);
    kv_wait_row(kv, lane, slot, out);
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (kv_is_positions(kv, g)) grow_group(kv, lane, slot, g, end, out);
        if (kv->c.group[g].kind == KV_STATE) kv_state_grow(kv, lane, slot, g, out);
    }
}

void
kv_quiet(const struct kv *kv, seq_slot slot, uint32_t *end_pos, uint32_t *first_pos)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t tokens = kv->c.tokens_per_block;

    *end_pos = *first_pos = UINT32_MAX;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        const struct kv_group *k = &kv->c.group[g];

        if (k->kind == KV_STATE && s->end[g] == 0) *end_pos = 0;
        if (!kv_is_positions(kv, g)) continue;
        *end_pos = MIN(*end_pos, s->end[g] * tokens);
        if (k->kind == KV_WINDOW)
            *first_pos = MIN(*first_pos, (s->first[g] + 1) * tokens + k->window - 1);
    }
}

/* Declares a function inline, because gcc removes calls of functions that only prefetch. */
#define PREFETCHES static inline __attribute__((always_inline)) void

PREFETCHES
prefetch_range(const void *p, size_t bytes)
{
    for (size_t at = 0; at + CACHE_LINE < bytes; at += CACHE_LINE)
        __builtin_prefetch((const char *)p + at, 1);
    __builtin_prefetch((const char *)p + bytes - 1, 1);
}

PREFETCHES
prefetch_entries(const struct kv *kv, const struct kv_soon *soon)
{
    const struct kv_seq *s = &kv_seqs(kv)[soon->slot];

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        const struct kv_group *k = &kv->c.group[g];
        const uint32_t *row = kv_table(kv, g, soon->slot);

        if (soon->go && k->kind == KV_WINDOW) __builtin_prefetch(row + s->first[g], 1);
        if (!soon->go && kv_is_positions(kv, g) && s->end[g] < k->max_entries)
            __builtin_prefetch(row + s->end[g], 1);
    }
}

PREFETCHES
prefetch_blocks(const struct kv *kv, seq_slot slot)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t block;

        if (kv->c.group[g].kind != KV_WINDOW || s->first[g] == s->end[g]) continue;
        block = kv_table(kv, g, slot)[s->first[g]] - 1;
        prefetch_range(&kv_blocks(kv)[block], sizeof(struct kv_block));
        __builtin_prefetch(&kv_slabs(kv)[kv_slab_of(kv, block)], 1);
    }
}

/* Each of 3 passes reads lines that the pass before prefetched. Misses of one pass overlap. */
void
kv_prefetch(const struct kv *kv, const struct kv_soon *soon, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        prefetch_range(&kv_seqs(kv)[soon[i].slot], sizeof(struct kv_seq));
    for (uint32_t i = 0; i < n; i++) prefetch_entries(kv, &soon[i]);
    for (uint32_t i = 0; i < n; i++)
        if (soon[i].go) prefetch_blocks(kv, soon[i].slot);
}

void
kv_give_tail(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane, uint64_t step)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t block = s->tail[group] - 1;
    bool own, freed;

    if (!s->tail[group]) return;
    own = kv_blocks(kv)[block].owner == slot + 1;
    s->tail[group] = 0;
    if (own) kv_blocks(kv)[block].owner = 0;
    freed = kv_pool_give(kv, block, lane, step);
    /* A tail that the slot owns is in its reservation, so it is charged now if other slots keep it.
     * hold_tail() charged any other tail. */
    if (!own && (freed || !kv_counts_once(kv, group))) kv_charge(kv, group, -1);
    if (own && !freed && kv_counts_once(kv, group)) kv_charge(kv, group, 1);
}

/* Releases all blocks of the slot in one group: the last entry first, so that a block is evicted
 * before its parent. A window group releases the first entry first, because a request that
 * continues the sequence needs the last entries. */
static void
drop_group(struct kv *kv, struct kv_seq *s, uint32_t *row, uint32_t group)
{
    bool forward = kv->c.group[group].kind == KV_WINDOW && !kv->c.fifo;
    uint32_t (*next)(const struct kv *, const struct kv_seq *, uint32_t,
                     uint32_t) = forward ? kv_after : kv_before;
    uint32_t entry = forward ? kv_begin(kv, s, group) : kv_before(kv, s, group, s->end[group]);

    for (uint32_t n = kv_n_entries(kv, s, group); n > 0; n--, entry = next(kv, s, group, entry)) {
        if (kv_is_host_block(kv, row[entry] - 1)) { /* kv_start() was not called */
            kv_host_tier_give(kv, row[entry] - 1, s->lane, s->step);
            row[entry] = 0;
            continue;
        }
        if (!kv_pool_give(kv, row[entry] - 1, s->lane, s->step) && kv_counts_once(kv, group))
            kv_charge(kv, group, 1); /* other slots keep the block when this reservation ends */
        row[entry] = 0;
    }
}

void
kv_drop(struct kv *kv, seq_slot slot)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];

    if (!s->live) return;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        kv_give_tail(kv, slot, g, s->lane, s->step);
        drop_group(kv, s, kv_table(kv, g, slot), g);
        set_reserved(kv, s, g, 0);
    }
    kv_tree_pin(kv, 0, &s->cursor);
    if (slot < kv->c.n_slots && !s->ending) /* no device table has a pin */
        kv_end_ring(kv)[(kv->first_end + kv->n_ends++) % kv->c.n_slots] = slot;
    *s = (struct kv_seq){ .step = s->step, .lane = s->lane, .ending = slot < kv->c.n_slots };
}

void
kv_ends(const struct kv *kv, unsigned lane, struct kv_out *out)
{
    for (uint32_t i = 0; i < kv->n_ends; i++) {
        seq_slot slot = kv_end_ring(kv)[(kv->first_end + i) % kv->c.n_slots];

        kv_wait_row(kv, lane, slot, out);
        kv_add_edit(out, EDIT_CLEAR, 0, slot, 0, SLICE_NONE);
    }
}

bool
kv_end(const struct kv *kv, uint32_t i, seq_slot *ret)
{
    if (i >= kv->n_ends) return false;
    *ret = kv_end_ring(kv)[(kv->first_end + i) % kv->c.n_slots];
    return true;
}

void
kv_ends_sent(struct kv *kv, unsigned lane, uint64_t step)
{
    while (kv->n_ends > 0) {
        seq_slot slot = kv_end_ring(kv)[kv->first_end];

        kv_seqs(kv)[slot].ending = false;
        kv_fence(kv, slot, lane, step);
        kv->first_end = (kv->first_end + 1) % kv->c.n_slots;
        kv->n_ends--;
    }
}
