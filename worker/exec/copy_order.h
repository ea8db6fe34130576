/* copy_order.h - groups the block copies of a batch into launches (calls of copy_blocks()).
 *
 * The result is as if the copies were made one after the other. A launch makes its copies in any
 * order, so two copies of a launch must not conflict: neither writes a byte that the other reads or
 * writes. The copies of a launch are of one KV group and of one direction between device and host.
 * Byte ranges are compared, not addresses, because a slab that changes its pool within a step has
 * blocks of two sizes. No I/O; tests/fuzz/fuzz_reuse.c uses this order.
 */
#pragma once
#include "worker/kv/kv.h"

struct copy_order_bytes { /* bytes of a slice and of a block, by KV group */
    size_t slice[MAX_GROUPS], block[MAX_GROUPS];
};

/* Sets place[n], the copies in launch order; those before the work of the step come first. */
void copy_order_sort(const struct kv_copy *copy, uint32_t n, const struct copy_order_bytes *bytes,
                     uint64_t *place);

static inline uint32_t
copy_order_index(uint64_t place)
{
    return (uint32_t)place;
}

/* Returns a number that is equal for the copies of one launch. */
static inline uint32_t
copy_order_launch(uint64_t place)
{
    return (uint32_t)(place >> 32);
}
