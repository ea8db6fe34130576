/* kv_tree.h - blocks of tokens by what came before them: which block of a group holds their K and V.
 *
 * A node is named by XXH3-128 of its tokens under its parent's name, a root's name is made with a secret; a hit
 * compares the parent and the tokens too. Its children are blocks of tokens that follow it; one that is not full has none.
 * Links are index + 1, 0 is none.
 */
#ifndef KV_TREE_H
#define KV_TREE_H

#include "worker/kv/kv_internal.h"

struct kv_piece { /* of a text: tokens of one block */
    const token_id *token;
    const uint64_t *extra; /* NULL: all 0 */
    uint32_t n;
};
struct kv_piece kv_piece(const struct kv *kv, const struct kv_text *t, uint32_t entry, uint32_t n);

uint64_t kv_tree_bytes(struct kv *kv, uint64_t at,
                       uint64_t n_blocks); /* lay out from at; the end */
void kv_tree_init(struct kv *kv);

void kv_tree_name(const uint64_t parent[2], const struct kv_piece *p, uint64_t ret[2]);
uint32_t kv_tree_root(const struct kv *kv, const uint64_t space[2]);
uint32_t kv_tree_child(const struct kv *kv, uint32_t parent, const uint64_t name[2],
                       const struct kv_piece *p);
/* Tokens of the node that p begins with too. */
uint32_t kv_tree_common(const struct kv *kv, uint32_t node, const struct kv_piece *p);
/* p NULL: a root. 0: no room. */
uint32_t kv_tree_add(struct kv *kv, uint32_t parent, const uint64_t name[2],
                     const struct kv_piece *p);
/* The same, as a node that is free. */
void kv_tree_put(struct kv *kv, uint32_t node, uint32_t parent, const uint64_t name[2],
                 const struct kv_piece *p);
/* Nodes from below the root down to it. */
uint32_t kv_tree_depth(const struct kv *kv, uint32_t node);
const token_id *kv_tree_tokens(const struct kv *kv, uint32_t node);
void kv_tree_note(struct kv *kv, uint32_t node); /* it is to be told: kv_tree_export.h */
/* It and those before it, as far as they lead nowhere, are no more. */
void kv_tree_prune(struct kv *kv, uint32_t node);

void kv_tree_attach(struct kv *kv, uint32_t node, uint32_t block); /* the slot is empty */
/* The block is found no more. What cannot be reached without it goes first from here on. */
void kv_tree_detach(struct kv *kv, uint32_t block, enum kv_why why);
/* Sets the retention priority of a held block to what t says of the entry; an entry in no range of t
 * leaves the priority as it is. */
void kv_tree_set_priority(struct kv *kv, const struct kv_text *t, uint32_t block, uint32_t entry);
void kv_tree_pin(struct kv *kv, uint32_t node,
                 uint32_t *cursor); /* move a slot's cursor there; 0: off */

void kv_tree_check(const struct kv *kv);

#endif
