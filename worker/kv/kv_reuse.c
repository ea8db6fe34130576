/* kv_reuse.c - admits and starts sequences with a prefix hit: see kv_reuse.h.
 *
 * A tail is the partial block of a hit, held from kv_admit() to kv_start(). The owner of a tail is
 * the slot whose reservation pays for it. If the tail is a leaf of the tree, its owner takes the
 * block over in kv_start() and continues in it; before that, the other slots with this tail copy
 * it. The first slot whose hit ends in a cached leaf becomes the owner; each later slot takes the
 * ownership over.
 *
 * A slot with 2 reserved blocks besides the full blocks of its hit may also own a tail that is no
 * leaf ("borrow"). It only copies this tail: one block is for the copy, the other pays for the tail
 * until the copy is planned.
 */
#include "worker/kv/kv_reuse.h"

#include "worker/kv/kv_evict.h"
#include "worker/kv/kv_find.h"

/* What a request with a hit would add to the slab sum (kv_internal.h). */
struct bill {
    uint64_t blocks[MAX_GROUPS]; /* reserved blocks, by group */
    uint64_t hot[MAX_GROUPS];    /* slabs that become hot, by pool */
};

/* Adds the cost of holding a block of the hit to the bill: 1 block if it is cached in a group that
 * counts shared blocks once, or if it is an owned tail: the owner then needs a block for a copy. */
static void
bill_block(struct kv *kv, uint32_t group, uint32_t block, struct bill *bill)
{
    const struct kv_block *b = &kv_blocks(kv)[block];
    struct kv_slab *s;

    if (kv_is_host_block(kv, block)) return; /* hit_fits() bills the block that it is copied to */
    s = &kv_slabs(kv)[kv_slab_of(kv, block)];
    if (b->owner || (b->state == BLOCK_CACHED && kv_counts_once(kv, group))) bill->blocks[group]++;
    if (b->state == BLOCK_HELD || s->n_used > 0 || s->mark == kv->mark) return;
    s->mark = kv->mark;
    bill->hot[kv->c.group[group].pool]++;
}

/* Returns true if a slot with `spare` reserved blocks besides the hit's full blocks may own tail b.
 * borrow: also if it would only copy the tail (head comment). */
static bool
may_own(const struct kv *kv, const struct kv_block *b, bool borrow, uint32_t spare)
{
    if (b->state == BLOCK_HELD && !b->owner) return false;
    return kv_is_leaf(kv, b->node) || (b->state == BLOCK_CACHED && borrow && spare >= 2);
}

static bool
hit_fits(struct kv *kv, const struct kv_need *n, const struct kv_text *t, const struct kv_found *f,
         bool borrow)
{
    uint64_t blocks[MAX_GROUPS] = { 0 }, slabs = 0;
    struct bill bill = { 0 };

    kv->mark++;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        const struct kv_group *k = &kv->c.group[g];
        struct kv_walk w = kv_find_walk(kv, t, f, g);
        uint32_t spare = n->n_blocks[g], host_blocks = 0;

        while (kv_walk_next(kv, &w)) {
            check(spare-- > 0);
            bill_block(kv, g, w.ref - 1, &bill);
            host_blocks += kv_is_host_block(kv, w.ref - 1);
        }
        bill.blocks[g] += kv_counts_once(kv, g) ? spare + host_blocks : n->n_blocks[g];
        if (f->tail && kv_is_self(kv, g)) {
            uint32_t block = kv_node(kv, f->tail)->slot[g] - 1;
            const struct kv_block *b = &kv_blocks(kv)[block];
            bool own = may_own(kv, b, borrow, spare);

            check(spare > 0);
            bill_block(kv, g, block, &bill);
            if (own && kv_counts_once(kv, g)) bill.blocks[g]--;
            if (!own && !kv_counts_once(kv, g)) bill.blocks[g]++;
        }
        if (k->max_blocks && kv->reserved_blocks[g] + bill.blocks[g] > k->max_blocks) return false;
        blocks[k->pool] += bill.blocks[g];
    }
    for (uint32_t p = 0; p < kv->n_pools; p++)
        slabs += MAX(kv_pool_slabs(kv, p, blocks[p]), kv->pool[p].n_hot + bill.hot[p]);
    return slabs <= kv->n_slabs;
}

static void
hold_tail(struct kv *kv, seq_slot slot, const struct kv_text *t, const struct kv_found *f,
          uint32_t group, bool borrow)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t block = kv_node(kv, f->tail)->slot[group] - 1;
    struct kv_block *b = &kv_blocks(kv)[block];
    bool own = may_own(kv, b, borrow, s->reserved[group] - kv_n_entries(kv, s, group));

    kv_pool_hold(kv, group, block);
    if (own && kv_counts_once(kv, group)) kv_charge(kv, group, -1);
    if (!own && !kv_counts_once(kv, group)) kv_charge(kv, group, 1);
    if (own) b->owner = slot + 1;
    s->tail[group] = block + 1;
    if (own) kv_tree_set_priority(kv, t, block, f->depth);
}

static void
hold_hit(struct kv *kv, seq_slot slot, const struct kv_need *n, const struct kv_text *t,
         const struct kv_found *f, bool borrow)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        struct kv_walk w = kv_find_walk(kv, t, f, g);

        s->reserved[g] = n->n_blocks[g];
        s->end[g] = kv_find_range(kv, t, f, g, &s->first[g]);
        kv_charge(kv, g, n->n_blocks[g]);
        while (kv_walk_next(kv, &w)) {
            uint32_t block = w.ref - 1;

            if (kv_is_host_block(kv, block)) {
                kv_host_tier_hold(kv, block);
                s->n_host[g]++;
            } else {
                struct kv_block *b = &kv_blocks(kv)[block];

                kv_pool_hold(kv, g, block);
                if (kv_counts_once(kv, g)) kv_charge(kv, g, -1);
                b->n_hits = MIN(b->n_hits + 1, 15);
            }
            if (kv_is_positions(kv, g)) kv_tree_set_priority(kv, t, block, w.entry);
            if (!kv_is_self(kv, g)) kv_tree_set_priority(kv, t, block, 0);
            if (kv->c.group[g].kind == KV_STATE) kv_tree_set_priority(kv, t, block, f->depth - 1);
            kv_table(kv, g, slot)[w.entry] = block + 1;
            kv->stats[g].shared++;
            s->use.reused++;
        }
        if (f->tail && kv_is_self(kv, g)) hold_tail(kv, slot, t, f, g, borrow);
        s->use.reused += f->tail && kv_is_self(kv, g);
    }
    s->live = true;
    s->starting = f->depth || f->part || f->cross;
    s->cross_stored = f->cross;
    s->part = f->part;
    s->n_stored = f->depth;
    s->snapshot[0] = kv->has_state ? f->depth * kv->c.tokens_per_block : 0;
    s->next_snapshot = kv->has_state && f->depth;
    if (f->depth) kv_tree_pin(kv, f->node, &s->cursor);
}

/* Reduces the hit until hit_fits(): first drops the tail, then all but the encoder input's KV that
 * t->needs_cross requires. Returns false if even that does not fit. */
static bool
fit_hit(struct kv *kv, const struct kv_need *n, const struct kv_text *t, struct kv_found *f,
        bool *borrow)
{
    *borrow = false;
    if (t && t->needs_cross && !f->cross) return false;
    if (hit_fits(kv, n, t, f, false)) return true;
    if (f->tail) {
        *borrow = true;
        if (hit_fits(kv, n, t, f, true)) return true;
        *borrow = false;
        f->tail = f->part = 0;
        if (hit_fits(kv, n, t, f, false)) return true;
    }
    if (!f->depth && !f->cross) return false;
    *f = (struct kv_found){ .cross = t->needs_cross ? f->cross : 0 };
    return hit_fits(kv, n, t, f, false);
}

static void
count_missed(struct kv *kv, seq_slot slot, const struct kv_text *t, const struct kv_found *f)
{
    for (uint32_t g = 0; t && g < kv->c.n_groups; g++) {
        uint32_t all = kv_is_self(kv, g) ? CEIL_DIV(t->n, kv->c.tokens_per_block)
                                         : kv_find_cross_entries(kv, t);
        uint32_t hit = kv_is_self(kv, g) ? f->depth + (f->tail != 0) : f->cross ? all : 0;

        if (kv->c.group[g].kind == KV_STATE) continue;
        kv->stats[g].missed += all - hit;
        kv_seqs(kv)[slot].use.missed += all - hit;
    }
}

int
kv_admit(struct kv *kv, seq_slot slot, const struct kv_need *n, const struct kv_text *t,
         struct kv_hit *ret)
{
    struct kv_found f = kv_find(kv, t);
    bool borrow;

    check(slot < kv->n_rows && !kv_seqs(kv)[slot].live);
    if (!fit_hit(kv, n, t, &f, &borrow)) return -EAGAIN;
    kv_find_describe(kv, t, &f, ret);
    hold_hit(kv, slot, n, t, &f, borrow);
    count_missed(kv, slot, t, &f);
    return 0;
}

int
kv_reserve(struct kv *kv, seq_slot slot, const struct kv_need *n)
{
    struct kv_hit none;

    return kv_admit(kv, slot, n, NULL, &none);
}

/* Plans the copy of the tail's matching tokens to a new block of the slot. */
static void
copy_tail(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane, uint64_t step,
          struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t from = s->tail[group] - 1, to = kv_pool_take_for(kv, slot, group, lane, out);

    kv_table(kv, group, slot)[s->end[group]++] = to + 1;
    kv_add_copy(kv, group, from, to, out)->n_tokens = (uint16_t)s->part;
    kv_blocks(kv)[to].priority = kv_blocks(kv)[from].priority;
    kv->stats[group].copied++;
    kv_give_tail(kv, slot, group, lane, step);
}

/* Plans the copies of the tail for all other slots that have it, before this slot writes to it. */
static void
copy_for_others(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane, uint64_t step,
                struct kv_out *out)
{
    uint32_t tail = kv_seqs(kv)[slot].tail[group];

    for (uint32_t i = 0; i < kv->c.n_slots && kv_blocks(kv)[tail - 1].n_refs > 1; i++) {
        struct kv_seq *s = &kv_seqs(kv)[i];

        if (i == slot || s->tail[group] != tail) continue;
        kv_wait_row(kv, lane, i, out);
        copy_tail(kv, i, group, lane, step, out);
        s->lane = (uint8_t)lane;
        s->step = step;
    }
}

static void
start_tail(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane, uint64_t step,
           struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t block = s->tail[group] - 1, spare = s->reserved[group] - kv_n_entries(kv, s, group);
    struct kv_block *b = &kv_blocks(kv)[block];

    if (b->owner == slot + 1) copy_for_others(kv, slot, group, lane, step, out);
    if (b->owner != slot + 1 || (!kv_is_leaf(kv, b->node) && spare >= 2)) {
        copy_tail(kv, slot, group, lane, step, out);
        return;
    }
    check(b->n_refs == 1);
    kv_wait_block(kv, lane, block, out);
    kv_tree_detach(kv, block, KV_ASKED);
    b->owner = s->tail[group] = 0;
    kv_table(kv, group, slot)[s->end[group]++] = block + 1;
    kv->stats[group].moved++;
}

/* Plans the copy of a host block to a new block, which the caller adds to the tree. */
static uint32_t
copy_from_host(struct kv *kv, seq_slot slot, uint32_t host_block, unsigned lane, struct kv_out *out)
{
    const struct kv_block *c = &kv_blocks(kv)[host_block];
    uint32_t block = kv_pool_take_for(kv, slot, c->group, lane, out);
    struct kv_block *b = &kv_blocks(kv)[block];

    kv_wait_block(kv, lane, host_block, out);
    kv_add_copy(kv, c->group, host_block, block, out);
    b->priority = c->priority;
    b->step[lane] = out->step; /* the step whose copy fills the block */
    b->fill_pending = true;
    kv->stats[c->group].onboarded++;
    return block;
}

/* Does onboard_group() for the snapshot of the hit: the blocks of all layers, or none. */
static void
onboard_state(struct kv *kv, unsigned lane, uint64_t step, seq_slot slot, uint32_t group,
              struct kv_out *out)
{
    uint32_t n = kv->c.group[group].n_layers, *row = kv_table(kv, group, slot) + n;
    uint32_t host_block = row[0] - 1, node = kv_blocks(kv)[host_block].node;
    uint32_t there = kv_node(kv, node)->slot[group];

    for (uint32_t i = 0; i < n; i++) {
        if (there) {
            kv_pool_hold(kv, group, there - 1);
            row[i] = there;
            there = kv_blocks(kv)[there - 1].more;
        } else {
            row[i] = copy_from_host(kv, slot, row[i] - 1, lane, out) + 1;
        }
    }
    for (uint32_t i = 0; i < n && !kv_blocks(kv)[row[0] - 1].node; i++)
        kv_blocks(kv)[row[i] - 1].more = row[(i + 1) % n];
    if (!kv_blocks(kv)[row[0] - 1].node) kv_tree_attach(kv, node, row[0] - 1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t next = kv_blocks(kv)[host_block].more - 1;

        kv_host_tier_give(kv, host_block, lane, step);
        host_block = next;
    }
    kv_seqs(kv)[slot].n_host[group] = 0;
}

/* Replaces every host block in the slot's row of the group by a block of the arena: the one that
 * another sequence has onboarded, or a new one that a copy of this step fills. */
static void
onboard_group(struct kv *kv, unsigned lane, uint64_t step, seq_slot slot, uint32_t group,
              struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t *row = kv_table(kv, group, slot);

    for (uint32_t i = kv_begin(kv, s, group); s->n_host[group] > 0; i = kv_after(kv, s, group, i)) {
        uint32_t host_block = row[i] - 1, there;

        if (!kv_is_host_block(kv, host_block)) continue;
        s->n_host[group]--;
        there = kv_node(kv, kv_blocks(kv)[host_block].node)->slot[group];
        if (there) {
            kv_pool_hold(kv, group, there - 1);
            if (kv_counts_once(kv, group)) kv_charge(kv, group, -1);
            row[i] = there;
        } else {
            row[i] = copy_from_host(kv, slot, host_block, lane, out) + 1;
            kv_tree_attach(kv, kv_blocks(kv)[host_block].node, row[i] - 1);
        }
        kv_host_tier_give(kv, host_block, lane, step);
    }
}

/* Makes the step wait for copies of other lanes that fill blocks of the slot; offloads the blocks
 * of the slot that have KV_SAVE_HITS hits or more. */
static void
start_entries(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane, struct kv_out *out)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];

    for (uint32_t i = s->first[group]; kv->n_host_blocks > 0 && i < s->end[group]; i++) {
        uint32_t block = kv_table(kv, group, slot)[i] - 1;

        if (kv_blocks(kv)[block].fill_pending) kv_wait_block(kv, lane, block, out);
        if (kv_blocks(kv)[block].n_hits >= KV_SAVE_HITS) kv_host_tier_offload(kv, block, lane, out);
    }
}

void
kv_start(struct kv *kv, unsigned lane, uint64_t step, seq_slot slot, struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];

    check(s->live);
    if (!s->starting) return;
    kv_wait_row(kv, lane, slot, out);
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (kv->c.group[g].kind == KV_STATE && s->n_host[g])
            onboard_state(kv, lane, step, slot, g, out);
        else
            onboard_group(kv, lane, step, slot, g, out);
    }
    for (uint32_t g = 0; g < kv->c.n_groups; g++) start_entries(kv, slot, g, lane, out);
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (s->tail[g]) start_tail(kv, slot, g, lane, step, out);
        if (kv->c.group[g].kind == KV_STATE) kv_state_start(kv, lane, slot, g, out);
    }
    kv_rows(kv, slot, out);
    s->starting = false;
}

uint32_t
kv_flush(struct kv *kv, uint32_t max, struct kv_flushed *ret)
{
    uint32_t n = kv_pool_flush(kv, max, &ret->bytes), host;

    host = kv_host_tier_flush(kv, n < max ? max - n : 0, KV_FLUSHED, &ret->host_bytes);
    ret->blocks += n;
    ret->host_blocks += host;
    return n + host;
}

void
kv_add_use(const struct kv *kv, seq_slot slot, struct kv_use *sum)
{
    const struct kv_use *u = &kv_seqs(kv)[slot].use;

    sum->allocated += u->allocated;
    sum->allocated_new += u->allocated_new;
    sum->reused += u->reused;
    sum->missed += u->missed;
}

void
kv_stats(const struct kv *kv, uint32_t group, struct kv_stats *ret)
{
    check(group < kv->c.n_groups);
    *ret = kv->stats[group];
    ret->held = kv->used[group];
    ret->cached = kv->cached[group];
}
