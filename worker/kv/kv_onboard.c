/* kv_onboard.c - see kv_onboard.h. */
#include "worker/kv/kv_onboard.h"

#include "worker/kv/kv_host_tier.h"
#include "worker/kv/kv_internal.h"
#include "worker/kv/kv_pool.h"
#include "worker/kv/kv_tree.h"

/* Plans the copy of a host block to a reserved block and adds the block to the tree. */
static uint32_t
onboard_block(struct kv *kv, uint32_t host_block, unsigned lane, struct kv_out *out)
{
    const struct kv_block *c = &kv_blocks(kv)[host_block];
    uint32_t block = kv_pool_take(kv, c->group, lane, out);
    struct kv_block *b = &kv_blocks(kv)[block];

    kv_wait_block(kv, lane, host_block, out);
    kv_add_copy(kv, c->group, host_block, block, out);
    b->priority = c->priority;
    b->step[lane] = out->step; /* empty until the copy is done */
    b->fill_pending = true;
    kv_tree_attach(kv, c->node, block);
    kv->stats[c->group].onboarded++;
    return block;
}

void
kv_onboard(struct kv *kv, unsigned lane, uint64_t step, seq_slot slot, uint32_t group,
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
            row[i] = onboard_block(kv, host_block, lane, out) + 1;
        }
        kv_host_tier_give(kv, host_block, lane, step);
    }
}
