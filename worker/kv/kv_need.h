/* kv_need.h - which entries a KV group of each kind keeps, how many blocks a sequence may hold at
 * once, and whether they fit the arena.
 *
 *     KV_FULL    every position
 *     KV_WINDOW  the positions that a query at p sees: p - window + 1 .. p, dropped block by block;
 *                and always the sinks
 *     KV_CROSS   the positions of the encoder input, whatever the decoder's length
 *     KV_STATE   the state after the last position, and snapshots: a constant number of blocks
 *
 * Depends on the configuration alone, not on what other sequences hold: kv_reserve(), kv_admit()
 * and kv_raise() compare a need with the blocks that are free.
 */
#pragma once

#include "worker/kv/kv.h"

/* Returns the first entry that a query at pos or later sees, sinks excepted. */
uint32_t kv_kind_first(const struct kv_group *g, uint32_t tokens_per_block, uint32_t pos);
/* Returns the number of entries that sinks take. */
uint32_t kv_kind_sinks(const struct kv_group *g, uint32_t tokens_per_block);
/* Returns the entries of a sequence of len positions with an encoder input of n_source tokens. */
uint32_t kv_kind_entries(const struct kv_group *g, uint32_t tokens_per_block, uint32_t len,
                         uint32_t n_source);
/* Returns the most blocks held at once by a sequence that grows to len positions in chunks of at
 * most `chunk` tokens. A window needs at most sinks + window + chunk + one block. */
uint32_t kv_kind_need(const struct kv_group *g, uint32_t tokens_per_block, uint32_t len,
                      uint32_t n_source, uint32_t chunk);

struct kv_need {
    uint32_t n_blocks[MAX_GROUPS]; /* of each group, the most that the sequence holds at once */
};

/* Returns the need of a sequence of up to len positions that is computed in chunks of at most chunk
 * tokens and has an encoder input of n_source tokens (0: none). */
struct kv_need kv_need(const struct kv *kv, uint32_t len, uint32_t n_source, uint32_t chunk);

/* Returns 0 if the sequence fits the empty arena; n is its kv_need() for len and n_source.
 * -EMSGSIZE: it has more blocks than the arena, or more entries than its row of a block table; e
 * (may be NULL) has the numbers. */
int kv_fits_alone(const struct kv *kv, const struct kv_need *n, uint32_t len, uint32_t n_source,
                  struct err *e) MUST_USE;

/* Returns the largest number of positions that kv_fits_alone() accepts for chunks of at most one
 * block and an encoder input of n_source tokens. */
uint64_t kv_longest(const struct kv *kv, uint32_t n_source);
