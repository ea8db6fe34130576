/* kv_pool.h - the blocks of one pool: take one, share one, give one back, never wait in vain.
 *
 * A block that is given back carries the (lane, step) that may still read or write it, of each lane that
 * did. Steps of one lane run in order, so the next step of the same lane may have it at once; a step of
 * another lane may have it once that step is done, or waits for it on the device (batch.h, struct
 * batch_wait). So a fence costs a wait at most, and no block is ever unusable.
 *
 * Where a block comes from: a free one of the pool, a slab that is nobody's, then of cached blocks and of
 * other pools' cold slabs whatever has not been used for longest. A cold slab must be colder by as many releases
 * as it has blocks, so that two pools do not take one from each other in turns.
 *
 * Shares come before age: a pool more than an eighth below its target takes from one that is not, and one more than
 * an eighth above it is taken from by one that is not. In between, and without shares, age decides.
 */
#ifndef KV_POOL_H
#define KV_POOL_H

#include "worker/kv/kv_seq.h"

/* A block of the group, used by the next step of the lane. out->wait[l] is raised to the step of lane l that
 * it must wait for; a copy takes what it held to the host. The caller holds a reservation. */
uint32_t kv_pool_take(struct kv *kv, uint32_t group, unsigned lane, struct kv_out *out);
void kv_pool_share(struct kv *kv, uint32_t block); /* a held or cached one: one holder more */
/* kv_pool_share(), and charges the group for what the block costs beside the holder's reservation: a
 * cached block of a group that counts shared blocks once, and the block that the previous owner of a
 * tail now needs for its copy. */
void kv_pool_hold(struct kv *kv, uint32_t group, uint32_t block);
/* One holder less; true: nobody holds it now. It is cached if the tree has it, and free if not. */
bool kv_pool_give(struct kv *kv, uint32_t block, unsigned lane, uint64_t step);
/* Cached blocks are free, and found by nobody, until they were max; a snapshot goes whole. How many, and *bytes grows by
 * theirs. */
uint32_t kv_pool_flush(struct kv *kv, uint32_t max, uint64_t *bytes);

/* Slabs the pool needs for n blocks beside those it has reserved_blocks; never fewer than hold a held block. */
uint32_t kv_pool_slabs(const struct kv *kv, uint32_t pool, uint64_t n);

#endif
