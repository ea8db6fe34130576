/* kv_evict_queue.h - cached blocks in eviction order.
 *
 * One queue per group and one for host blocks. Lowest retention priority first; within a priority
 * the block that was released first. Orphans (blocks that no lookup can reach) precede all others:
 * at the front of priority 0.
 */
#pragma once

#include "worker/kv/kv_internal.h"

void kv_evict_queue_push(struct kv *kv, uint32_t block);        /* last of its priority */
void kv_evict_queue_push_first(struct kv *kv, uint32_t block);  /* first of its priority */
void kv_evict_queue_push_orphan(struct kv *kv, uint32_t block); /* moves a queued block */
void kv_evict_queue_remove(struct kv *kv, uint32_t block);
/* Returns the block number + 1 of the next victim; 0: the queue is empty. group MAX_GROUPS: host
 * blocks. */
uint32_t kv_evict_queue_first(const struct kv *kv, uint32_t group);
/* Returns why a block that kv_evict_queue_first() returned is evicted. */
enum kv_why kv_evict_queue_why(const struct kv *kv, uint32_t block);
/* Returns true if a is evicted before b. */
bool kv_evict_queue_before(const struct kv_block *a, const struct kv_block *b);
