/* kv_table.c - reads block tables, records the steps that use them: see kv_table.h. */
#include "worker/kv/kv_table.h"

#include "worker/kv/kv_internal.h"

struct kv_copy *
kv_add_copy(const struct kv *kv, uint32_t group, uint32_t from, uint32_t to, struct kv_out *out)
{
    struct kv_copy *c = &out->copy[out->n_copies];

    check(out->n_copies < out->max_copies);
    out->n_copies++;
    *c = (struct kv_copy){ .group = (uint8_t)group,
                           .from_tier = kv_is_host_block(kv, from) ? TIER_HOST : TIER_DEVICE,
                           .to_tier = kv_is_host_block(kv, to) ? TIER_HOST : TIER_DEVICE,
                           .from = kv_slice(kv, group, from),
                           .to = kv_slice(kv, group, to) };
    return c;
}

void
kv_rows(const struct kv *kv, seq_slot slot, struct kv_out *out)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t n = kv->c.group[g].n_layers;

        for (uint32_t i = kv_begin(kv, s, g); i < s->end[g]; i = kv_after(kv, s, g, i)) {
            kv_add_edit(out, EDIT_SET, g, slot, i, kv_entry(kv, slot, g, i));
            if (kv->c.group[g].kind == KV_STATE && i >= n)
                out->edit[out->n_edits - 1].pos = s->snapshot[i / n - 1];
        }
    }
}

bool
kv_live(const struct kv *kv, seq_slot slot)
{
    check(slot < kv->c.n_slots);
    return kv_seqs(kv)[slot].live;
}

uint32_t
kv_n_held(const struct kv *kv, seq_slot slot)
{
    uint32_t n = 0, first;

    for (uint32_t g = 0; g < kv->c.n_groups; g++) n += kv_held(kv, slot, g, &first);
    return n;
}

uint32_t
kv_held(const struct kv *kv, seq_slot slot, uint32_t group, uint32_t *first)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];

    check(slot < kv->c.n_slots && group < kv->c.n_groups);
    *first = s->first[group];
    return kv_n_entries(kv, s, group);
}

slice_id
kv_entry(const struct kv *kv, seq_slot slot, uint32_t group, uint32_t entry)
{
    uint32_t block = kv_table(kv, group, slot)[entry];

    return block && !kv_is_host_block(kv, block - 1) ? kv_slice(kv, group, block - 1) : SLICE_NONE;
}

void
kv_fence(struct kv *kv, seq_slot slot, unsigned lane, uint64_t step)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];

    check(lane < kv->c.n_lanes && step > kv->done[lane]);
    s->lane = (uint8_t)lane;
    s->step = step;
}

void
kv_done(struct kv *kv, unsigned lane, uint64_t step)
{
    check(lane < kv->c.n_lanes && step >= kv->done[lane]);
    kv->done[lane] = step;
}
