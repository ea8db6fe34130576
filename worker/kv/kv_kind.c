/* kv_kind.c - see kv_kind.h. */
#include "worker/kv/kv_kind.h"

uint32_t
kv_kind_first(const struct kv_group *g, uint32_t tokens_per_block, uint32_t pos)
{
    if (g->kind != KV_WINDOW || pos < g->window) return 0;
    return (pos - g->window + 1) / tokens_per_block;
}

uint32_t
kv_kind_sinks(const struct kv_group *g, uint32_t tokens_per_block)
{
    return g->kind == KV_WINDOW ? CEIL_DIV(g->sinks, tokens_per_block) : 0;
}

uint32_t
kv_kind_entries(const struct kv_group *g, uint32_t tokens_per_block, uint32_t len,
                uint32_t n_source)
{
    uint64_t n = g->kind == KV_CROSS ? n_source : len;

    if (g->kind == KV_STATE) return len ? kv_kind_need(g, tokens_per_block, len, 0, 1) : 0;
    return (uint32_t)CEIL_DIV(n, tokens_per_block);
}

uint32_t
kv_kind_need(const struct kv_group *g, uint32_t tokens_per_block, uint32_t len, uint32_t n_source,
             uint32_t chunk)
{
    uint32_t all;
    uint64_t seen;

    if (g->kind == KV_STATE)
        return g->n_layers *
               (1 + (g->interval ? MIN(len / tokens_per_block, (uint32_t)KV_SNAPSHOTS) : 0));
    all = kv_kind_entries(g, tokens_per_block, len, n_source);
    if (g->kind != KV_WINDOW || all == 0) return all;
    /* The first query of a chunk sees window - 1 positions before it. n consecutive positions lie
     * in at most (n - 2) / block + 2 blocks, wherever it begins. */
    seen = (uint64_t)g->window - 1 + MAX(chunk, 1u);
    seen = (seen + tokens_per_block - 2) / tokens_per_block + 1;
    return (uint32_t)MIN(all, kv_kind_sinks(g, tokens_per_block) + seen);
}
