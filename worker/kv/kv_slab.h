/* kv_slab.h - slabs: equal pieces of the arena. A pool draws a slab when it has no free block and
 * returns a slab that is empty; memory moves between pools in no other way.
 */
#pragma once

#include "worker/kv/kv.h"

/* Returns a slab for the pool, on the pool's list of slabs with a free block. kv_slab_any() must be
 * true. Prefers a slab that needs no wait on the lane. */
uint32_t kv_slab_draw(struct kv *kv, uint32_t pool, unsigned lane);
bool kv_slab_any(const struct kv *kv); /* a free slab exists */
/* For adoption: assigns the slab to the pool; puts a slab without held blocks on the cold list. */
void kv_slab_claim(struct kv *kv, uint32_t slab, uint32_t pool);
void kv_slab_cold(struct kv *kv, uint32_t slab);

/* Adds `held` and `cached` (may be negative) to the slab's counts, moves the slab to the right
 * lists and returns it when it is empty. */
void kv_slab_count(struct kv *kv, uint32_t slab, int held, int cached);

/* Puts the slab first on its pool's list of slabs with a free block. Because filling nearly full
 * slabs first lets others become empty. */
void kv_slab_open_first(struct kv *kv, uint32_t slab);

/* Writes the number of the block whose first slice is `at` to *ret. -EBADMSG: no block of the
 * group's pool can begin there; *ret is unchanged. */
int kv_block_at(const struct kv *kv, uint32_t group, slice_id at, uint32_t *ret) MUST_USE;
