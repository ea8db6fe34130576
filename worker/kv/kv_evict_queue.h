/* kv_evict_queue.h - cached blocks in the order in which they are taken for others.
 *
 * By group and priority; within one priority whoever was released first goes first. Orphans stand before
 * everybody, at the front of the lowest.
 */
#ifndef KV_EVICT_QUEUE_H
#define KV_EVICT_QUEUE_H

#include "worker/kv/kv_internal.h"

void kv_evict_queue_push(struct kv *kv, uint32_t block);
void kv_evict_queue_push_first(struct kv *kv, uint32_t block);  /* before all of its priority */
void kv_evict_queue_push_orphan(struct kv *kv, uint32_t block); /* from where it stands */
void kv_evict_queue_remove(struct kv *kv, uint32_t block);
/* Index + 1; 0: none. group MAX_GROUPS: of the cells. */
uint32_t kv_evict_queue_first(const struct kv *kv, uint32_t group);
/* Of one that was first: why it goes. */
enum kv_why kv_evict_queue_why(const struct kv *kv, uint32_t block);
/* Whether a is taken before b. */
bool kv_evict_queue_before(const struct kv_block *a, const struct kv_block *b);

#endif
