/* kv_config.c - see kv_config.h. */
#include "worker/kv/kv_config.h"

#include "worker/kv/kv_internal.h"
#include "worker/kv/kv_kind.h"
#include "worker/kv/kv_tree.h"
#include "worker/kv/kv_tree_export.h"

#include <errno.h>

uint64_t
kv_slice_lcm(const struct kv_config *c)
{
    uint64_t lcm = 1;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint64_t a = lcm, b = c->group[g].slice_bytes;

        if (b == 0) return 0;
        while (b) {
            uint64_t rest = a % b;

            a = b;
            b = rest;
        }
        lcm = lcm / a * c->group[g].slice_bytes;
        if (lcm > UINT32_MAX) return 0;
    }
    return lcm;
}

uint32_t
kv_slab_bytes(const struct kv_config *c)
{
    uint64_t lcm = kv_slice_lcm(c), largest = 0, slab;

    for (uint32_t g = 0; g < c->n_groups; g++) largest = MAX(largest, kv_block_bytes(&c->group[g]));
    if (lcm == 0 || largest == 0) return 0;
    /* The loop ends: a slab of 20 largest blocks wastes less than one block, which is 5 %. */
    for (slab = ROUND_UP(largest, lcm); slab <= UINT32_MAX; slab += lcm) {
        bool fits = true;

        for (uint32_t g = 0; g < c->n_groups; g++)
            fits = fits && slab % kv_block_bytes(&c->group[g]) * 20 <= slab;
        if (fits) return (uint32_t)slab;
    }
    return 0;
}

static uint64_t
take_bytes(uint64_t *at, uint64_t n, uint64_t each)
{
    uint64_t here = ROUND_UP(*at, (uint64_t)CACHE_LINE);

    *at = here + n * each;
    return here;
}

uint64_t
kv_config_lay_out(struct kv *kv, const struct kv_config *c)
{
    uint64_t at = sizeof *kv, n_blocks;

    *kv = (struct kv){ .c = *c };
    if (!kv->c.slab_bytes) kv->c.slab_bytes = kv_slab_bytes(c);
    if (c->n_groups > 0 && !kv->c.slab_bytes) return 0;
    kv->stride = 1;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint64_t bytes = kv_block_bytes(&c->group[g]);
        uint32_t p = 0;

        if (bytes == 0 || bytes > kv->c.slab_bytes) return 0;
        while (p < kv->n_pools && kv->pool[p].block_bytes != bytes) p++;
        kv->c.group[g].pool = (uint8_t)p;
        kv->sinks[g] = kv_kind_sinks(&c->group[g], c->tokens_per_block);
        if (p < kv->n_pools) continue;
        kv->pool[kv->n_pools++] = (struct kv_pool){
            .block_bytes = bytes, .per_slab = (uint32_t)(kv->c.slab_bytes / bytes)
        };
        while (kv->stride < kv->pool[p].per_slab) kv->stride = 1u << ++kv->place_bits;
    }
    if (c->n_groups > 0) kv->n_slabs = (uint32_t)MIN(c->arena_bytes / kv->c.slab_bytes, UINT32_MAX);
    n_blocks = (uint64_t)kv->n_slabs * kv->stride;
    for (uint32_t p = 0; p < kv->n_pools; p++)
        kv->host_block_bytes = MAX(kv->host_block_bytes, kv->pool[p].block_bytes);
    kv->host_block_bytes = ROUND_UP(kv->host_block_bytes, MAX(kv_slice_lcm(c), UINT64_C(1)));
    if (kv->host_block_bytes && c->reuse)
        kv->n_host_blocks = (uint32_t)MIN(c->host_bytes / kv->host_block_bytes,
                                          UINT32_MAX / 2 - n_blocks);
    n_blocks += kv->n_host_blocks;
    kv->block_at = take_bytes(&at, n_blocks, sizeof(struct kv_block));
    kv->slab_at = take_bytes(&at, kv->n_slabs, sizeof(struct kv_slab));
    kv->slot_at = take_bytes(&at, c->n_slots, sizeof(struct kv_seq));
    kv->end_at = take_bytes(&at, c->n_slots, sizeof(seq_slot));
    for (uint32_t g = 0; g < c->n_groups; g++)
        kv->table_at[g] = take_bytes(&at, (uint64_t)c->n_slots * c->group[g].max_entries, 4);
    kv->event_at = take_bytes(&at, c->max_events, sizeof(struct kv_event));
    return kv_tree_bytes(kv, at, n_blocks);
}

/* Snapshots are taken in all groups at the same positions. */
static int
check_state(const struct kv_config *c, uint32_t i, struct err *e)
{
    const struct kv_group *g = &c->group[i];

    for (uint32_t k = 0; k < i; k++)
        if (c->group[k].kind == KV_STATE && c->group[k].interval != g->interval)
            return err_set(e, -EINVAL,
                           "KV group %u: snapshot interval is %u positions, of group %u it is %u",
                           i, g->interval, k, c->group[k].interval);
    if (g->interval % c->tokens_per_block)
        return err_set(e, -EINVAL,
                       "KV group %u: snapshot interval %u is not a multiple of the block size %u",
                       i, g->interval, c->tokens_per_block);
    if (g->n_parts != 1 ||
        g->max_entries < (uint64_t)g->n_layers * (g->interval ? 1 + KV_SNAPSHOTS : 1))
        return err_set(e, -EINVAL,
                       "KV group %u: %u entries with %u parts do not hold the state of %u layers",
                       i, g->max_entries, g->n_parts, g->n_layers);
    return 0;
}

int
kv_config_check(const struct kv_config *c, struct err *e)
{
    if (c->n_groups > MAX_GROUPS || c->n_lanes == 0 || c->n_lanes > MAX_LANES || c->n_slots == 0)
        return err_set(e, -EINVAL, "KV cache with %u groups, %u lanes, %u slots is not supported",
                       c->n_groups, c->n_lanes, c->n_slots);
    if (c->tokens_per_block == 0 || c->tokens_per_block > UINT16_MAX)
        return err_set(e, -EINVAL, "KV blocks of %u tokens are not supported", c->tokens_per_block);
    if (c->reuse && c->tokens_per_block > KV_MAX_TOKENS)
        return err_set(e, -EINVAL, "KV blocks of %u tokens: kv.reuse supports at most %d",
                       c->tokens_per_block, KV_MAX_TOKENS);
    if (c->host_bytes > 0 && !c->reuse)
        return err_set(e, -EINVAL,
                       "kv.host_memory needs kv.reuse: without it the host tier stays empty");
    for (uint32_t i = 0; i < c->n_groups; i++) {
        const struct kv_group *g = &c->group[i];

        if (g->n_layers == 0 || g->n_parts == 0 || g->slice_bytes == 0 || g->max_entries == 0)
            return err_set(e, -EINVAL,
                           "KV group %u: 0 in %u layers, %u slices of %u bytes or %u entries", i,
                           g->n_layers, g->n_parts, g->slice_bytes, g->max_entries);
        if (!(g->share >= 0 && g->share <= 1))
            return err_set(e, -EINVAL, "KV group %u: share is %g, expected 0 to 1", i,
                           (double)g->share);
        if (g->kind == KV_WINDOW && g->window == 0)
            return err_set(e, -EINVAL, "KV group %u: window is 0 tokens", i);
        if (g->kind == KV_STATE) TRY(check_state(c, i, e));
        if (c->arena_bytes / g->slice_bytes >= SLICE_NONE)
            return err_set(e, -EINVAL, "kv.memory of %llu bytes: too many slices of %u bytes",
                           (unsigned long long)c->arena_bytes, g->slice_bytes);
    }
    return 0;
}

size_t
kv_bytes(const struct kv_config *c)
{
    struct kv kv;

    if (kv_config_check(c, NULL) < 0) return sizeof kv; /* kv_init() reports the error */
    return MAX((size_t)kv_config_lay_out(&kv, c), sizeof kv);
}

uint32_t
kv_tree_max_exports(const struct kv_config *c)
{
    struct kv kv;

    kv_config_lay_out(&kv, c);
    return kv.n_nodes;
}
