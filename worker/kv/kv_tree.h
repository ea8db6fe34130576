/* kv_tree.h - the prefix tree: blocks of tokens by the tokens before them, and the KV blocks of
 * each.
 *
 * The name of a node is XXH3-128 of its tokens under its parent's name; the name of a root is made
 * with a secret. A lookup compares parent and tokens too. The children of a node have the tokens of
 * the next block; a node with fewer tokens than a block has no children. A ref is an index + 1; 0
 * is none.
 */
#pragma once

#include "worker/kv/kv_internal.h"

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
 * (kv_evict_queue.h). */
void kv_tree_detach(struct kv *kv, uint32_t block, enum kv_why why);
/* Sets the retention priority of a held block to what t says of the entry; an entry in no range of
 * t leaves the priority as it is. */
void kv_tree_set_priority(struct kv *kv, const struct kv_text *t, uint32_t block, uint32_t entry);
/* Moves a cursor to the node and pins the node; 0: clears the cursor. */
void kv_tree_pin(struct kv *kv, uint32_t node, uint32_t *cursor);

void kv_tree_check(const struct kv *kv);
