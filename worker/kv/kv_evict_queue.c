/* kv_evict_queue.c - queues of cached blocks in eviction order: see kv_evict.h. */
#include "worker/kv/kv_evict.h"

static struct kv_evict_queue *
queue_of(struct kv *kv, uint32_t block)
{
    return &kv->queue[kv_is_host_block(kv, block) ? MAX_GROUPS : kv_blocks(kv)[block].group];
}

static void
insert_block(struct kv *kv, uint32_t block, uint8_t priority, bool front)
{
    struct kv_block *all = kv_blocks(kv), *b = &all[block];
    struct kv_evict_queue *q = queue_of(kv, block);

    b->queue = priority;
    b->prev = front ? 0 : q->last[priority];
    b->next = front ? q->first[priority] : 0;
    if (b->prev) all[b->prev - 1].next = block + 1;
    if (b->next) all[b->next - 1].prev = block + 1;
    if (!b->prev) q->first[priority] = block + 1;
    if (!b->next) q->last[priority] = block + 1;
    q->some[priority / 64] |= UINT64_C(1) << priority % 64;
}

void
kv_evict_queue_remove(struct kv *kv, uint32_t block)
{
    struct kv_block *all = kv_blocks(kv), *b = &all[block];
    struct kv_evict_queue *q = queue_of(kv, block);
    unsigned at = b->queue;

    check(b->state == BLOCK_CACHED);
    *(b->prev ? &all[b->prev - 1].next : &q->first[at]) = b->next;
    *(b->next ? &all[b->next - 1].prev : &q->last[at]) = b->prev;
    if (!q->first[at]) q->some[at / 64] &= ~(UINT64_C(1) << at % 64);
    b->prev = b->next = 0;
}

void
kv_evict_queue_push(struct kv *kv, uint32_t block)
{
    struct kv_block *b = &kv_blocks(kv)[block];

    check(b->state == BLOCK_CACHED);
    b->stamp = ++kv->releases;
    insert_block(kv, block, b->priority, false);
}

void
kv_evict_queue_push_first(struct kv *kv, uint32_t block)
{
    insert_block(kv, block, kv_blocks(kv)[block].priority, true);
}

void
kv_evict_queue_push_orphan(struct kv *kv, uint32_t block)
{
    kv_evict_queue_remove(kv, block);
    insert_block(kv, block, 0, true);
}

enum kv_why
kv_evict_queue_why(const struct kv *kv, uint32_t block)
{
    const struct kv_block *b = &kv_blocks(kv)[block];

    return b->queue == b->priority ? KV_PRESSURE : KV_ORPHAN;
}

uint32_t
kv_evict_queue_first(const struct kv *kv, uint32_t group)
{
    const struct kv_evict_queue *q = &kv->queue[group];

    for (unsigned i = 0; i < 2; i++)
        if (q->some[i]) return q->first[i * 64 + (unsigned)__builtin_ctzll(q->some[i])];
    return 0;
}

bool
kv_evict_queue_before(const struct kv_block *a, const struct kv_block *b)
{
    return a->queue != b->queue ? a->queue < b->queue : a->stamp < b->stamp;
}
