/* kv_evict.h - the eviction level: the prefix tree, the queues of cached blocks, the host tier, the
 * pools. For the files of worker/kv alone.
 */
#pragma once

#include "worker/kv/kv_internal.h"

/* kv_evict_queue.c: cached blocks in eviction order.
 *
 * One queue per group and one for host blocks. Lowest retention priority first; within a priority
 * the block that was released first. Orphans (blocks that no lookup can reach) precede all others:
 * at the front of priority 0. */

void kv_evict_queue_push(struct kv *kv, uint32_t block);        /* last of its priority */
void kv_evict_queue_push_first(struct kv *kv, uint32_t block);  /* first of its priority */
void kv_evict_queue_push_orphan(struct kv *kv, uint32_t block); /* moves a queued block */
void kv_evict_queue_remove(struct kv *kv, uint32_t block);
/* Returns the block number + 1 of the next victim; 0: the queue is empty. group MAX_GROUPS: host
 * blocks. */
uint32_t kv_evict_queue_first(const struct kv *kv, uint32_t group);
/* Returns why a block that kv_evict_queue_first() returned is evicted. */
enum kv_why kv_evict_queue_why(const struct kv *kv, uint32_t block);
/* Returns true if a is evicted before b. */
bool kv_evict_queue_before(const struct kv_block *a, const struct kv_block *b);

/* kv_tree.c: the prefix tree: blocks of tokens by the tokens before them, and the KV blocks of
 * each.
 *
 * The name of a node is XXH3-128 of its tokens under its parent's name; the name of a root is made
 * with a secret. A lookup compares parent and tokens too. The children of a node have the tokens of
 * the next block; a node with fewer tokens than a block has no children. A ref is an index + 1; 0
 * is none. */

struct kv_piece { /* the tokens of one block */
    const token_id *token;
    const uint64_t *extra; /* NULL: all 0 */
    uint32_t n;
};
struct kv_piece kv_piece(const struct kv *kv, const struct kv_text *t, uint32_t entry, uint32_t n);

/* Lays out the tree from offset `at` for n_blocks blocks; returns the end. */
uint64_t kv_tree_bytes(struct kv *kv, uint64_t at, uint64_t n_blocks);
void kv_tree_init(struct kv *kv);

void kv_tree_name(const uint64_t parent[2], const struct kv_piece *p, uint64_t ret[2]);
/* Return the node; 0: there is none. */
uint32_t kv_tree_root(const struct kv *kv, const uint64_t name[2]);
uint32_t kv_tree_child(const struct kv *kv, uint32_t parent, const uint64_t name[2],
                       const struct kv_piece *p);
/* Returns the number of leading tokens that the node and p have in common. */
uint32_t kv_tree_common(const struct kv *kv, uint32_t node, const struct kv_piece *p);
/* Returns a new node; p NULL: a root. 0: the tree is full. */
uint32_t kv_tree_add(struct kv *kv, uint32_t parent, const uint64_t name[2],
                     const struct kv_piece *p);
/* As kv_tree_add(), with the number of a free node. */
void kv_tree_put(struct kv *kv, uint32_t node, uint32_t parent, const uint64_t name[2],
                 const struct kv_piece *p);
/* Returns the number of nodes on the path to the node, without the root. */
uint32_t kv_tree_depth(const struct kv *kv, uint32_t node);
token_id *kv_tree_tokens(const struct kv *kv, uint32_t node);
void kv_tree_note(struct kv *kv, uint32_t node); /* puts the node on the list of kv_tree_export.h */
/* Frees the node if it has no block, child or pin, and then its ancestors likewise. */
void kv_tree_prune(struct kv *kv, uint32_t node);

/* Makes the node the block's; it must have no block of that group and tier. */
void kv_tree_attach(struct kv *kv, uint32_t node, uint32_t block);
/* Removes the block from the tree. Cached blocks that no lookup reaches without it become orphans
 * (kv_evict_queue.c). */
void kv_tree_detach(struct kv *kv, uint32_t block, enum kv_why why);
/* Sets the retention priority of a held block to what t says of the entry; an entry in no range of
 * t leaves the priority as it is. */
void kv_tree_set_priority(struct kv *kv, const struct kv_text *t, uint32_t block, uint32_t entry);
/* Moves a cursor to the node and pins the node; 0: clears the cursor. */
void kv_tree_pin(struct kv *kv, uint32_t node, uint32_t *cursor);

void kv_tree_check(const struct kv *kv);

/* kv_host_tier.c: cached blocks in host memory: offloaded on eviction, onboarded on a hit.
 *
 * The step that reuses an evicted block first copies it to a host block. A block of retention
 * priority below KV_OFFLOAD, and a snapshot, is dropped instead. A block that is hit KV_SAVE_HITS
 * times is offloaded by that step already, so its eviction needs no copy. An onboarded block keeps
 * its host block for the same reason. A full host tier evicts by the same order as a pool. */

enum { KV_OFFLOAD = 30, KV_SAVE_HITS = 2 };

void kv_host_tier_init(struct kv *kv);
/* Plans the copy of a block of the tree to the host tier. No effect if the tier has the block, is
 * away or full of blocks in use, or the block does not qualify. */
void kv_host_tier_offload(struct kv *kv, uint32_t block, unsigned lane, struct kv_out *out);
/* One more reference to a host block; it is not evicted until kv_host_tier_give(). */
void kv_host_tier_hold(struct kv *kv, uint32_t host_block);
void kv_host_tier_give(struct kv *kv, uint32_t host_block, unsigned lane, uint64_t step);
/* Frees up to max cached host blocks; returns their number and adds their size to *bytes. */
uint32_t kv_host_tier_flush(struct kv *kv, uint32_t max, enum kv_why why, uint64_t *bytes);

/* kv_pool.c: the blocks of one pool: take, share, give; and slabs: equal pieces of the arena.
 *
 * A pool draws a slab when it has no free block and returns a slab that is empty; memory moves
 * between pools in no other way.
 *
 * Order of sources: a free block of the pool; a free slab; then the least recently used of the
 * pool's cached blocks and the other pools' cold slabs. A cold slab must be colder by as many
 * releases as it has blocks, so that two pools do not take a slab from each other in turn.
 *
 * Shares precede age: a pool more than 12.5 % below its target takes from a pool that is not, and a
 * pool more than 12.5 % above its target loses slabs first. Within these limits, and without
 * shares, age decides. */

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
