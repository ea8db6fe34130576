/* kv_find.h - finds the longest prefix of a token sequence that is cached in every group.
 *
 * A hit has every block of the prefix in a full group, and the blocks that the next query sees in a
 * window group. After these full blocks the leading tokens of one more block may match, if that
 * block is in the arena; of a host block, all tokens must match. The KV of an encoder input is
 * found whole or not at all. kv_internal.h defines ref.
 */
#pragma once
#include "worker/kv/kv_internal.h"

/* A hit. node, tail and cross are refs of nodes. */
struct kv_found {
    uint32_t node, depth; /* depth: number of full blocks; node: the node of the last one */
    uint32_t tail, part;  /* node of the partial block; number of its tokens that match; 0: none */
    uint32_t cross;       /* the last node of the encoder input; 0: it is not cached */
};

/* Returns the longest hit for the tokens *t; t NULL: an empty hit. */
struct kv_found kv_find(const struct kv *kv, const struct kv_text *t);
/* Fills *ret with the hit in the form that callers outside of worker/kv use. */
void kv_find_describe(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                      struct kv_hit *ret);
/* The hit fills entries *first .. end - 1 and the sink entries below *first. Returns `end`. */
uint32_t kv_find_range(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                       uint32_t group, uint32_t *first);
/* Visits the entries that a hit fills: kv_walk_next() sets ref to the block of the next entry; it
 * returns false after the last entry. */
struct kv_walk {
    uint32_t group, entry, ref;
    uint32_t first, end, n_sinks, node; /* used by kv_walk_next() only */
};
struct kv_walk kv_find_walk(const struct kv *kv, const struct kv_text *t, const struct kv_found *f,
                            uint32_t group);
bool kv_walk_next(const struct kv *kv, struct kv_walk *w);
/* Returns the ref of the node's block, else of its host block if it may be onboarded, else 0. */
uint32_t kv_find_ref(const struct kv *kv, uint32_t node, uint32_t group);
uint32_t kv_find_cross_entries(const struct kv *kv, const struct kv_text *t);
