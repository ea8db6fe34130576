/* kv_state.c - allocates recurrent state and takes snapshots of it: see kv_seq.h.
 *
 * A snapshot is one block per layer; its blocks are held and released together. In the tree the
 * blocks form a ring (kv_block.more) and the node has the first layer's block, so that evicting one
 * block evicts all. A copy of the snapshot in the host tier is a ring of host blocks.
 */
#include "worker/kv/kv_seq.h"

#include "worker/kv/kv_evict.h"

uint32_t
kv_border(const struct kv *kv, uint32_t pos, uint32_t n_prompt)
{
    uint32_t tokens = kv->c.tokens_per_block, next, last;

    if (!kv->interval) return UINT32_MAX;
    next = pos / kv->interval < UINT32_MAX / kv->interval ? (pos / kv->interval + 1) * kv->interval
                                                          : UINT32_MAX;
    last = kv->c.reuse && n_prompt ? (n_prompt - 1) / tokens * tokens : 0;
    return last > pos ? MIN(next, last) : next;
}

/* Allocates n_layers entries from `first` on: for the live state, or for a snapshot at pos. */
static void
take_layers(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group, uint32_t first,
            uint32_t pos, struct kv_out *out)
{
    uint32_t *row = kv_table(kv, group, slot);

    for (uint32_t i = first; i < first + kv->c.group[group].n_layers; i++) {
        uint32_t block = kv_pool_take_for(kv, slot, group, lane, out);

        row[i] = block + 1;
        kv_add_edit(out, EDIT_SET, group, slot, i, kv_slice(kv, group, block));
        out->edit[out->n_edits - 1].pos = pos;
    }
}

static void
copy_layers(struct kv *kv, seq_slot slot, uint32_t group, uint32_t from, uint32_t to, bool after,
            struct kv_out *out)
{
    const uint32_t *row = kv_table(kv, group, slot);

    for (uint32_t i = 0; i < kv->c.group[group].n_layers; i++)
        kv_add_copy(kv, group, row[from + i] - 1, row[to + i] - 1, out)->after = after;
}

void
kv_state_grow(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group, struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];

    if (s->end[group] > 0) return;
    s->end[group] = kv->c.group[group].n_layers;
    check(s->end[group] <= s->reserved[group]);
    take_layers(kv, lane, slot, group, 0, 0, out);
}

/* Plans the copy of the hit's snapshot to a new live state. kv_start() adds the edits. */
void
kv_state_start(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group, struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t n = kv->c.group[group].n_layers;

    if (s->first[group] != n) return;
    s->first[group] = 0;
    check(s->end[group] <= s->reserved[group]);
    for (uint32_t i = 0; i < n; i++)
        kv_table(kv, group, slot)[i] = kv_pool_take_for(kv, slot, group, lane, out) + 1;
    copy_layers(kv, slot, group, n, 0, false, out);
}

void
kv_snapshot(struct kv *kv, unsigned lane, seq_slot slot, uint32_t pos, struct kv_out *out)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t ring_index = s->next_snapshot;

    check(s->live && !s->starting && pos % kv->c.tokens_per_block == 0);
    if (!kv->interval) return;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t n = kv->c.group[g].n_layers, first = n * (1 + ring_index);

        if (kv->c.group[g].kind != KV_STATE) continue;
        check(first <= s->end[g]);
        for (uint32_t i = first; i < first + n && s->end[g] > first; i++)
            kv_pool_give(kv, kv_table(kv, g, slot)[i] - 1, s->lane, s->step);
        s->end[g] = MAX(s->end[g], first + n);
        check(s->end[g] <= s->reserved[g]);
        take_layers(kv, lane, slot, g, first, pos, out);
        copy_layers(kv, slot, g, 0, first, true, out);
    }
    s->snapshot[ring_index] = pos;
    s->next_snapshot = (ring_index + 1) % KV_SNAPSHOTS;
}

void
kv_state_store(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t node, uint32_t group,
               uint32_t entry)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];
    struct kv_block *all = kv_blocks(kv);
    uint32_t n = kv->c.group[group].n_layers, ring_index = 0;
    const uint32_t *row;

    if (kv_node(kv, node)->n_tokens < kv->c.tokens_per_block) return;
    while (ring_index < KV_SNAPSHOTS &&
           s->snapshot[ring_index] != (entry + 1) * kv->c.tokens_per_block)
        ring_index++;
    if (ring_index == KV_SNAPSHOTS || kv_node(kv, node)->slot[group]) return;
    row = kv_table(kv, group, slot) + (size_t)n * (1 + ring_index);
    if (all[row[0] - 1].node) return;
    for (uint32_t i = 0; i < n; i++) {
        kv_tree_set_priority(kv, t, row[i] - 1, entry);
        all[row[i] - 1].more = row[(i + 1) % n];
    }
    kv_tree_attach(kv, node, row[0] - 1);
}
