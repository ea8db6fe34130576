/* kv_host_tier.h - cached blocks in host memory: offloaded on eviction, onboarded on a hit.
 *
 * The step that reuses an evicted block first copies it to a host block. A block of retention
 * priority below KV_OFFLOAD, and a snapshot, is dropped instead. A block that is hit KV_SAVE_HITS
 * times is offloaded by that step already, so its eviction needs no copy. An onboarded block keeps
 * its host block for the same reason. A full host tier evicts by the same order as a pool.
 */
#pragma once

#include "worker/kv/kv_event.h"
#include "worker/kv/kv_seq.h"

enum { KV_OFFLOAD = 30, KV_SAVE_HITS = 2 };

void kv_host_tier_init(struct kv *kv);
/* Plans the copy of a block of the tree to the host tier. No effect if the tier has the block, is
 * away or full of blocks in use, or the block does not qualify. */
void kv_host_tier_offload(struct kv *kv, uint32_t block, unsigned lane, struct kv_out *out);
/* One more reference to a host block; it is not evicted until kv_host_tier_give(). */
void kv_host_tier_hold(struct kv *kv, uint32_t host_block);
void kv_host_tier_give(struct kv *kv, uint32_t host_block, unsigned lane, uint64_t step);
/* Frees up to max cached host blocks; returns their number and adds their size to *bytes. */
uint32_t kv_host_tier_flush(struct kv *kv, uint32_t max, enum kv_why why, uint64_t *bytes);
