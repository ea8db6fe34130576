/* kv_kind.h - what a kind of group keeps: which entries positions need, and how many at once.
 *
 *     KV_FULL    every position
 *     KV_WINDOW  what the query sees: positions p - window + 1 .. p, dropped behind it block by block; and
 *                the sinks, whatever comes
 *     KV_CROSS   the source's positions, all of them, whatever the decoder's length
 *     KV_STATE   the state after the last position, and snapshots: as many blocks at any length
 */
#ifndef KV_KIND_H
#define KV_KIND_H

#include "worker/kv/kv.h"

/* First entry that a query at pos or later can see, but for sinks. */
uint32_t kv_kind_first(const struct kv_group *g, uint32_t tokens_per_block, uint32_t pos);
/* Entries that sinks take. */
uint32_t kv_kind_sinks(const struct kv_group *g, uint32_t tokens_per_block);
/* Entries of a sequence of len positions and a source of n_source. */
uint32_t kv_kind_entries(const struct kv_group *g, uint32_t tokens_per_block, uint32_t len,
                         uint32_t n_source);
/* Blocks held at once, at most, until the sequence has len positions, computed in chunks of at most
 * chunk: for a window at most sinks + window + chunk + one block. */
uint32_t kv_kind_need(const struct kv_group *g, uint32_t tokens_per_block, uint32_t len,
                      uint32_t n_source, uint32_t chunk);

#endif
