/* kv_need.h - computes how many blocks a sequence may hold at once in each KV group (its need), and
 * whether they fit the arena.
 *
 * The kind of a group decides which KV a sequence keeps:
 *     KV_FULL    of every position
 *     KV_WINDOW  of the positions that a query at p sees: p - window + 1 .. p, in whole blocks; and
 *                of the sinks
 *     KV_CROSS   of the positions of the encoder input
 *     KV_STATE   the state after the last position, and snapshots: a constant number of blocks
 *
 * A need depends on the configuration only. kv_reserve(), kv_admit() and kv_raise() compare it with
 * the blocks that other sequences leave.
 */
#pragma once
#include "worker/kv/kv.h"

/* In the kv_kind functions `tokens` is tokens_per_block. */

/* Returns the first entry that a query at pos or later sees, apart from the sink entries. */
uint32_t kv_kind_first(const struct kv_group *g, uint32_t tokens, uint32_t pos);
/* Returns the number of entries that the sinks of the group take. */
uint32_t kv_kind_sinks(const struct kv_group *g, uint32_t tokens);
/* Returns how many entries len positions take, with an encoder input of n_source tokens. */
uint32_t kv_kind_entries(const struct kv_group *g, uint32_t tokens, uint32_t len,
                         uint32_t n_source);
/* Returns the most blocks of the group that a sequence holds at one time, if it grows to len
 * positions in chunks of at most `chunk` tokens. A window group needs blocks for its sinks, its
 * window and one chunk, and at most one block more. */
uint32_t kv_kind_need(const struct kv_group *g, uint32_t tokens, uint32_t len, uint32_t n_source,
                      uint32_t chunk);

struct kv_need {
    uint32_t n_blocks[MAX_GROUPS]; /* kv_kind_need() of each group */
};

/* Returns the need of a sequence of up to len positions that is computed in chunks of at most chunk
 * tokens and has an encoder input of n_source tokens (0: none). */
struct kv_need kv_need(const struct kv *kv, uint32_t len, uint32_t n_source, uint32_t chunk);
/* Returns 0 if the sequence fits the empty arena; n is its kv_need() for len and n_source.
 * -EMSGSIZE: it needs more blocks than the arena has, or more entries than a block-table row has; e
 * (may be NULL) names the need and the limit. */
int kv_fits_alone(const struct kv *kv, const struct kv_need *n, uint32_t len, uint32_t n_source,
                  struct err *e) MUST_USE;
/* Returns the most positions that fit with n_source encoder input tokens and chunks of a block. */
uint64_t kv_longest(const struct kv *kv, uint32_t n_source);
