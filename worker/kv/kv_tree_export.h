/* kv_tree_export.h - exports the changed nodes of the prefix tree, for the manifest, and adopts the
 * nodes that a previous worker exported.
 *
 *     kv_tree_export_take    returns the next node that has changed since its last export
 *     kv_tree_export_adopt   adopts a node; after the last kv_adopt(), parents before children
 *     kv_adopt_end           frees the blocks that are in no adopted slot or node
 *
 * All exports, also those of nodes that lost a block, are written before a step is launched. So no
 * exported node names a block that a launched step overwrites. A block that a copy has yet to fill
 * is exported after the step with the copy has finished.
 */
#pragma once
#include "worker/kv/kv.h"

enum { KV_MAX_TOKENS = 128 /* limit of tokens_per_block if kv_config.reuse is set */ };

struct kv_tree_export {
    uint32_t node, parent; /* numbers from 1; parent 0: the node is a root and has no tokens */
    bool live;             /* false: the node was freed; only the field node is valid */
    uint64_t key[2];       /* name of the node (kv_evict.h) */
    uint32_t n_tokens;
    const token_id *token;
    slice_id
        at[MAX_GROUPS]; /* block; SLICE_NONE: none. Of snapshots only host blocks are exported */
    /* Host blocks, SLICE_NONE: none. Those of group 0, then of group 1 ...: one per group, of a
     * snapshot one per layer. */
    const slice_id *host;
    uint8_t priority[MAX_GROUPS];
};

/* Returns the number of host blocks that a node may have in a group. */
static inline uint32_t
kv_tree_n_host(const struct kv_group *g)
{
    return g->kind == KV_STATE ? g->n_layers : 1;
}

/* Returns the number of nodes that the tree can have; 0: the prefix cache is off. */
uint32_t kv_tree_max_exports(const struct kv_config *c);
uint32_t kv_tree_n_exports(const struct kv *kv); /* number of changed nodes on the list */
/* Removes the first changed node from the list and returns it in *ret. A node with a block that is
 * not filled yet goes to the end of the list. ret->host is valid until the next call. */
void kv_tree_export_take(struct kv *kv, struct kv_tree_export *ret);

bool kv_tree_export_known(const struct kv *kv, uint32_t node); /* true: the tree has the node */
/* Adds an exported node of the previous worker to the tree. host true: its host block is valid,
 * because the host memory was kept. -ENODATA: a newer manifest entry or node contradicts the node:
 * its parent is missing or replaced, or a sequence still writes its block. -EBADMSG: the node is
 * invalid: a block is in use elsewhere or of another pool. On failure kv is unchanged. */
int kv_tree_export_adopt(struct kv *kv, const struct kv_tree_export *x, bool host) MUST_USE;
void kv_tree_export_end(struct kv *kv); /* frees what was not adopted, for kv_adopt_end() */
