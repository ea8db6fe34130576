/* kv_host_tier.c - keeps evicted blocks in host memory: see kv_evict.h. */
#include "worker/kv/kv_evict.h"

void
kv_host_tier_init(struct kv *kv)
{
    kv->n_mapped = kv->n_host_blocks;
    kv_host_tier_rates(kv, kv->c.host_bandwidth, kv->c.token_time);
}

void
kv_host_tier_rates(struct kv *kv, uint64_t bandwidth, nsec token_time)
{
    double bytes = 0, state = 0, rate = (double)bandwidth / 1e9 * (double)token_time;

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint64_t block = kv->pool[kv->c.group[g].pool].block_bytes;

        if (kv_is_positions(kv, g)) bytes += (double)block;
        if (kv->c.group[g].kind == KV_STATE) state += (double)block * kv->c.group[g].n_layers;
    }
    kv->onboard_pays = rate == 0 || bytes < rate * kv->c.tokens_per_block;
    kv->onboard_state_pays = rate == 0 || state < rate * kv->interval;
}

void
kv_host_tier_set_size(struct kv *kv, uint64_t bytes)
{
    kv->n_mapped = (uint32_t)MIN(bytes / MAX(kv->host_block_bytes, UINT64_C(1)), kv->n_host_blocks);
    check(kv->n_mapped >= kv->n_fresh_host_blocks || kv->host_tier_away);
}

uint64_t
kv_host_tier_used(const struct kv *kv)
{
    return kv->n_fresh_host_blocks * kv->host_block_bytes;
}

void
kv_host_tier_away(struct kv *kv)
{
    check(kv->n_held_host_blocks == 0);
    kv->host_tier_away = true;
}

bool
kv_host_tier_is_away(const struct kv *kv)
{
    return kv->host_tier_away;
}

void
kv_host_tier_came(struct kv *kv, bool contents_valid)
{
    check(kv->host_tier_away);
    if (!contents_valid) kv_host_tier_clear(kv);
    kv->host_tier_away = false;
}

/* Evicts a cached host block, of a snapshot the blocks of all layers. Returns how many. Steps in
 * flight may still use the freed blocks: a step that takes one waits for them. */
static uint32_t
evict_host_block(struct kv *kv, uint32_t block, enum kv_why why)
{
    struct kv_block *all = kv_blocks(kv);
    uint32_t first = kv->n_slabs * kv->stride, at = block, n = 0;

    do {
        struct kv_block *c = &all[at];

        kv_evict_queue_remove(kv, at);
        c->state = BLOCK_FREE;
        c->fill_pending = false;
        c->next = kv->first_free_host_block;
        kv->first_free_host_block = at - first + 1;
        n++;
        at = c->more ? c->more - 1 : block;
    } while (at != block);
    kv->n_cached_host_blocks -= n;
    kv->n_free_host_blocks += n;
    kv_tree_detach(kv, block, why);
    return n;
}

uint32_t
kv_host_tier_flush(struct kv *kv, uint32_t max, enum kv_why why, uint64_t *bytes)
{
    uint32_t n = 0, at;

    while (n < max && (at = kv_evict_queue_first(kv, MAX_GROUPS))) {
        uint32_t some = evict_host_block(kv, at - 1, why);

        *bytes += some * kv_block_bytes(&kv->c.group[kv_blocks(kv)[at - 1].group]);
        n += some;
    }
    return n;
}

void
kv_host_tier_clear(struct kv *kv)
{
    uint64_t bytes = 0;

    check(kv->host_tier_away && kv->n_held_host_blocks == 0);
    kv_host_tier_flush(kv, UINT32_MAX, KV_LOST, &bytes);
}

/* Returns a free host block; evicts cached ones if none is free. Not all may be held. */
static uint32_t
take_host_block(struct kv *kv)
{
    uint32_t first = kv->n_slabs * kv->stride, at;

    if (!kv->first_free_host_block && kv->n_fresh_host_blocks < kv->n_mapped)
        return first + kv->n_fresh_host_blocks++;
    if (!kv->first_free_host_block) {
        at = kv_evict_queue_first(kv, MAX_GROUPS);
        check(at);
        kv->stats[kv_blocks(kv)[at - 1].group].host_evicted +=
            evict_host_block(kv, at - 1, kv_evict_queue_why(kv, at - 1));
    }
    at = first + kv->first_free_host_block - 1;
    kv->first_free_host_block = kv_blocks(kv)[at].next;
    kv->n_free_host_blocks--;
    return at;
}

/* Returns true if the host tier has n blocks that are not held. */
static bool
has_host_blocks(const struct kv *kv, uint32_t n)
{
    return kv->n_mapped >= kv->n_held_host_blocks + n;
}

/* Plans the copy of a block to a host block and returns that; the caller attaches and queues it. */
static uint32_t
copy_to_host(struct kv *kv, uint32_t block, unsigned lane, struct kv_out *out)
{
    struct kv_block *b = &kv_blocks(kv)[block];
    uint32_t host_block = take_host_block(kv);
    struct kv_block *c = &kv_blocks(kv)[host_block];

    kv_wait_block(kv, lane, block, out);
    kv_wait_block(kv, lane, host_block, out);
    *c = (struct kv_block){
        .state = BLOCK_CACHED, .group = b->group, .fill_pending = true, .priority = b->priority
    };
    c->step[lane] = out->step;
    kv_add_copy(kv, b->group, block, host_block, out);
    /* The caller evicts the block, which this step reads; its next user waits for this step. */
    b->step[lane] = MAX(b->step[lane], out->step);
    kv->n_cached_host_blocks++;
    kv->stats[b->group].offloaded++;
    return host_block;
}

void
kv_host_tier_offload(struct kv *kv, uint32_t block, unsigned lane, struct kv_out *out)
{
    struct kv_block *all = kv_blocks(kv), *b = &all[block];
    uint32_t node = b->node, n = 1, at, first = 0, prev = 0;

    if (kv->n_host_blocks == 0 || kv->host_tier_away) return;
    if (kv_is_self(kv, b->group) && kv_node(kv, node)->n_tokens < kv->c.tokens_per_block) return;
    if (b->priority < KV_OFFLOAD || kv_node(kv, node)->host[b->group]) return;
    if (b->more) n = kv->c.group[b->group].n_layers;
    if (out->n_copies + n > out->max_copies / 2) return; /* the others are for kv_start() */
    if (!has_host_blocks(kv, n)) return;
    check(out->step > 0);
    /* take_host_block() may evict the last host block below the node; the pin keeps the node. */
    kv_tree_pin(kv, node, &kv->busy_node);
    at = kv_node(kv, node)->slot[b->group];
    for (uint32_t i = 0; i < n; i++, at = all[at - 1].more) {
        uint32_t host_block = copy_to_host(kv, at - 1, lane, out);

        if (prev) all[prev - 1].more = host_block + 1;
        prev = host_block + 1;
        if (!first) first = prev;
    }
    if (b->more) all[prev - 1].more = first;
    kv_tree_attach(kv, node, first - 1);
    for (at = first; n > 0; n--, at = all[at - 1].more) kv_evict_queue_push(kv, at - 1);
    kv_tree_pin(kv, 0, &kv->busy_node);
}

void
kv_host_tier_hold(struct kv *kv, uint32_t host_block)
{
    struct kv_block *c = &kv_blocks(kv)[host_block];

    if (c->n_refs++ > 0) return;
    kv_evict_queue_remove(kv, host_block);
    c->state = BLOCK_HELD;
    kv->n_cached_host_blocks--;
    kv->n_held_host_blocks++;
}

void
kv_host_tier_give(struct kv *kv, uint32_t host_block, unsigned lane, uint64_t step)
{
    struct kv_block *c = &kv_blocks(kv)[host_block];

    check(c->state == BLOCK_HELD && c->n_refs > 0);
    c->step[lane] = MAX(c->step[lane], step);
    if (--c->n_refs > 0) return;
    c->state = BLOCK_CACHED;
    kv->n_held_host_blocks--;
    kv->n_cached_host_blocks++;
    kv_evict_queue_push(kv, host_block);
}
