/* kv_tree_export.h - the tree as a successor is told of it: node by node, with its tokens and who holds their K and V.
 *
 *     kv_tree_export_take    the next node that has changed since it was told
 *     kv_tree_export_adopt   after all rows (kv_adopt()), a parent before its children
 *     kv_adopt_end     what is in no row and in no label is free
 *
 * Told before a step is launched, a label never names a block or cell that a launched step writes for somebody
 * else; nor one that a copy is yet to fill: that is told once the copy's step is over.
 */
#ifndef KV_TREE_EXPORT_H
#define KV_TREE_EXPORT_H

#include "worker/kv/kv.h"

enum { KV_MAX_TOKENS = 128 /* of a block in the tree */ };

struct kv_tree_export {
    uint32_t node, parent; /* numbers from 1; parent 0: a root, which has no tokens */
    bool live;             /* false: it is no more, and the rest is not said */
    uint64_t key[2];
    uint32_t n_tokens;
    const token_id *token;
    slice_id at[MAX_GROUPS], host[MAX_GROUPS]; /* SLICE_NONE: not there */
    uint8_t priority[MAX_GROUPS];
};

uint32_t kv_tree_max_exports(const struct kv_config *c); /* nodes that there can be; 0: no reuse */
uint32_t kv_tree_n_exports(const struct kv *kv);         /* that are to be told */
/* One of them. Where something of it is yet to come it is to be told again, behind the others. */
void kv_tree_export_take(struct kv *kv, struct kv_tree_export *ret);

bool kv_tree_export_known(const struct kv *kv, uint32_t node);
/* host: its cells hold what they held. -ENODATA: what it belongs to was told after it, or not (no parent, another
 * one, a block that a row goes on to write); -EBADMSG: it cannot be (a block that is elsewhere, or of another
 * pool). Nothing is changed then. */
int kv_tree_export_adopt(struct kv *kv, const struct kv_tree_export *l, bool host) MUST_USE;
/* kv_adopt_end()'s part of it. */
void kv_tree_export_end(struct kv *kv);

#endif
