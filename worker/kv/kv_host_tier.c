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
    uint64_t bytes = 0;
    double time = (double)token_time * kv->c.tokens_per_block;

    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (kv_is_positions(kv, g)) bytes += kv->pool[kv->c.group[g].pool].block_bytes;
    kv->onboard_pays = !bandwidth || !token_time || (double)bytes / (double)bandwidth * 1e9 < time;
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

/* Steps in flight may still use the freed blocks: a step that takes one waits for them. */
uint32_t
kv_host_tier_flush(struct kv *kv, uint32_t max, enum kv_why why, uint64_t *bytes)
{
    uint32_t first = kv->n_slabs * kv->stride, n = 0, at;

    for (; n < max && (at = kv_evict_queue_first(kv, MAX_GROUPS)); n++) {
        struct kv_block *c = &kv_blocks(kv)[at - 1];

        *bytes += kv_block_bytes(&kv->c.group[c->group]);
        kv_evict_queue_remove(kv, at - 1);
        kv->n_cached_host_blocks--;
        kv_tree_detach(kv, at - 1, why);
        c->state = BLOCK_FREE;
        c->fill_pending = false;
        c->prev = 0;
        c->next = kv->first_free_host_block;
        kv->first_free_host_block = at - first;
        kv->n_free_host_blocks++;
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

/* Returns the ref of a free host block, or of an evicted one; 0: all are being onboarded. */
static uint32_t
take_host_block(struct kv *kv)
{
    uint32_t first = kv->n_slabs * kv->stride, at;

    if (kv->first_free_host_block) {
        at = first + kv->first_free_host_block;
        kv->first_free_host_block = kv_blocks(kv)[at - 1].next;
        kv->n_free_host_blocks--;
        return at;
    }
    if (kv->n_fresh_host_blocks < kv->n_mapped) return first + ++kv->n_fresh_host_blocks;
    at = kv_evict_queue_first(kv, MAX_GROUPS);
    if (!at) return 0;
    kv->stats[kv_blocks(kv)[at - 1].group].host_evicted++;
    kv_evict_queue_remove(kv, at - 1);
    kv->n_cached_host_blocks--;
    kv_tree_detach(kv, at - 1, kv_evict_queue_why(kv, at - 1));
    return at;
}

void
kv_host_tier_offload(struct kv *kv, uint32_t block, unsigned lane, struct kv_out *out)
{
    struct kv_block *all = kv_blocks(kv), *b = &all[block], *c;
    uint32_t node = b->node, host_block;

    if (kv->c.group[b->group].kind == KV_STATE) return;
    if (kv_is_self(kv, b->group) && kv_node(kv, node)->n_tokens < kv->c.tokens_per_block) return;
    if (kv->n_host_blocks == 0 || kv->host_tier_away) return;
    if (b->priority < KV_OFFLOAD || kv_node(kv, node)->host[b->group]) return;
    if (out->n_copies >= out->max_copies / 2) return; /* the others are for kv_start() */
    check(out->step > 0);
    /* take_host_block() may evict the last host block below the node; the pin keeps the node. */
    kv_tree_pin(kv, node, &kv->busy_node);
    host_block = take_host_block(kv);
    if (host_block) {
        c = &all[host_block - 1];
        kv_wait_block(kv, lane, block, out);
        kv_wait_block(kv, lane, host_block - 1, out);
        *c = (struct kv_block){
            .state = BLOCK_CACHED, .group = b->group, .fill_pending = true, .priority = b->priority
        };
        c->step[lane] = out->step;
        kv->n_cached_host_blocks++;
        kv_tree_attach(kv, node, host_block - 1);
        kv_evict_queue_push(kv, host_block - 1);
        kv_add_copy(kv, b->group, block, host_block - 1, out);
        /* The caller evicts the block, which this step reads; its next user waits for this step. */
        b->step[lane] = MAX(b->step[lane], out->step);
        kv->stats[b->group].offloaded++;
    }
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
