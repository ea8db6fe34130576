/* copy_order.h - groups the copies of a batch into launches.
 *
 * The result is as if the copies were made one after the other. A launch makes its copies in any
 * order and contains copies of one group with the same direction between device and host, so two
 * copies of a launch must not conflict. Two copies conflict if one writes a byte that the other
 * reads or writes. Byte ranges are compared, not addresses, because a slab that changes its pool
 * within a step has blocks of two sizes. No I/O; tests/fuzz/fuzz_reuse.c uses this order.
 */
#pragma once

#include "worker/kv/kv.h"

struct copy_order_bytes { /* by group */
    size_t slice[MAX_GROUPS], block[MAX_GROUPS];
};

/* Sets place[n] in launch order; copies before the step come first. */
void copy_order_sort(const struct kv_copy *copy, uint32_t n, const struct copy_order_bytes *bytes,
                     uint64_t *place);

static inline uint32_t
copy_order_index(uint64_t place)
{
    return (uint32_t)place;
}

/* Number of the launch. */
static inline uint32_t
copy_order_launch(uint64_t place)
{
    return (uint32_t)(place >> 32);
}
