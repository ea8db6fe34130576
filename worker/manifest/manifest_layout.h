/* manifest_layout.h - addresses within a manifest, and its atomic stores and loads. Private. */
#pragma once
#include "worker/manifest/manifest.h"

#include "base/failpoint.h"

union float_bits {
    float f;
    uint32_t bits;
};

static inline void
put32(_Atomic uint32_t *at, uint32_t v)
{
    atomic_store_explicit(at, v, memory_order_release);
    FP(manifest_stored);
}

static inline void
put64(_Atomic uint64_t *at, uint64_t v)
{
    atomic_store_explicit(at, v, memory_order_release);
    FP(manifest_stored);
}

static inline uint32_t
get32(const _Atomic uint32_t *at)
{
    return atomic_load_explicit(at, memory_order_acquire);
}

static inline uint64_t
get64(const _Atomic uint64_t *at)
{
    return atomic_load_explicit(at, memory_order_acquire);
}

static inline struct manifest_entry *
entry_of(const struct manifest *m, seq_slot slot)
{
    check(slot < m->h.n_slots);
    return (void *)(m->base + m->h.row_at + (size_t)slot * m->h.row_bytes);
}

static inline _Atomic uint32_t *
table_of(const struct manifest *m, seq_slot slot, uint32_t group)
{
    check(group < m->h.n_groups);
    return (void *)((char *)entry_of(m, slot) + m->h.group[group].table_at);
}

/* Returns how many leading table entries of a window group have attention sinks and stay in use. */
static inline uint32_t
sink_entries(const struct manifest *m, uint32_t group)
{
    return CEIL_DIV(m->h.group[group].sinks, m->h.tokens_per_block);
}

static inline struct manifest_node *
node_of(const struct manifest *m, uint32_t node)
{
    check(node < m->h.n_nodes);
    return (void *)(m->base + m->h.node_at + (size_t)node * m->h.node_bytes);
}

/* Returns how many host blocks a node may have in the group: of recurrent state one per layer. */
static inline uint32_t
n_host_of(const struct manifest_group *g)
{
    return g->kind == KV_STATE ? g->n_layers : 1;
}

/* Returns the number of words of a node's places: of each group the block, then the host blocks. */
static inline uint32_t
n_places(const struct manifest_head *h)
{
    uint32_t n = h->n_groups;

    for (uint32_t g = 0; g < h->n_groups; g++) n += n_host_of(&h->group[g]);
    return n;
}

static inline _Atomic uint32_t *
places_of(struct manifest_node *n)
{
    return (void *)(n + 1);
}

static inline _Atomic uint32_t *
tokens_of(const struct manifest *m, struct manifest_node *n)
{
    return places_of(n) + n_places(&m->h);
}

static inline struct manifest_decision *
decision_of(const struct manifest *m, seq_slot slot, uint32_t step)
{
    check(slot < m->h.n_slots && step < m->h.n_decisions);
    return (void *)(m->base + m->h.decision_at +
                    ((size_t)slot * m->h.n_decisions + step) * m->h.decision_bytes);
}

/* manifest_clear() clears the slot's entry. manifest_put_node() writes node l->node, or clears it
 * if l->live is false. Both are in manifest.c. */
void manifest_clear(struct manifest *m, seq_slot slot);
void manifest_put_node(struct manifest *m, const struct kv_tree_export *l);
