/* kv_onboard.c - see kv_onboard.h. */
#include "worker/kv/kv_onboard.h"

#include "worker/kv/kv_host_tier.h"
#include "worker/kv/kv_internal.h"
#include "worker/kv/kv_pool.h"
#include "worker/kv/kv_tree.h"

/* Copies the cell to a block of the arena that the sequence has reserved; the tree finds the
 * block from now on. */
static uint32_t
onboard_block(struct kv *kv, uint32_t cell, unsigned lane, struct kv_out *out)
{
    const struct kv_block *c = &kv_blocks(kv)[cell];
    uint32_t block = kv_pool_take(kv, c->group, lane, out);
    struct kv_block *b = &kv_blocks(kv)[block];

    kv_wait_block(kv, lane, cell, out);
    kv_add_copy(kv, c->group, cell, block, out);
    b->priority = c->priority;
    b->step[lane] = out->step; /* it holds nothing before that is done */
    b->coming = true;
    kv_tree_attach(kv, c->node, block);
    kv->stats[c->group].fetched++;
    return block;
}

void
kv_onboard(struct kv *kv, unsigned lane, uint64_t step, seq_slot slot, uint32_t group,
           struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t *row = kv_table(kv, group, slot);

    for (uint32_t i = kv_begin(kv, s, group); s->n_host[group] > 0; i = kv_after(kv, s, group, i)) {
        uint32_t cell = row[i] - 1, there;

        if (!kv_is_cell(kv, cell)) continue;
        s->n_host[group]--;
        there = kv_node(kv, kv_blocks(kv)[cell].node)->slot[group];
        if (there) {
            kv_pool_hold(kv, group, there - 1);
            if (kv_counts_once(kv, group)) kv_charge(kv, group, -1);
            row[i] = there;
        } else {
            row[i] = onboard_block(kv, cell, lane, out) + 1;
        }
        kv_host_tier_give(kv, cell, lane, step);
    }
}
