/* kv_need.c - computes how many blocks a sequence needs: see kv_need.h. */
#include "worker/kv/kv_need.h"

#include "worker/kv/kv_internal.h"

uint32_t
kv_kind_first(const struct kv_group *g, uint32_t tokens, uint32_t pos)
{
    if (g->kind != KV_WINDOW || pos < g->window) return 0;
    return (pos - g->window + 1) / tokens;
}

uint32_t
kv_kind_sinks(const struct kv_group *g, uint32_t tokens)
{
    return g->kind == KV_WINDOW ? CEIL_DIV(g->sinks, tokens) : 0;
}

uint32_t
kv_kind_entries(const struct kv_group *g, uint32_t tokens, uint32_t len, uint32_t n_source)
{
    uint64_t n = g->kind == KV_CROSS ? n_source : len;

    if (g->kind == KV_STATE) return len ? kv_kind_need(g, tokens, len, 0, 1) : 0;
    return (uint32_t)CEIL_DIV(n, tokens);
}

uint32_t
kv_kind_need(const struct kv_group *g, uint32_t tokens, uint32_t len, uint32_t n_source,
             uint32_t chunk)
{
    uint32_t all;
    uint64_t seen;

    if (g->kind == KV_STATE)
        return g->n_layers * (1 + (g->interval ? MIN(len / tokens, (uint32_t)KV_SNAPSHOTS) : 0));
    all = kv_kind_entries(g, tokens, len, n_source);
    if (g->kind != KV_WINDOW || all == 0) return all;
    /* The first query of a chunk sees window - 1 positions before it. n consecutive positions lie
     * in at most (n - 2) / block + 2 blocks, wherever they begin. */
    seen = (uint64_t)g->window - 1 + MAX(chunk, 1u);
    seen = (seen + tokens - 2) / tokens + 1;
    return (uint32_t)MIN(all, kv_kind_sinks(g, tokens) + seen);
}

struct kv_need
kv_need(const struct kv *kv, uint32_t len, uint32_t n_source, uint32_t chunk)
{
    struct kv_need n = { { 0 } };

    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        n.n_blocks[g] = kv_kind_need(&kv->c.group[g], kv->c.tokens_per_block, len, n_source, chunk);
    return n;
}

int
kv_fits_alone(const struct kv *kv, const struct kv_need *n, uint32_t len, uint32_t n_source,
              struct err *e)
{
    uint64_t blocks[MAX_GROUPS] = { 0 }, slabs = 0;
    bool fits = true;

    for (uint32_t i = 0; i < kv->c.n_groups; i++) {
        const struct kv_group *g = &kv->c.group[i];
        uint32_t entries = kv_kind_entries(g, kv->c.tokens_per_block, len, n_source);

        if (entries > g->max_entries)
            return err_set(
                e, -EMSGSIZE,
                "the request may have %u %s, but the block table of a sequence holds at most %llu",
                g->kind == KV_CROSS ? n_source : len,
                g->kind == KV_CROSS ? "encoder input tokens" : "tokens",
                (unsigned long long)g->max_entries * kv->c.tokens_per_block);
        fits = fits && (!g->max_blocks || n->n_blocks[i] <= g->max_blocks);
        blocks[g->pool] += n->n_blocks[i];
    }
    for (uint32_t p = 0; p < kv->n_pools; p++)
        slabs += CEIL_DIV(blocks[p] + kv->pool[p].n_scratch, kv->pool[p].per_slab);
    if (fits && slabs <= kv->n_slabs) return 0;
    if (!e) return -EMSGSIZE;
    return err_set(e, -EMSGSIZE,
                   "%u tokens (and %u encoder input tokens) do not fit the KV cache: its %llu "
                   "bytes hold at most %llu tokens of one request",
                   len, n_source, (unsigned long long)kv->c.arena_bytes,
                   (unsigned long long)kv_longest(kv, n_source));
}

uint64_t
kv_longest(const struct kv *kv, uint32_t n_source)
{
    uint64_t low = 0, high = UINT32_MAX; /* low fits or is 0; high + 1 does not fit */

    while (low < high) {
        uint32_t len = (uint32_t)((low + high + 1) / 2);
        struct kv_need n = kv_need(kv, len, n_source, kv->c.tokens_per_block);

        if (kv_fits_alone(kv, &n, len, n_source, NULL) == 0) {
            low = len;
        } else {
            high = len - 1;
        }
    }
    return low;
}
