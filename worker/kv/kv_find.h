/* kv_find.h - finds the longest prefix of a token sequence that is cached in every group.
 *
 * A full group needs every block of the prefix; a window group needs the blocks that the next query
 * sees. Then part of one more block may match, and the whole encoder input or none of it. A ref is
 * a block number or node index + 1; 0 is none.
 */
#pragma once

#include "worker/kv/kv_internal.h"

struct kv_found {
    uint32_t node, depth; /* full blocks found, and the node of the last one */
    uint32_t tail, part;  /* node of the partial block, and its matching tokens */
    uint32_t cross;       /* the last node of the encoder input */
};

struct kv_found kv_find(const struct kv *kv, const struct kv_text *t); /* t NULL: finds nothing */
void kv_find_describe(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                      struct kv_hit *ret);
/* Returns the end of the group's entries that the hit fills: *first .. end - 1, and the sinks below
 * *first. */
uint32_t kv_find_range(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                       uint32_t group, uint32_t *first);
/* Visits the entries of a hit: while (kv_walk_next(kv, &w)), w.ref is the block of w.entry. */
struct kv_walk {
    uint32_t group, entry, ref;
    uint32_t first, end, n_sinks, node; /* private */
};
struct kv_walk kv_find_walk(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                            uint32_t group);
bool kv_walk_next(const struct kv *kv, struct kv_walk *w);
/* Returns the ref of the group's block at the node, or of the host block to onboard. */
uint32_t kv_find_ref(const struct kv *kv, uint32_t node, uint32_t group);
uint32_t kv_find_cross_entries(const struct kv *kv, const struct kv_text *t);
