/* copy_order.c - orders the block copies of a batch; see copy_order.h.
 *
 * A wave is a set of copies that do not conflict; a copy is in the first wave after all earlier
 * copies that conflict with it. All blocks that are saved then share one launch and all blocks
 * loaded into their memory share the next, although saves and loads alternate in the batch. A place
 * (sort key) has, from the highest bit: 1 for a copy after the step, wave, KV group, 1 for a copy
 * between tiers (another copy mechanism), index.
 */
#include "worker/exec/copy_order.h"

enum { AFTER_BIT = 63, WAVE_BIT = 36, GROUP_BIT = 33, CROSS_BIT = 32 };

struct range { /* a byte range in the memory of a tier */
    uint64_t first, end;
    uint8_t tier;
};

static struct range
range_of(uint8_t tier, uint8_t group, slice_id at, const struct copy_order_bytes *bytes)
{
    uint64_t first = (uint64_t)at * bytes->slice[group];

    return (struct range){ first, first + bytes->block[group], tier };
}

static bool
meet(const struct range *a, const struct range *b)
{
    return a->tier == b->tier && a->first < b->end && b->first < a->end;
}

static bool
conflict(const struct kv_copy *a, const struct kv_copy *b, const struct copy_order_bytes *bytes)
{
    struct range a_from = range_of(a->from_tier, a->group, a->from, bytes);
    struct range b_from = range_of(b->from_tier, b->group, b->from, bytes);
    struct range a_to = range_of(a->to_tier, a->group, a->to, bytes);
    struct range b_to = range_of(b->to_tier, b->group, b->to, bytes);

    return meet(&a_to, &b_to) || meet(&a_to, &b_from) || meet(&a_from, &b_to);
}

static uint64_t
place_of(const struct kv_copy *c, uint64_t wave, uint32_t i)
{
    return (uint64_t)(c->after != 0) << AFTER_BIT | wave << WAVE_BIT |
           (uint64_t)c->group << GROUP_BIT | (uint64_t)(c->from_tier != c->to_tier) << CROSS_BIT |
           i;
}

static uint64_t
wave_of(uint64_t place)
{
    return place << 1 >> (WAVE_BIT + 1);
}

void
copy_order_sort(const struct kv_copy *copy, uint32_t n, const struct copy_order_bytes *bytes,
                uint64_t *place)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t wave = 0, own;
        uint32_t at = i;

        for (uint32_t k = 0; k < i; k++) {
            const struct kv_copy *before = &copy[copy_order_index(place[k])];

            if (before->after == copy[i].after && wave_of(place[k]) >= wave &&
                conflict(before, &copy[i], bytes))
                wave = wave_of(place[k]) + 1;
        }
        own = place_of(&copy[i], wave, i);
        for (; at > 0 && place[at - 1] > own; at--) place[at] = place[at - 1];
        place[at] = own;
    }
}
