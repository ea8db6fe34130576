/* kv_evict.h - allocates and evicts blocks: the prefix tree, the queues of cached blocks, the host
 * tier and the pools. For the files of worker/kv alone.
 *
 * kv_internal.h defines ref, slab, cold and hot slabs, and the states of a block.
 */
#pragma once
#include "worker/kv/kv_internal.h"

/* kv_evict_queue.c: queues of cached blocks in eviction order.
 *
 * There is one queue per group and one for host blocks. The block of the lowest retention priority
 * is evicted first; within a priority, the block that was released first. Orphans (cached blocks
 * that no lookup can reach) precede all other blocks: they are at the front of priority 0. */

/* Adds the block to its queue as the last of its priority, or as the first. */
void kv_evict_queue_push(struct kv *kv, uint32_t block);
void kv_evict_queue_push_first(struct kv *kv, uint32_t block);
void kv_evict_queue_push_orphan(struct kv *kv, uint32_t block); /* makes a queued block an orphan */
void kv_evict_queue_remove(struct kv *kv, uint32_t block);
/* Returns the ref of the block that the group evicts next, without removing it; group MAX_GROUPS:
 * the next host block. 0: the queue is empty. */
uint32_t kv_evict_queue_first(const struct kv *kv, uint32_t group);
/* Returns KV_ORPHAN if the queued block is an orphan, else KV_PRESSURE. */
enum kv_why kv_evict_queue_why(const struct kv *kv, uint32_t block);
/* Returns true if a is evicted before b. */
bool kv_evict_queue_before(const struct kv_block *a, const struct kv_block *b);

/* kv_tree.c: the prefix tree. A node has the tokens of one block, and the KV blocks of the groups
 * for these tokens, computed after the tokens of its ancestors.
 *
 * The name of a node is the XXH3-128 hash of its tokens, seeded with its parent's name; a root's is
 * hashed with a secret. A lookup compares parent and tokens too. The children of a node have the
 * tokens of the next block; a partial block has no children. Nodes are passed as refs. */

struct kv_piece { /* the n tokens of one block, or the first n tokens of a partial block */
    const token_id *token;
    const uint64_t *extra; /* extra ids of the tokens (kv_text.extra); NULL: all are 0 */
    uint32_t n;
};
struct kv_piece kv_piece(const struct kv *kv, const struct kv_text *t, uint32_t entry, uint32_t n);
/* Sets the offsets of the tree's arrays for n_blocks blocks, from `at` on. Returns their end. */
uint64_t kv_tree_bytes(struct kv *kv, uint64_t at, uint64_t n_blocks);
void kv_tree_init(struct kv *kv);
/* Computes the name of the node that has the tokens *p below the node with the name `parent`. */
void kv_tree_name(const uint64_t parent[2], const struct kv_piece *p, uint64_t ret[2]);
/* Return the root with this name, or the child with this name and these tokens; 0: none exists. */
uint32_t kv_tree_root(const struct kv *kv, const uint64_t name[2]);
uint32_t kv_tree_child(const struct kv *kv, uint32_t parent, const uint64_t name[2],
                       const struct kv_piece *p);
/* Returns the number of leading tokens that the node and p have in common. */
uint32_t kv_tree_common(const struct kv *kv, uint32_t node, const struct kv_piece *p);
/* Adds a node with the tokens *p below `parent` and returns it; p NULL: adds a root. 0: the tree is
 * full. kv_tree_put() does the same with the unused node `node`, which the caller has chosen. */
uint32_t kv_tree_add(struct kv *kv, uint32_t parent, const uint64_t name[2],
                     const struct kv_piece *p);
void kv_tree_put(struct kv *kv, uint32_t node, uint32_t parent, const uint64_t name[2],
                 const struct kv_piece *p);
/* Returns the number of nodes on the path from the root to the node, without the root. */
uint32_t kv_tree_depth(const struct kv *kv, uint32_t node);
token_id *kv_tree_tokens(const struct kv *kv, uint32_t node);
void kv_tree_note(struct kv *kv, uint32_t node); /* lists the node for export: kv_tree_export.h */
/* Frees the node if it has no block, child or pin; then its parent likewise, and so on. */
void kv_tree_prune(struct kv *kv, uint32_t node);
/* Adds the block to the node, which must have no block of the same group and tier; of a snapshot
 * the ring that begins with the block. kv_tree_detach() removes the ring of any of its blocks. */
void kv_tree_attach(struct kv *kv, uint32_t node, uint32_t block);
/* Removes the block from its node. Cached blocks that no lookup reaches any more become orphans. */
void kv_tree_detach(struct kv *kv, uint32_t block, enum kv_why why);
/* Sets the retention priority of a held block from the range of t->keep in which the entry begins.
 * If the entry is in no range, the priority is unchanged. */
void kv_tree_set_priority(struct kv *kv, const struct kv_text *t, uint32_t block, uint32_t entry);
/* Moves *cursor to the node (0: clears it). A cursor pins its node, which then is not pruned. */
void kv_tree_pin(struct kv *kv, uint32_t node, uint32_t *cursor);

void kv_tree_check(const struct kv *kv);

/* kv_host_tier.c: keeps evicted blocks in host memory: offloads them on eviction, onboards them on
 * a hit.
 *
 * The step that takes over the memory of an evicted block first copies the block to a host block,
 * except if the block's retention priority is below KV_OFFLOAD, or it is a partial block of decoder
 * positions, because kv_find() finds partial blocks in the arena only. A snapshot is offloaded,
 * onboarded and evicted with all layers: a host block for each. A block
 * that has KV_SAVE_HITS hits is offloaded at once, so that its eviction needs no copy. An onboarded
 * block keeps its host block, so that its eviction needs no copy either. A full host tier evicts in
 * the same order as a pool. */

enum { KV_OFFLOAD = 30, KV_SAVE_HITS = 2 };

void kv_host_tier_init(struct kv *kv);
/* Plans the copy of a block of the tree to the host tier. Has no effect if the tier has the block
 * already, is away or has too few blocks that are not held, if too many copies are planned, or if
 * the block is one that is not offloaded (see above). */
void kv_host_tier_offload(struct kv *kv, uint32_t block, unsigned lane, struct kv_out *out);
/* Adds a reference to a host block, which is not evicted until kv_host_tier_give() drops it. */
void kv_host_tier_hold(struct kv *kv, uint32_t host_block);
void kv_host_tier_give(struct kv *kv, uint32_t host_block, unsigned lane, uint64_t step);
/* Frees up to max cached host blocks. Returns their number and adds their size to *bytes. */
uint32_t kv_host_tier_flush(struct kv *kv, uint32_t max, enum kv_why why, uint64_t *bytes);

/* kv_pool.c: takes and gives the blocks of a pool, and moves slabs between pools.
 *
 * A pool draws a slab when it has no free block and returns a slab that is empty; memory moves
 * between pools in no other way.
 *
 * A block is taken from the first of these sources that has one: the pool's free blocks; a free
 * slab; the pool's cached blocks or another pool's cold slab, whichever was released longer ago.
 * The cold slab must precede the cached block by more releases than it has blocks, so that two
 * pools do not take a slab from each other in turn.
 *
 * Shares (kv_group.share) precede age: a pool that is more than 12.5 % below its target takes slabs
 * from a pool that is not, and a pool more than 12.5 % above its target loses slabs first. Within
 * these limits, and without shares, age decides. */

/* Returns a block of the group for the planned step of the lane; never fails, because the caller
 * has reserved it. Raises out->wait[] to the steps to wait for. May add the copy of an offload. */
uint32_t kv_pool_take(struct kv *kv, uint32_t group, unsigned lane, struct kv_out *out);
/* kv_pool_take() for a slot, which counts the block. */
uint32_t kv_pool_take_for(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane,
                          struct kv_out *out);
/* Adds one reference to a held or cached block. */
void kv_pool_share(struct kv *kv, uint32_t block);
/* Does kv_pool_share() and raises the group's reserved_blocks by what the reference costs besides
 * the new holder's reservation: 1 for a cached block of a group that counts shared blocks once, and
 * 1 for a partly filled last block that another slot still fills (its owner, kv_reuse.c), because
 * the owner then needs a second block for its own copy. */
void kv_pool_hold(struct kv *kv, uint32_t group, uint32_t block);
/* Drops one reference; `step` of `lane` used the block. Returns true if it was the last reference:
 * the block is then cached if it is in the tree, otherwise free. */
bool kv_pool_give(struct kv *kv, uint32_t block, unsigned lane, uint64_t step);
/* Frees cached blocks of all pools until at least max are freed or none are left; a snapshot is
 * freed with all layers. Returns the number of freed blocks and adds their size to *bytes. */
uint32_t kv_pool_flush(struct kv *kv, uint32_t max, uint64_t *bytes);
/* Returns the pool's term of the slab sum (kv_internal.h), as if n more blocks were reserved. */
uint32_t kv_pool_slabs(const struct kv *kv, uint32_t pool, uint64_t n);
/* For adoption. kv_slab_claim() assigns a free slab to the pool; kv_slab_cold() puts a slab without
 * held blocks last on its pool's list of cold slabs. */
void kv_slab_claim(struct kv *kv, uint32_t slab, uint32_t pool);
void kv_slab_cold(struct kv *kv, uint32_t slab);
/* Puts the slab first on its pool's list of slabs with a free block, so that the pool fills it
 * next. A slab that was full comes first so that the other slabs can become empty. */
void kv_slab_open_first(struct kv *kv, uint32_t slab);
/* Writes the number of the block with the slice_id `at` to *ret. -EBADMSG: no block of the group's
 * pool can begin there; *ret is unchanged. */
int kv_block_at(const struct kv *kv, uint32_t group, slice_id at, uint32_t *ret) MUST_USE;
