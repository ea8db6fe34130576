/* kv_find.h - what the tree has of a text: the longest beginning that is there in every group.
 *
 * As deep as every group goes: full ones have no hole, windows have what the next query sees. Then a part of one
 * block more; and the source, whole or not at all. Links are index + 1, 0 is none.
 */
#ifndef KV_FIND_H
#define KV_FIND_H

#include "worker/kv/kv_internal.h"

struct kv_found {
    uint32_t node, depth; /* full blocks, and the node they lead to */
    uint32_t tail, part;  /* and tokens of one more */
    uint32_t cross;       /* the last node of the source */
};

struct kv_found kv_find(const struct kv *kv, const struct kv_text *t); /* t NULL: nothing */
void kv_find_describe(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                      struct kv_hit *ret);
/* The group's entries that the hit fills are *first .. end, which is returned, and sinks below. */
uint32_t kv_find_range(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                       uint32_t group, uint32_t *first);
/* Entry by entry: while (kv_walk_next(kv, &w)) w.entry is found at w.link. */
struct kv_walk {
    uint32_t group, entry, link;
    uint32_t first, end, n_sinks, node; /* the walk's own */
};
struct kv_walk kv_find_walk(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                            uint32_t group);
bool kv_walk_next(const struct kv *kv, struct kv_walk *w);
/* The group's block there, or the cell that it is fetched from. */
uint32_t kv_find_link(const struct kv *kv, uint32_t node, uint32_t group);
uint32_t kv_find_cross_entries(const struct kv *kv, const struct kv_text *t);

#endif
