/* kv.c - initializes struct kv and counts blocks: see kv.h. */
#include "worker/kv/kv.h"

#include "worker/kv/kv_config.h"
#include "worker/kv/kv_host_tier.h"
#include "worker/kv/kv_internal.h"
#include "worker/kv/kv_pool.h"
#include "worker/kv/kv_tree.h"

#include <errno.h>

struct kv *
kv_init(void *mem, struct kv_config *c, struct err *e)
{
    struct kv *kv = mem;
    uint64_t slabs = 0, lcm;
    struct kv_out none = { 0 };

    if (kv_config_check(c, e) < 0) return NULL;
    if (kv_config_lay_out(kv, c) == 0) {
        err_set(e, -EINVAL, "no slab size below 4 GiB fits the blocks of all %u KV groups",
                c->n_groups);
        return NULL;
    }
    lcm = kv_slice_lcm(c);
    if (c->n_groups > 0 && (lcm == 0 || kv->c.slab_bytes % lcm != 0)) {
        err_set(e, -EINVAL,
                "KV slab of %u bytes is not a multiple of the slice sizes of all KV groups",
                kv->c.slab_bytes);
        return NULL;
    }
    for (uint32_t g = 0; g < c->n_groups; g++) {
        struct kv_pool *p = &kv->pool[kv->c.group[g].pool];

        p->n_scratch++;
        kv->slab_slices[g] = kv->c.slab_bytes / c->group[g].slice_bytes;
        kv->block_slices[g] = (uint32_t)(p->block_bytes / c->group[g].slice_bytes);
        if (kv->c.group[g].kind == KV_STATE) {
            kv->has_state = true;
            kv->interval = kv->c.group[g].interval;
        }
        p->target += (uint32_t)(c->group[g].share * (float)kv->n_slabs);
    }
    for (uint32_t p = 0; p < kv->n_pools; p++)
        slabs += CEIL_DIV(2 * kv->pool[p].n_scratch, kv->pool[p].per_slab);
    if (slabs > kv->n_slabs) {
        err_set(
            e, -ENOMEM,
            "kv.memory is %llu bytes; 2 blocks of each KV group need %llu bytes: %llu slabs of %u",
            (unsigned long long)c->arena_bytes, (unsigned long long)slabs * kv->c.slab_bytes,
            (unsigned long long)slabs, kv->c.slab_bytes);
        return NULL;
    }
    for (uint32_t g = 0; g < c->n_groups; g++) {
        kv->scratch[g] = kv_pool_take(kv, g, 0, &none);
        kv_blocks(kv)[kv->scratch[g]].state = BLOCK_SCRATCH;
        kv->pool[kv->c.group[g].pool].n_used--;
        kv->used[g]--;
        kv->stats[g] = (struct kv_stats){ 0 };
    }
    kv_tree_init(kv);
    kv_host_tier_init(kv);
    *c = kv->c;
    return kv;
}

const struct kv_config *
kv_config(const struct kv *kv)
{
    return &kv->c;
}

uint32_t
kv_n_pools(const struct kv *kv)
{
    return kv->n_pools;
}

void
kv_count(const struct kv *kv, uint32_t pool, struct kv_count *ret)
{
    const struct kv_pool *p = &kv->pool[pool];
    uint64_t blocks, capped = 0, cold = 0;
    uint32_t cached = p->n_cached - p->n_nodeless;
    bool all_capped = true;

    check(pool < kv->n_pools);
    for (uint32_t i = 0; i < kv->n_pools; i++)
        if (i != pool) cold += kv->pool[i].n_slabs - kv->pool[i].n_hot;
    blocks = (uint64_t)(p->n_slabs + kv->n_slabs - kv->n_drawn + cold) * p->per_slab - p->n_scratch;
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (kv->c.group[g].pool != pool) continue;
        capped += kv->c.group[g].max_blocks;
        all_capped = all_capped && kv->c.group[g].max_blocks > 0;
    }
    if (all_capped) blocks = MIN(blocks, capped);
    *ret = (struct kv_count){
        .blocks = (uint32_t)MIN(blocks, UINT32_MAX),
        .used = p->n_used,
        .cached = cached,
        .free = (uint32_t)MIN(blocks - p->n_used - cached, UINT32_MAX),
        .block_bytes = p->block_bytes,
    };
}

void
kv_count_host(const struct kv *kv, struct kv_count *ret)
{
    *ret = (struct kv_count){ .block_bytes = kv->host_block_bytes };
    if (kv->host_tier_away) return;
    ret->blocks = kv->n_host_blocks;
    ret->used = kv->n_held_host_blocks;
    ret->cached = kv->n_cached_host_blocks;
    ret->free = ret->blocks - ret->used - ret->cached;
}

slice_id
kv_scratch(const struct kv *kv, uint32_t group)
{
    check(group < kv->c.n_groups);
    return kv_slice(kv, group, kv->scratch[group]);
}
