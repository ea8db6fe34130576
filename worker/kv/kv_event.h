/* kv_event.h - a log of prefix cache changes (blocks stored, removed, updated) for routers and
 * dumps.
 *
 * The log is a ring of the last kv_config.max_events events, in order; each is about one block. A
 * reader keeps the number of its next event. A reader that fell behind gets the number of lost
 * events and restarts from a snapshot:
 *
 *     next = kv_event_end(kv);  every kv_event_snapshot();  from then on kv_events(kv, &next, ...)
 *
 * The name of a block is equal for all groups and lasts for the life of the process. It is a keyed
 * hash of the block's tokens, the tokens before them and the cache namespace (kv_reuse.h).
 */
#pragma once
#include "base/block_event.h"
#include "worker/kv/kv.h"

struct kv_event {
    uint64_t name[2], parent[2]; /* parent: of the block before it; of a first block, of the root */
    uint8_t op, group;
    uint8_t priority, was; /* retention priority after the event, and before it (KV_UPDATED) */
    uint8_t tier;          /* enum tier: the faster tier that has the block after the event */
    uint8_t why;           /* enum kv_why */
    uint16_t n_tokens;
};

uint64_t kv_event_end(const struct kv *kv); /* the number of the next event */
/* Copies up to max events, starting with event number *next, and advances *next past them. Returns
 * how many were copied. *n_missed: how many events, from the old *next on, the ring has lost. */
uint32_t kv_events(const struct kv *kv, uint64_t *next, struct kv_event *ret, uint32_t max,
                   uint64_t *n_missed);
/* Copies up to max blocks of the tree as KV_STORED events, in any order. Returns how many were
 * copied; 0: all blocks have been copied. Pass *at 0 in the first call and leave it unchanged in
 * later calls. The tree must not change between the first call and the last. */
uint32_t kv_event_snapshot(const struct kv *kv, uint32_t *at, struct kv_event *ret, uint32_t max);
