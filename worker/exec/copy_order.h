/* copy_order.h - in which launches the copies of a batch go.
 *
 * They take effect as if one after another. A launch does its own in any order, and has those of one group that
 * go the same way between device and host; so no two of one launch have to do with each other. Two have where
 * one writes what the other reads or writes: any byte of it, since a slab that changes its pool within a step has
 * blocks of two sizes, which meet without beginning alike. Pure; tests/fuzz/fuzz_reuse.c does copies in this order.
 */
#ifndef EXEC_COPY_ORDER_H
#define EXEC_COPY_ORDER_H

#include "worker/kv/kv.h"

struct copy_order_bytes { /* by group */
    size_t slice[MAX_GROUPS], block[MAX_GROUPS];
};

/* place: [n] in the order of launches, those before the step first. */
void copy_order_sort(const struct kv_copy *copy, uint32_t n, const struct copy_order_bytes *bytes,
                     uint64_t *place);

static inline uint32_t
copy_order_index(uint64_t place)
{
    return (uint32_t)place;
}

/* Names the launch. */
static inline uint32_t
copy_order_launch(uint64_t place)
{
    return (uint32_t)(place >> 32);
}

#endif
