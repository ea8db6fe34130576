/* kv_moves.c - queues the edits of block tables, and the copies of table rows and of blocks on the
 * device and in the host tier.
 *
 * Edits and copies take effect in the order of the batch. A launch makes its copies in any order,
 * so two copies of a launch never conflict (copy_order.h). The queue of the lane orders copies and
 * step: a block is saved before the step overwrites it and loaded before the step reads it.
 * If another lane used a block last, batch.wait makes the step wait for that lane.
 */
#include "base/clock.h"
#include "worker/exec/exec_internal.h"

/* True if the edit changes the tables on the device; others concern the manifest only. */
static bool
reaches_device(const struct kv_edit *e)
{
    return e->op == EDIT_SET || e->op == EDIT_COPY;
}

static struct block_copy
row_of(const struct exec *x, const struct kv_edit *e)
{
    slice_id *table = x->tables.table[e->group];
    size_t stride = x->tables.stride[e->group];

    check(e->entry < x->n_slots && e->entry != e->slot);
    return (struct block_copy){ table + e->slot * stride, table + e->entry * stride };
}

static char *
block_at(const struct exec *x, uint8_t tier, uint32_t group, slice_id at)
{
    check(tier == TIER_DEVICE || x->host_kv);
    return (tier == TIER_HOST ? x->host_kv : x->kv) + at * x->bytes.slice[group];
}

static struct block_copy
block_of(const struct exec *x, const struct kv_copy *c)
{
    check(c->group < x->tables.n);
    return (struct block_copy){ block_at(x, c->to_tier, c->group, c->to),
                                block_at(x, c->from_tier, c->group, c->from) };
}

/* Returns copy i in launch order. */
static const struct kv_copy *
copy_at(const struct exec *x, const struct batch *b, uint32_t i)
{
    return &b->copy[copy_order_index(x->place[i])];
}

static bool
conflict(const struct block_copy *a, const struct block_copy *b)
{
    return a->to == b->to || a->to == b->from || a->from == b->to;
}

uint64_t
exec_host_rate(struct exec *x, uint32_t group, slice_id scratch, uint32_t n, uint64_t pitch)
{
    struct exec_lane *l = &x->lane[0];
    struct image *im = &l->stage[0].step;
    struct block_copy *copy, *dev;
    nsec since = 0;

    im->used = 0;
    copy = TAKE_ARRAY(im, struct block_copy, n, &dev);
    for (uint32_t i = 0; i < n; i++)
        copy[i] = (struct block_copy){ block_at(x, TIER_DEVICE, group, scratch),
                                       x->host_kv + i * pitch };
    if (x->op->mem.put(l->lane, im->dev, im->host, im->used) < 0) return 0;
    for (int pass = 0; pass < 2; pass++) { /* the first pass touches the pages */
        since = clock_now();
        for (uint32_t i = 0; i < n; i++)
            if (x->op->mem.copy_blocks(l->lane, dev + i, copy + i, 1,
                                       (struct block_size){ .bytes = x->bytes.block[group] }) < 0)
                return 0;
        if (wait_until_idle(x, l) < 0) return 0;
    }
    since = MAX(clock_now() - since, (nsec)1);
    return (uint64_t)((double)n * (double)x->bytes.block[group] * 1e9 / (double)since);
}

void
stage_moves(struct exec *x, struct image *im, const struct batch *b, struct todo *t)
{
    uint32_t n_sets = 0, n_moves = 0;
    struct table_edit *set;

    for (uint32_t i = 0; i < b->n_edits; i++) {
        n_sets += b->edit[i].op == EDIT_SET;
        t->n_row_moves += b->edit[i].op == EDIT_COPY;
    }
    set = TAKE_ARRAY(im, struct table_edit, n_sets, &t->set);
    t->move_host = TAKE_ARRAY(im, struct block_copy, t->n_row_moves + b->n_copies, &t->move);
    for (const struct kv_edit *e = b->edit; e < b->edit + b->n_edits; e++) {
        if (!reaches_device(e)) continue;
        check(e->group < x->tables.n && e->slot < x->n_slots);
        check(e->op == EDIT_COPY || e->entry < x->tables.stride[e->group]);
        if (e->op == EDIT_SET)
            *set++ = (struct table_edit){ e->group, e->slot, e->entry, e->at };
        else
            t->move_host[n_moves++] = row_of(x, e);
    }
    copy_order_sort(b->copy, b->n_copies, &x->bytes, x->place);
    for (uint32_t i = 0; i < b->n_copies; i++)
        t->move_host[n_moves++] = block_of(x, copy_at(x, b, i));
}

/* Returns how many of the first copies do not conflict with each other. */
static uint32_t
count_independent(const struct block_copy *c, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (conflict(&c[i], &c[k])) return i;
    return n;
}

/* Queues the copies of table rows first .. first + n, `bytes` each. */
static int
queue_row_moves(struct exec *x, struct exec_lane *l, const struct todo *t, uint32_t first,
                uint32_t n, size_t bytes)
{
    for (uint32_t end = first + n, some; first < end; first += some) {
        some = count_independent(t->move_host + first, end - first);
        TRY(x->op->mem.copy_blocks(l->lane, t->move + first, t->move_host + first, some,
                                   (struct block_size){ .bytes = bytes }));
    }
    return 0;
}

int
queue_edits(struct exec *x, struct exec_lane *l, const struct batch *b, const struct todo *t)
{
    uint32_t n_sets = 0, n_moves = 0;

    for (uint32_t i = 0, end; i < b->n_edits; i = end) {
        const struct kv_edit *e = &b->edit[i];
        uint32_t n = 1;

        end = i + 1;
        if (!reaches_device(e)) continue;
        for (; end < b->n_edits; end++) {
            const struct kv_edit *next = &b->edit[end];

            if (!reaches_device(next)) continue;
            if (next->op != e->op || (e->op == EDIT_COPY && next->group != e->group)) break;
            n++;
        }
        if (e->op == EDIT_COPY) {
            TRY(queue_row_moves(x, l, t, n_moves, n,
                                x->tables.stride[e->group] * sizeof(slice_id)));
            n_moves += n;
        } else {
            TRY(x->op->step.update_tables(l->lane, x->tables, t->set + n_sets, n));
            n_sets += n;
        }
    }
    return 0;
}

/* Returns the bytes of a block to copy: within the device only those of used tokens, if known. */
static struct block_size
size_of(const struct exec *x, const struct batch *b, uint32_t first, uint32_t end)
{
    uint32_t group = copy_at(x, b, first)->group, n = 0;
    struct block_size s = { .bytes = x->bytes.block[group] };

    if (!x->per[group].head) return s;
    for (uint32_t i = first; i < end; i++) {
        const struct kv_copy *c = copy_at(x, b, i);

        if (!c->n_tokens || c->from_tier != TIER_DEVICE || c->to_tier != TIER_DEVICE) return s;
        n = MAX(n, (uint32_t)c->n_tokens);
    }
    s.pitch = x->per[group].head;
    s.used = MIN(ROUND_UP(n * x->per[group].token, (size_t)16), s.pitch);
    return s;
}

int
queue_copies(struct exec *x, struct exec_lane *l, const struct batch *b, const struct todo *t,
             bool after)
{
    for (uint32_t first = 0, end; first < b->n_copies; first = end) {
        uint32_t at = t->n_row_moves + first, launch = copy_order_launch(x->place[first]);

        end = first + 1;
        while (end < b->n_copies && copy_order_launch(x->place[end]) == launch) end++;
        if ((copy_at(x, b, first)->after != 0) != after) continue;
        TRY(x->op->mem.copy_blocks(l->lane, t->move + at, t->move_host + at, end - first,
                                   size_of(x, b, first, end)));
    }
    return 0;
}
