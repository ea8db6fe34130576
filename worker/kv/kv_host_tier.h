/* kv_host_tier.h - cached blocks in the host's memory: what leaves the arena goes there, and comes back on a hit.
 *
 * A block that is evicted is copied to a cell by the step that takes it, before anything else of that step
 * writes it; one whose priority is below KV_OFFLOAD is dropped. One that is hit for the second time is copied
 * with the step that hits it, so that it goes without a copy. What is fetched keeps its cell, so that it need
 * not be copied when it is evicted again. A full host drops its own least wanted.
 */
#ifndef KV_HOST_TIER_H
#define KV_HOST_TIER_H

#include "worker/kv/kv_event.h"
#include "worker/kv/kv_seq.h"

enum { KV_OFFLOAD = 30, KV_SAVE_HITS = 2 };

void kv_host_tier_init(struct kv *kv);
/* A block on its way out, or worth it. Nothing happens where the host has it, has no room or is not to have it. */
void kv_host_tier_offload(struct kv *kv, uint32_t block, unsigned lane, struct kv_out *out);
void kv_host_tier_hold(struct kv *kv,
                       uint32_t cell); /* until kv_host_tier_give() nobody drops it */
void kv_host_tier_give(struct kv *kv, uint32_t cell, unsigned lane, uint64_t step);
/* kv_pool_flush() of cells: those that nobody fetches. */
uint32_t kv_host_tier_flush(struct kv *kv, uint32_t max, enum kv_why why, uint64_t *bytes);

#endif
