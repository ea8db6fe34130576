/* kv_pool.h - the blocks of one pool: take, share, give; and slabs: equal pieces of the arena.
 *
 * A pool draws a slab when it has no free block and returns a slab that is empty; memory moves
 * between pools in no other way.
 *
 * A given block carries, per lane, the last step that may still use it. Steps of one lane run in
 * order, so the next step of the same lane may take the block at once. A step of another lane waits
 * on the device for that step (wait[] in batch.h). So a fence costs at most a wait, and
 * every free block is usable.
 *
 * Order of sources: a free block of the pool; a free slab; then the least recently used of the
 * pool's cached blocks and the other pools' cold slabs. A cold slab must be colder by as many
 * releases as it has blocks, so that two pools do not take a slab from each other in turn.
 *
 * Shares precede age: a pool more than 12.5 % below its target takes from a pool that is not, and a
 * pool more than 12.5 % above its target loses slabs first. Within these limits, and without
 * shares, age decides.
 */
#pragma once

#include "worker/kv/kv_seq.h"

/* Returns a block of the group for the planned step of the lane; never fails, because the caller
 * has reserved it. Raises out->wait[] to the steps to wait for. May add a copy that offloads the
 * old contents to the host tier. */
uint32_t kv_pool_take(struct kv *kv, uint32_t group, unsigned lane, struct kv_out *out);
void kv_pool_share(struct kv *kv,
                   uint32_t block); /* one more reference to a held or cached block */
/* kv_pool_share(), and charges the group for what the block costs besides the new holder's
 * reservation: a cached block of a group that counts shared blocks once, and the block that the
 * previous owner of a tail now needs for its copy. */
void kv_pool_hold(struct kv *kv, uint32_t group, uint32_t block);
/* Drops one reference. Returns true if it was the last one: the block is then cached if it is in
 * the tree, otherwise free. */
bool kv_pool_give(struct kv *kv, uint32_t block, unsigned lane, uint64_t step);
/* Evicts and frees cached blocks until at least max are freed or none are left; a snapshot is freed
 * whole. Returns the number of blocks freed and adds their size to *bytes. */
uint32_t kv_pool_flush(struct kv *kv, uint32_t max, uint64_t *bytes);

/* Returns the slabs that the pool needs for n blocks more than it has reserved, at least the slabs
 * with a held block. */
uint32_t kv_pool_slabs(const struct kv *kv, uint32_t pool, uint64_t n);

/* For adoption: assigns the slab to the pool; puts a slab without held blocks on the cold list. */
void kv_slab_claim(struct kv *kv, uint32_t slab, uint32_t pool);
void kv_slab_cold(struct kv *kv, uint32_t slab);

/* Puts the slab first on its pool's list of slabs with a free block. Because filling nearly full
 * slabs first lets others become empty. */
void kv_slab_open_first(struct kv *kv, uint32_t slab);

/* Writes the number of the block whose first slice is `at` to *ret. -EBADMSG: no block of the
 * group's pool can begin there; *ret is unchanged. */
int kv_block_at(const struct kv *kv, uint32_t group, slice_id at, uint32_t *ret) MUST_USE;
