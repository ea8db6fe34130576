/* kv_reuse.c - see kv_reuse.h: what is found, who holds it, when it is copied.
 *
 * A part of a block (a tail) belongs to nobody until its seat is started. The first who wants an unheld
 * leaf owns it, to go on in it; whoever wants it too takes it from him, and he will copy: so the last one
 * goes on in it, after the copies. A seat that needs two blocks more may own what it will only copy
 * from, since it has it back before it needs the second.
 */
#include "worker/kv/kv_reuse.h"

#include "worker/kv/kv_core.h"
#include "worker/kv/kv_host.h"
#include "worker/kv/kv_kind.h"
#include "worker/kv/kv_pool.h"
#include "worker/kv/kv_tree.h"

#include <errno.h>

enum { MAX_CHILDREN = 32 }; /* looked at for a part */

struct found {
    uint32_t node, depth; /* full blocks, and the node they lead to */
    uint32_t tail, part;  /* and tokens of one more */
    uint32_t cross;       /* the last node of the source */
};

/* What a hit costs beside what the seat reserves. */
struct bill {
    uint64_t blocks[MAX_GROUPS];
    uint64_t hot[MAX_GROUPS]; /* slabs, by pool */
};

static bool
is_self(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind != KV_CROSS;
}

static uint32_t
n_positions(const struct kv *kv, const struct found *f)
{
    return f->depth * kv->c.tokens_per_block + f->part;
}

/* First entry of the group that a seat with the hit holds. */
static uint32_t
first_entry(const struct kv *kv, uint32_t group, const struct found *f)
{
    return MIN(kv_kind_first(&kv->c.group[group], kv->c.tokens_per_block, n_positions(kv, f)),
               f->depth);
}

/* The group's block, or the cell that it is fetched from: index + 1; 0: neither. */
static uint32_t
link_of(const struct kv *kv, uint32_t node, uint32_t group)
{
    const struct kv_node *n = kv_node(kv, node);

    if (n->slot[group]) return n->slot[group];
    return kv->fetch ? n->host[group] : 0;
}

static bool
all_slots(const struct kv *kv, uint32_t node, bool self)
{
    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (is_self(kv, g) == self && !kv_node(kv, node)->slot[g]) return false;
    return true;
}

static bool
is_leaf(const struct kv *kv, uint32_t node)
{
    return !kv_node(kv, node)->child;
}

/* Without copies only what nobody holds and nothing hangs below. */
static bool
may_take_part(const struct kv *kv, uint32_t node)
{
    const struct kv_node *n = kv_node(kv, node);

    if (!all_slots(kv, node, true)) return false;
    for (uint32_t g = 0; g < kv->c.n_groups && !kv->c.copy_partial; g++)
        if (is_self(kv, g) &&
            (!is_leaf(kv, node) || kv_blocks(kv)[n->slot[g] - 1].state != BLOCK_CACHED))
            return false;
    return true;
}

/* A window that is whole at the end of a block is whole for all that follows in the next. */
static void
find_part(const struct kv *kv, const struct kv_text *t, struct found *f)
{
    uint32_t tokens = kv->c.tokens_per_block, n = 0;
    uint32_t rest = MIN(t->n - 1 - f->depth * tokens, tokens);
    struct kv_piece p;

    if (rest == 0 || !f->node) return;
    p = kv_piece(kv, t, f->depth, rest);
    for (uint32_t i = kv_node(kv, f->node)->child; i && n < MAX_CHILDREN;
         i = kv_node(kv, i)->next, n++) {
        uint32_t common = kv_tree_common(kv, i, &p);

        if (common <= f->part || !may_take_part(kv, i)) continue;
        f->tail = i;
        f->part = common;
    }
}

/* As deep as every group goes: full ones have no hole, windows have what the next query sees. */
static void
find_self(const struct kv *kv, const struct kv_text *t, struct found *f)
{
    uint32_t tokens = kv->c.tokens_per_block, run[MAX_GROUPS] = { 0 };
    uint32_t node = kv_tree_root(kv, t->space->self), n = (t->n - 1) / tokens;

    f->node = node;
    for (uint32_t i = 0; node && i < n; i++) {
        struct kv_piece p = kv_piece(kv, t, i, tokens);
        bool valid = true;
        uint64_t name[2];

        kv_tree_name(kv_node(kv, node)->key, &p, name);
        node = kv_tree_child(kv, node, name, &p);
        for (uint32_t g = 0; node && g < kv->c.n_groups; g++) {
            const struct kv_group *k = &kv->c.group[g];
            bool has = link_of(kv, node, g);

            if (k->kind == KV_CROSS) continue;
            if (k->kind == KV_FULL && !has) {
                node = 0;
                break;
            }
            run[g] = has ? run[g] + 1 : 0;
            valid = valid && run[g] >= i + 1 - kv_kind_first(k, tokens, (i + 1) * tokens);
        }
        if (!node || !valid) continue;
        f->node = node;
        f->depth = i + 1;
    }
    find_part(kv, t, f);
}

static void
find_cross(const struct kv *kv, const struct kv_text *t, struct found *f)
{
    uint32_t tokens = kv->c.tokens_per_block, node = kv_tree_root(kv, t->space->cross);
    struct kv_text source = { .token = t->source, .n = t->n_source };

    for (uint32_t at = 0; node && at < t->n_source; at += tokens) {
        struct kv_piece p = kv_piece(kv, &source, at / tokens, MIN(tokens, t->n_source - at));
        uint64_t name[2];

        kv_tree_name(kv_node(kv, node)->key, &p, name);
        node = kv_tree_child(kv, node, name, &p);
        for (uint32_t g = 0; node && g < kv->c.n_groups; g++)
            if (!is_self(kv, g) && !link_of(kv, node, g)) node = 0;
    }
    f->cross = node;
}

static bool
has_kind(const struct kv *kv, bool self)
{
    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (is_self(kv, g) == self) return true;
    return false;
}

static struct found
find(const struct kv *kv, const struct kv_text *t)
{
    struct found f = { 0 };

    if (!kv->c.reuse || !t || kv_text_of_features(t)) return f;
    check(t->n > 0);
    if (has_kind(kv, true)) find_self(kv, t, &f);
    if (has_kind(kv, false) && t->n_source) find_cross(kv, t, &f);
    return f;
}

static uint32_t
n_cross(const struct kv *kv, const struct kv_text *t)
{
    return t ? CEIL_DIV(t->n_source, kv->c.tokens_per_block) : 0;
}

/* Entries of the group that the hit fills, and the node of the last one. */
static uint32_t
hit_range(const struct kv *kv, const struct kv_text *t, const struct found *f, uint32_t group,
          uint32_t *first, uint32_t *node)
{
    if (!is_self(kv, group)) {
        *first = 0;
        *node = f->cross;
        return f->cross ? n_cross(kv, t) : 0;
    }
    *first = first_entry(kv, group, f);
    *node = f->node;
    return f->depth;
}

static void
describe(const struct kv *kv, const struct kv_text *t, const struct found *f, struct kv_hit *ret)
{
    uint32_t tokens = kv->c.tokens_per_block;

    *ret = (struct kv_hit){ .n_tokens = n_positions(kv, f), .n_full = f->depth, .cross = f->cross };
    if (!kv->c.reuse || !t) return;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t first, node, end = hit_range(kv, t, f, g, &first, &node);

        for (; end > first; end--, node = kv_node(kv, node)->parent) {
            uint32_t block = link_of(kv, node, g) - 1;
            bool cell = kv_is_cell(kv, block);

            ret->n_host[g] += cell;
            ret->n_held[g] += !cell && kv_blocks(kv)[block].state == BLOCK_HELD;
            ret->n_cached[g] += !cell && kv_blocks(kv)[block].state == BLOCK_CACHED;
        }
    }
    if ((f->depth + 1) * tokens < t->n) {
        struct kv_piece p = kv_piece(kv, t, f->depth, tokens);

        kv_tree_name(f->node ? kv_node(kv, f->node)->key : t->space->self, &p, ret->next);
    }
}

void
kv_lookup(const struct kv *kv, const struct kv_text *t, struct kv_hit *ret)
{
    struct found f = find(kv, t);

    describe(kv, t, &f, ret);
}

/* It was nobody's, or somebody's who has paid for it with what he reserved: then he needs another. */
static void
bill_block(struct kv *kv, uint32_t group, uint32_t block, struct bill *bill)
{
    const struct kv_block *b = &kv_blocks(kv)[block];
    struct kv_slab *s;

    if (kv_is_cell(kv, block)) return; /* it takes a block as if it were computed */
    s = &kv_slabs(kv)[block / kv->stride];
    if (b->owner || (b->state == BLOCK_CACHED && kv_counts_once(kv, group))) bill->blocks[group]++;
    if (b->state == BLOCK_HELD || s->n_used > 0 || s->mark == kv->mark) return;
    s->mark = kv->mark;
    bill->hot[kv->c.group[group].pool]++;
}

/* Whether a seat that has spare blocks to take goes on in the block, or has it back in time. */
static bool
may_own(const struct kv *kv, const struct kv_block *b, bool lend, uint32_t spare)
{
    if (b->state == BLOCK_HELD && !b->owner) return false;
    return is_leaf(kv, b->node) || (b->state == BLOCK_CACHED && lend && spare >= 2);
}

static bool
fits(struct kv *kv, const struct kv_need *n, const struct kv_text *t, const struct found *f,
     bool lend)
{
    uint64_t blocks[MAX_GROUPS] = { 0 }, slabs = 0;
    struct bill bill = { 0 };

    kv->mark++;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        const struct kv_group *k = &kv->c.group[g];
        uint32_t first, node, end = hit_range(kv, t, f, g, &first, &node), spare, cells = 0;

        spare = n->n_blocks[g] - (end - first);
        check(end - first <= n->n_blocks[g]);
        for (; end > first; end--, node = kv_node(kv, node)->parent) {
            bill_block(kv, g, link_of(kv, node, g) - 1, &bill);
            cells += kv_is_cell(kv, link_of(kv, node, g) - 1);
        }
        bill.blocks[g] += kv_counts_once(kv, g) ? spare + cells : n->n_blocks[g];
        if (f->tail && is_self(kv, g)) {
            uint32_t block = kv_node(kv, f->tail)->slot[g] - 1;
            const struct kv_block *b = &kv_blocks(kv)[block];
            bool own = may_own(kv, b, lend, spare);

            check(spare > 0);
            bill_block(kv, g, block, &bill);
            if (own && kv_counts_once(kv, g)) bill.blocks[g]--;
            if (!own && !kv_counts_once(kv, g)) bill.blocks[g]++;
        }
        if (k->max_blocks && kv->promised[g] + bill.blocks[g] > k->max_blocks) return false;
        blocks[k->pool] += bill.blocks[g];
    }
    for (uint32_t p = 0; p < kv->n_pools; p++)
        slabs += MAX(kv_pool_slabs(kv, p, blocks[p]), kv->pool[p].n_hot + bill.hot[p]);
    return slabs <= kv->n_slabs;
}

/* Whoever owned it will copy from it: that takes a block more, which the new holder's bill had. */
static void
share(struct kv *kv, uint32_t group, uint32_t block)
{
    struct kv_block *b = &kv_blocks(kv)[block];

    if (b->owner) kv_charge(kv, group, 1);
    if (b->state == BLOCK_CACHED && kv_counts_once(kv, group)) kv_charge(kv, group, 1);
    b->owner = 0;
    kv_pool_share(kv, block);
}

static void
hold_tail(struct kv *kv, uint32_t seat, const struct kv_text *t, const struct found *f,
          uint32_t group, bool lend)
{
    struct kv_seat *s = &kv_seats(kv)[seat];
    uint32_t block = kv_node(kv, f->tail)->slot[group] - 1;
    struct kv_block *b = &kv_blocks(kv)[block];
    bool own = may_own(kv, b, lend, s->reserved[group] - (s->end[group] - s->first[group]));

    share(kv, group, block);
    if (own && kv_counts_once(kv, group)) kv_charge(kv, group, -1);
    if (!own && !kv_counts_once(kv, group)) kv_charge(kv, group, 1);
    if (own) b->owner = seat + 1;
    s->tail[group] = block + 1;
    if (own) kv_keep_entry(kv, t, block, f->depth);
}

static void
hold(struct kv *kv, uint32_t seat, const struct kv_need *n, const struct kv_text *t,
     const struct found *f, bool lend)
{
    struct kv_seat *s = &kv_seats(kv)[seat];

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t first, node, end = hit_range(kv, t, f, g, &first, &node);

        s->reserved[g] = n->n_blocks[g];
        s->first[g] = first;
        s->end[g] = end;
        kv_charge(kv, g, n->n_blocks[g]);
        for (uint32_t i = end; i > first; i--, node = kv_node(kv, node)->parent) {
            uint32_t block = link_of(kv, node, g) - 1;

            if (kv_is_cell(kv, block)) {
                kv_host_hold(kv, block);
                s->n_host[g]++;
            } else {
                share(kv, g, block);
                if (kv_counts_once(kv, g)) kv_charge(kv, g, -1);
            }
            if (is_self(kv, g)) kv_keep_entry(kv, t, block, i - 1);
            kv_table(kv, g, seat)[i - 1] = block + 1;
        }
        kv->stats[g].shared += end - first;
        if (f->tail && is_self(kv, g)) hold_tail(kv, seat, t, f, g, lend);
    }
    s->live = true;
    s->starting = f->depth || f->part || f->cross;
    s->cross_stored = f->cross;
    s->part = f->part;
    s->n_stored = f->depth;
    if (f->depth) kv_tree_pin(kv, f->node, &s->cursor);
}

/* The hit, less of it where that is what fits. */
static bool
settle(struct kv *kv, const struct kv_need *n, const struct kv_text *t, struct found *f, bool *lend)
{
    *lend = false;
    if (t && t->needs_cross && !f->cross) return false;
    if (fits(kv, n, t, f, false)) return true;
    if (f->tail) {
        *lend = true;
        if (fits(kv, n, t, f, true)) return true;
        *lend = false;
        f->tail = f->part = 0;
        if (fits(kv, n, t, f, false)) return true;
    }
    if (!f->depth && !f->cross) return false;
    *f = (struct found){ .cross = t->needs_cross ? f->cross : 0 };
    return fits(kv, n, t, f, false);
}

static void
count(struct kv *kv, const struct kv_text *t, const struct found *f)
{
    for (uint32_t g = 0; t && g < kv->c.n_groups; g++) {
        uint32_t all = is_self(kv, g) ? CEIL_DIV(t->n, kv->c.tokens_per_block) : n_cross(kv, t);
        uint32_t hit = is_self(kv, g) ? f->depth + (f->tail != 0) : f->cross ? all : 0;

        kv->stats[g].missed += all - hit;
    }
}

int
kv_admit(struct kv *kv, uint32_t seat, const struct kv_need *n, const struct kv_text *t,
         struct kv_hit *ret)
{
    struct found f = find(kv, t);
    bool lend;

    check(seat < kv->c.n_seats && !kv_seats(kv)[seat].live);
    if (!settle(kv, n, t, &f, &lend)) return -EAGAIN;
    describe(kv, t, &f, ret);
    hold(kv, seat, n, t, &f, lend);
    count(kv, t, &f);
    return 0;
}

/* The part of the tail, in a block of the seat's own. */
static void
copy_tail(struct kv *kv, uint32_t seat, uint32_t group, unsigned lane, uint64_t step,
          struct kv_out *out)
{
    struct kv_seat *s = &kv_seats(kv)[seat];
    uint32_t from = s->tail[group] - 1, to = kv_pool_take(kv, group, lane, out);

    kv_table(kv, group, seat)[s->end[group]++] = to + 1;
    check(out->n_copies < out->max_copies);
    out->copy[out->n_copies++] = (struct kv_copy){ .group = (uint8_t)group,
                                                   .n_tokens = (uint16_t)s->part,
                                                   .from = kv_slice(kv, group, from),
                                                   .to = kv_slice(kv, group, to) };
    kv_blocks(kv)[to].priority = kv_blocks(kv)[from].priority;
    kv_blocks(kv)[to].keep = kv_blocks(kv)[from].keep;
    kv->stats[group].copied++;
    kv_give_tail(kv, seat, group, lane, step);
}

/* Those who are yet to copy from what the seat goes on in, before it writes there: with this step. */
static void
copy_for_others(struct kv *kv, uint32_t seat, uint32_t group, unsigned lane, uint64_t step,
                struct kv_out *out)
{
    uint32_t tail = kv_seats(kv)[seat].tail[group];

    for (uint32_t i = 0; i < kv->c.n_seats && kv_blocks(kv)[tail - 1].n_refs > 1; i++) {
        struct kv_seat *s = &kv_seats(kv)[i];

        if (i == seat || s->tail[group] != tail) continue;
        kv_wait_row(kv, lane, i, out);
        copy_tail(kv, i, group, lane, step, out);
        s->lane = (uint8_t)lane;
        s->step = step;
    }
}

static void
start_tail(struct kv *kv, uint32_t seat, uint32_t group, unsigned lane, uint64_t step,
           struct kv_out *out)
{
    struct kv_seat *s = &kv_seats(kv)[seat];
    uint32_t block = s->tail[group] - 1,
             spare = s->reserved[group] - (s->end[group] - s->first[group]);
    struct kv_block *b = &kv_blocks(kv)[block];

    if (b->owner == seat + 1) copy_for_others(kv, seat, group, lane, step, out);
    if (b->owner != seat + 1 || (!is_leaf(kv, b->node) && spare >= 2)) {
        copy_tail(kv, seat, group, lane, step, out);
        return;
    }
    check(b->n_refs == 1);
    kv_pool_wait(kv, block, lane, out->wait);
    kv_tree_detach(kv, block);
    b->owner = s->tail[group] = 0;
    kv_table(kv, group, seat)[s->end[group]++] = block + 1;
    kv->stats[group].moved++;
}

/* Cells of the group's entries become blocks. Where another seat has fetched the same, they share it. */
static void
fetch_entries(struct kv *kv, uint32_t seat, uint32_t group, unsigned lane, uint64_t step,
              struct kv_out *out)
{
    struct kv_seat *s = &kv_seats(kv)[seat];
    uint32_t *row = kv_table(kv, group, seat);

    for (uint32_t i = s->first[group]; s->n_host[group] > 0; i++) {
        uint32_t cell = row[i] - 1, there;

        if (!kv_is_cell(kv, cell)) continue;
        s->n_host[group]--;
        there = kv_node(kv, kv_blocks(kv)[cell].node)->slot[group];
        if (there) {
            share(kv, group, there - 1);
            if (kv_counts_once(kv, group)) kv_charge(kv, group, -1);
            row[i] = there;
        } else {
            row[i] = kv_host_fetch(kv, cell, lane, out) + 1;
        }
        kv_host_give(kv, cell, lane, step);
    }
}

void
kv_start(struct kv *kv, unsigned lane, uint64_t step, uint32_t seat, struct kv_out *out)
{
    struct kv_seat *s = &kv_seats(kv)[seat];

    check(s->live);
    if (!s->starting) return;
    kv_wait_row(kv, lane, seat, out);
    for (uint32_t g = 0; g < kv->c.n_groups; g++) fetch_entries(kv, seat, g, lane, step, out);
    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (s->tail[g]) start_tail(kv, seat, g, lane, step, out);
    kv_rows(kv, seat, out);
    s->starting = false;
}

void
kv_stats(const struct kv *kv, uint32_t group, struct kv_stats *ret)
{
    check(group < kv->c.n_groups);
    *ret = kv->stats[group];
}
