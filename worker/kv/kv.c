/* kv.c - checks a struct kv_config, lays out and initializes struct kv, counts blocks: see kv.h. */
#include "worker/kv/kv.h"

#include "worker/kv/kv_evict.h"
#include "worker/kv/kv_tree_export.h"

/* Returns the least common multiple of the slice sizes of all groups, in bytes. 0: a slice size is
 * 0, or the multiple needs more than 32 bits. */
static uint64_t
slice_lcm(const struct kv_config *c)
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
    uint64_t lcm = slice_lcm(c), largest = 0, slab;

    for (uint32_t g = 0; g < c->n_groups; g++) largest = MAX(largest, kv_block_bytes(&c->group[g]));
    if (lcm == 0 || largest == 0) return 0;
    /* The loop ends: in any pool, 20 largest blocks waste less than one block, so at most 5 %. */
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

/* Fills *kv with the pools, counts and offsets (bytes from kv) that follow from c, which has passed
 * check_config(). Returns the size of struct kv with all its arrays; 0: no slab of less than 4 GiB
 * holds the blocks of all groups. */
static uint64_t
lay_out(struct kv *kv, const struct kv_config *c)
{
    uint64_t at = sizeof *kv, n_blocks, n_host = 0;

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
    kv->host_block_bytes = ROUND_UP(kv->host_block_bytes, MAX(slice_lcm(c), UINT64_C(1)));
    if (kv->host_block_bytes && c->reuse)
        kv->n_host_blocks = (uint32_t)MIN(c->host_bytes / kv->host_block_bytes,
                                          UINT32_MAX / 2 - n_blocks);
    n_blocks += kv->n_host_blocks;
    kv->block_at = take_bytes(&at, n_blocks, sizeof(struct kv_block));
    kv->slab_at = take_bytes(&at, kv->n_slabs, sizeof(struct kv_slab));
    kv->n_rows = c->n_slots + (c->reuse ? KV_PINS : 0);
    kv->slot_at = take_bytes(&at, kv->n_rows, sizeof(struct kv_seq));
    kv->end_at = take_bytes(&at, c->n_slots, sizeof(seq_slot));
    for (uint32_t g = 0; g < c->n_groups; g++)
        kv->table_at[g] = take_bytes(&at, (uint64_t)kv->n_rows * c->group[g].max_entries, 4);
    for (uint32_t g = 0; g < c->n_groups; g++) n_host += kv_tree_n_host(&c->group[g]);
    kv->export_at = take_bytes(&at, n_host, sizeof(slice_id));
    kv->event_at = take_bytes(&at, c->max_events, sizeof(struct kv_event));
    return kv_tree_bytes(kv, at, n_blocks);
}

/* Checks a KV_STATE group. A hit needs a snapshot of each such group, so all have one interval. */
static int
check_state(const struct kv_config *c, uint32_t i, struct err *e)
{
    const struct kv_group *g = &c->group[i];

    for (uint32_t k = 0; k < i; k++)
        if (c->group[k].kind == KV_STATE && c->group[k].interval != g->interval)
            return err_set(
                e, -EINVAL,
                "snapshot intervals of KV groups %u and %u are %u and %u, which must be equal", k,
                i, c->group[k].interval, g->interval);
    if (g->interval % c->tokens_per_block)
        return err_set(e, -EINVAL,
                       "KV group %u: snapshot interval %u is not a multiple of the block size %u",
                       i, g->interval, c->tokens_per_block);
    if (g->n_parts != 1 ||
        g->max_entries < (uint64_t)g->n_layers * (g->interval ? 1 + KV_SNAPSHOTS : 1))
        return err_set(
            e, -EINVAL,
            "KV group %u: %u block-table entries of %u slices do not hold the state of %u layers "
            "(internal error)",
            i, g->max_entries, g->n_parts, g->n_layers);
    return 0;
}

/* Checks every field but the size of the arena, which kv_init() checks. */
static int
check_config(const struct kv_config *c, struct err *e)
{
    if (c->n_groups > MAX_GROUPS || c->n_lanes == 0 || c->n_lanes > MAX_LANES || c->n_slots == 0)
        return err_set(e, -EINVAL,
                       "the KV cache cannot have %u groups (at most %d), %u lanes (1 to %d) and %u "
                       "slots (at least 1)",
                       c->n_groups, MAX_GROUPS, c->n_lanes, MAX_LANES, c->n_slots);
    if (c->tokens_per_block == 0 || c->tokens_per_block > UINT16_MAX)
        return err_set(e, -EINVAL, "kv.tokens_per_block is %u; supported are 1 to %d",
                       c->tokens_per_block, UINT16_MAX);
    if (c->reuse && c->tokens_per_block > KV_MAX_TOKENS)
        return err_set(e, -EINVAL, "kv.tokens_per_block is %u; with kv.reuse the limit is %d",
                       c->tokens_per_block, KV_MAX_TOKENS);
    if (c->host_bytes > 0 && !c->reuse)
        return err_set(e, -EINVAL,
                       "kv.host_memory needs kv.reuse: without kv.reuse the host tier stays empty");
    for (uint32_t i = 0; i < c->n_groups; i++) {
        const struct kv_group *g = &c->group[i];

        if (g->n_layers == 0 || g->n_parts == 0 || g->slice_bytes == 0 || g->max_entries == 0)
            return err_set(e, -EINVAL,
                           "KV group %u has %u layers, %u slices of %u bytes and %u block-table "
                           "entries; none may be 0 (internal error)",
                           i, g->n_layers, g->n_parts, g->slice_bytes, g->max_entries);
        if (!(g->share >= 0 && g->share <= 1))
            return err_set(e, -EINVAL, "KV group %u: its share of the arena is %g, expected 0 to 1",
                           i, (double)g->share);
        if (g->kind == KV_WINDOW && g->window == 0)
            return err_set(e, -EINVAL, "KV group %u: the attention window is 0 tokens", i);
        if (g->kind == KV_STATE) TRY(check_state(c, i, e));
        if (c->arena_bytes / g->slice_bytes >= SLICE_NONE)
            return err_set(e, -EINVAL, "kv.memory is %llu bytes; it must be less than %llu bytes",
                           (unsigned long long)c->arena_bytes,
                           (unsigned long long)SLICE_NONE * g->slice_bytes);
    }
    return 0;
}

size_t
kv_bytes(const struct kv_config *c)
{
    struct kv kv;

    if (check_config(c, NULL) < 0) return sizeof kv; /* kv_init() reports the error */
    return MAX((size_t)lay_out(&kv, c), sizeof kv);
}

uint32_t
kv_tree_max_exports(const struct kv_config *c)
{
    struct kv kv;

    lay_out(&kv, c);
    return kv.n_nodes;
}

struct kv *
kv_init(void *mem, struct kv_config *c, struct err *e)
{
    struct kv *kv = mem;
    uint64_t slabs = 0, lcm;
    struct kv_out none = { 0 };

    if (check_config(c, e) < 0) return NULL;
    if (lay_out(kv, c) == 0) {
        err_set(e, -EINVAL,
                "no slab size up to 4 GiB suits all %u KV groups; lower kv.tokens_per_block",
                c->n_groups);
        return NULL;
    }
    lcm = slice_lcm(c);
    if (c->n_groups > 0 && (lcm == 0 || kv->c.slab_bytes % lcm != 0)) {
        err_set(e, -EINVAL,
                "the KV slab size, %u bytes, is not a multiple of the slice size of every KV group "
                "(internal error)",
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
        err_set(e, -EINVAL,
                "kv.memory is %llu bytes, too small: 2 blocks of each KV group need %llu bytes "
                "(%llu slabs of %u bytes); raise kv.memory",
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
