/* kv_kind.h - which entries a KV group of each kind keeps, and how many blocks it holds at once.
 *
 *     KV_FULL    every position
 *     KV_WINDOW  the positions that a query at p sees: p - window + 1 .. p, dropped block by block;
 *                and always the sinks
 *     KV_CROSS   the positions of the encoder input, whatever the decoder's length
 *     KV_STATE   the state after the last position, and snapshots: a constant number of blocks
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
