/* kv_event.c - logs changes of the prefix cache: see kv_event.h. */
#include "worker/kv/kv_event.h"

#include "worker/kv/kv_internal.h"

static struct kv_event
event_of(const struct kv *kv, enum kv_event_op op, uint32_t block)
{
    const struct kv_block *b = &kv_blocks(kv)[block];
    const struct kv_node *n = kv_node(kv, b->node), *parent = kv_node(kv, n->parent);

    return (struct kv_event){ .name = { n->key[0], n->key[1] },
                              .parent = { parent->key[0], parent->key[1] },
                              .op = (uint8_t)op,
                              .group = b->group,
                              .tier = kv_is_host_block(kv, block) ? TIER_HOST : TIER_DEVICE,
                              .priority = b->priority,
                              .was = b->priority,
                              .n_tokens = n->n_tokens };
}

/* Returns false for a snapshot's blocks above the first layer, because a snapshot has one event. */
static bool
has_event(const struct kv *kv, uint32_t block)
{
    const struct kv_block *b = &kv_blocks(kv)[block];
    const struct kv_node *n = kv_node(kv, b->node);

    return n->slot[b->group] == block + 1 || n->host[b->group] == block + 1;
}

void
kv_event_put(struct kv *kv, enum kv_event_op op, uint32_t block, uint8_t was, enum kv_why why)
{
    struct kv_event *e;

    if (kv->c.max_events == 0 || !has_event(kv, block)) return;
    e = &kv_event_ring(kv)[kv->n_events++ % kv->c.max_events];
    *e = event_of(kv, op, block);
    e->was = was;
    e->why = (uint8_t)why;
}

uint64_t
kv_event_end(const struct kv *kv)
{
    return kv->n_events;
}

uint32_t
kv_events(const struct kv *kv, uint64_t *next, struct kv_event *ret, uint32_t max,
          uint64_t *n_missed)
{
    uint64_t first = kv->n_events - MIN(kv->n_events, (uint64_t)kv->c.max_events);
    uint32_t n = 0;

    check(*next <= kv->n_events);
    *n_missed = *next < first ? first - *next : 0;
    *next += *n_missed;
    for (; n < max && *next < kv->n_events; ++*next)
        ret[n++] = kv_event_ring(kv)[*next % kv->c.max_events];
    return n;
}

uint32_t
kv_event_snapshot(const struct kv *kv, uint32_t *at, struct kv_event *ret, uint32_t max)
{
    uint32_t n = 0;

    for (; *at < kv->n_slabs * kv->stride + kv->n_host_blocks && n < max; ++*at) {
        const struct kv_block *b = &kv_blocks(kv)[*at];

        if (!b->node || !has_event(kv, *at) ||
            (kv_is_host_block(kv, *at) && kv_node(kv, b->node)->slot[b->group]))
            continue;
        ret[n++] = event_of(kv, KV_STORED, *at);
    }
    return n;
}
