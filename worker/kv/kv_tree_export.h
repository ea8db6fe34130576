/* kv_tree_export.h - exports the changes of the prefix tree to the manifest, and adopts exported
 * nodes.
 *
 *     kv_tree_export_take    returns the next node that has changed since its last export
 *     kv_tree_export_adopt   after all manifest entries (kv_adopt()), a parent before its children
 *     kv_adopt_end           frees the blocks that are in no entry and in no node
 *
 * Exports are written before a step is launched. So an exported node never names a block that a
 * launched step overwrites. A block that a copy has yet to fill is exported after the copy's step.
 */
#pragma once

#include "worker/kv/kv.h"

enum { KV_MAX_TOKENS = 128 /* per block, if reuse is on */ };

struct kv_tree_export {
    uint32_t node, parent; /* numbers from 1; parent 0: a root, which has no tokens */
    bool live;             /* false: the node was freed; the other fields are not valid */
    uint64_t key[2];
    uint32_t n_tokens;
    const token_id *token;
    slice_id at[MAX_GROUPS], host[MAX_GROUPS]; /* SLICE_NONE: none */
    uint8_t priority[MAX_GROUPS];
};

uint32_t kv_tree_max_exports(const struct kv_config *c); /* nodes of the tree; 0: no reuse */
uint32_t kv_tree_n_exports(const struct kv *kv);         /* changed nodes */
/* Removes the first changed node from the list and returns it in *ret. A node with a block that is
 * not filled yet goes to the end of the list. */
void kv_tree_export_take(struct kv *kv, struct kv_tree_export *ret);

bool kv_tree_export_known(const struct kv *kv, uint32_t node); /* the tree has the node */
/* Adds an exported node of the previous worker to the tree; host: the host memory was kept.
 * -ENODATA: a newer manifest entry or node contradicts it (parent missing or replaced, a block that
 * a sequence is still writing). -EBADMSG: invalid (a block in use elsewhere, or of another pool).
 * On failure nothing has changed. */
int kv_tree_export_adopt(struct kv *kv, const struct kv_tree_export *x, bool host) MUST_USE;
void kv_tree_export_end(struct kv *kv); /* called by kv_adopt_end() */
