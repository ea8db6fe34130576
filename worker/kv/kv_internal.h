/* kv_internal.h - the memory layout of struct kv. For the files of worker/kv/ alone.
 *
 * struct kv and its arrays are one range of the caller's memory: the arrays are at offsets from its
 * start and refer to each other by index. Zero is the empty state of every array element, so pages
 * that were never used are never touched. A ref is an index + 1 of a block, node or slab; 0: none.
 *
 *     arena   | slab 0                | slab 1                | slab 2 ...
 *     pool      0 (blocks of 2.5 MiB)   1 (a block of 13 MiB)   none: any pool may draw it
 *     block     0    1    2    3    4   1 * stride              2 * stride ...
 *
 * A block number is slab * stride + place in the slab; stride is the smallest power of two that is
 * at least the number of blocks per slab of any pool. A pool draws a free slab when all of its own
 * slabs are full, and returns a slab as soon as its last block is free.
 *
 * A block is free, held by one or more slots, or cached: held by no slot, in the tree and in an
 * eviction queue. Cached blocks are capacity: they are evicted when no block is free. A slab is hot
 * if it has a held block, else cold; another pool that needs a cold slab may take it.
 *
 * Block numbers above those of the arena are host blocks, which are outside of slabs and have one
 * size for all groups. A host block is free, cached, or held by slots that onboard it. If a node
 * has both a block and a host block of a group, both have the same contents, and the block is
 * evicted without a copy.
 *
 * Reservations rest on one inequality, the slab sum, which kv_check() verifies:
 *     the sum over all pools of max(hot slabs, slabs that the scratch and reserved blocks of the
 *     pool would fill) is at most the number of slabs of the arena.
 * A reservation is granted only if the slab sum still holds. kv_pool_take() preserves it: a pool
 * takes a block of one more slab only if the sum allows that, otherwise a block of a hot slab. So a
 * reserved block can always be allocated. The reserved blocks of a group (kv.reserved_blocks):
 *     full, cross    the held blocks, each counted once, plus the blocks that slots may still
 *                    allocate. A block that 2 slots share is needed once: if one slot drops the
 *                    block, it remains for the other slot.
 *     window, state  the blocks that each slot may hold, a shared block once per slot: a slot that
 *                    drops a shared block allocates another, while other slots hold the shared one.
 */
#pragma once
#include "base/block_name.h"
#include "worker/kv/kv_event.h"
#include "worker/kv/kv_reuse.h"

enum block_state { BLOCK_FREE, BLOCK_HELD, BLOCK_CACHED, BLOCK_SCRATCH };

/* One block or host block. next, prev, more, node and owner are refs. A tail is a partial block of
 * a prefix hit, held from kv_admit() to kv_start() (kv_reuse.c). */
struct kv_block {
    uint64_t step[MAX_LANES]; /* the last step of each lane that may still use the block */
    uint64_t stamp;           /* cached: the value of kv.releases when the block was released */
    uint32_t next, prev;      /* free: next free place in the slab. cached: eviction queue links */
    uint32_t n_refs;          /* number of slots that hold the block, as an entry or as a tail */
    uint32_t node;            /* the node of the tree that has the block */
    uint32_t
        more; /* snapshot in the tree: block of the next layer (same tier); at the end the first */
    uint32_t owner; /* of a tail: its owner (kv_reuse.c); during adoption: see claim_entry() */
    /* fill_pending: a copy in the last step that step[] has fills the block. n_hits: prefix hits,
     * at most 15. queue: the priority under which the block is queued; an orphan's is 0
     * (kv_evict.h) */
    uint8_t group, state : 3, fill_pending : 1, n_hits : 4, priority, queue;
};

_Static_assert(sizeof(struct kv_block) == CACHE_LINE, "one cache line per block");

/* Cached blocks of one group: a list for each retention priority, the first block evicted first. */
struct kv_evict_queue {
    uint64_t some[2]; /* bit p is set if the list of priority p has a block */
    uint32_t first[KV_PRIORITY_MAX + 1], last[KV_PRIORITY_MAX + 1];
};

/* A node of the prefix tree: the tokens of one block, and the KV blocks computed for them. A root
 * has no tokens; it begins a cache namespace. All uint32_t but n_pins are refs. */
struct kv_node {
    uint64_t key[2];                    /* name of the node (kv_evict.h) */
    uint32_t parent, child, next, prev; /* child: the newest; next, prev: of the same parent */
    uint32_t chain;                     /* the next node of the same hash bucket */
    uint32_t slot[MAX_GROUPS];          /* each group's block with the KV of these tokens */
    uint32_t host[MAX_GROUPS];          /* each group's host block with the KV of these tokens */
    uint32_t n_pins;                    /* cursors at the node; while above 0 it is not pruned */
    uint32_t next_changed;              /* the next node to export (kv_tree_export.h) */
    uint16_t n_tokens;
    bool live, has_extra, changed;
};

/* One slab. Taking or giving a block writes only the first of its two cache lines. */
struct kv_slab {
    uint64_t freed[MAX_LANES]; /* per lane, the last step that used a block freed in the slab */
    uint32_t n_used, n_cached, n_fresh; /* blocks: held; cached; ever allocated since the draw */
    uint32_t first_free;                /* ref of the place in the slab that was freed last */
    uint32_t prev, next; /* links of the pool's slabs with a free block, or of the free slabs */
    uint8_t pool;        /* ref of the pool that has drawn the slab; 0: the slab is free */
    uint64_t stamp;      /* cold: the value of kv.releases when the slab became cold */
    uint64_t before[MAX_LANES]; /* per lane, the last step that used the slab before the draw */
    uint64_t mark; /* equal to kv.mark: hit_fits() (kv_reuse.c) has counted the slab already */
    uint32_t cold_prev, cold_next; /* links of the pool's cold slabs, coldest first */
    uint64_t zero[3];
};

_Static_assert(sizeof(struct kv_slab) == 2 * CACHE_LINE, "two cache lines per slab");

struct kv_pool {
    uint64_t block_bytes;
    uint32_t per_slab, n_slabs, n_hot;     /* per_slab: blocks; n_slabs: drawn slabs */
    uint32_t n_used, n_cached, n_nodeless; /* blocks; n_nodeless: cached but not in the tree */
    uint32_t n_scratch, n_reserved_blocks;
    uint32_t target;                /* number of slabs for the groups' shares; 0: no target */
    uint32_t first_open, last_open; /* refs: list of the pool's slabs with a free block */
    uint32_t first_cold, last_cold; /* refs: list of the pool's cold slabs */
};

/* The state of one sequence slot. It holds the entries first .. end - 1 of each group, and the
 * sink entries below first. tail and cursor are refs. */
struct kv_seq {
    uint64_t step; /* the last step that read or changed the slot's table rows; it is on `lane` */
    uint8_t lane;
    bool live;     /* between kv_reserve() and kv_drop() */
    bool ending;   /* dropped, but its EDIT_CLEAR is not sent yet */
    bool starting; /* admitted with a hit or resumed; kv_start() is not called yet */
    bool cross_stored;
    bool tree_full; /* the tree had no free node for the sequence, so no more is stored */
    uint32_t reserved[MAX_GROUPS]; /* blocks */
    uint32_t first[MAX_GROUPS], end[MAX_GROUPS];
    uint32_t tail[MAX_GROUPS];   /* starting: block whose first `part` tokens entry `end` needs */
    uint32_t n_host[MAX_GROUPS]; /* starting: number of entries whose host block is onboarded */
    uint32_t part;
    uint32_t snapshot[KV_SNAPSHOTS], next_snapshot; /* positions; index of the next to write */
    uint32_t cursor, n_stored; /* n_stored blocks are in the tree; cursor: the node of the last */
    struct kv_use use;
    req_id adopted; /* during adoption: the request of the slot's manifest entry */
};

struct kv {
    struct kv_config c;
    uint32_t n_pools, n_slabs, stride, place_bits; /* stride: 1 << place_bits */
    uint32_t n_rows;                /* rows of the tables: the slots, then the pins (kv_pin.c) */
    uint32_t n_drawn, n_fresh;      /* slabs: drawn by pools; drawn at least once since the start */
    uint32_t first_slab, last_slab; /* refs: list of the slabs that were returned, oldest first */
    uint32_t first_end, n_ends;     /* ring of the slots whose EDIT_CLEAR is not sent */
    /* block counts of each group, without the scratch block */
    uint32_t used[MAX_GROUPS], cached[MAX_GROUPS], reserved_blocks[MAX_GROUPS];
    uint32_t scratch[MAX_GROUPS]; /* number of the group's scratch block */
    uint32_t sinks[MAX_GROUPS];   /* number of entries that the sinks of a window group take */
    /* slices of the group in a slab and in a block */
    uint32_t slab_slices[MAX_GROUPS], block_slices[MAX_GROUPS];
    uint32_t next_hot[MAX_GROUPS]; /* per pool: slab at which take_in_place() starts to search */
    uint64_t done[MAX_LANES];      /* the last finished step of each lane */
    uint64_t releases, mark;       /* counters: cached releases; calls of hit_fits() */
    struct kv_pool pool[MAX_GROUPS];
    struct kv_evict_queue queue[MAX_GROUPS + 1]; /* one per group; the last is for host blocks */
    uint32_t n_host_blocks, n_mapped;            /* n_mapped: host blocks with mapped memory */
    uint32_t n_fresh_host_blocks, n_held_host_blocks, n_cached_host_blocks;
    uint32_t first_free_host_block, n_free_host_blocks; /* list of host blocks used before */
    bool onboard_pays;       /* onboarding a host block takes less time than computing its tokens */
    bool onboard_state_pays; /* the same of a snapshot, and the tokens of an interval */
    bool host_tier_away;     /* the memory of the host tier is not mapped yet */
    bool has_state;
    uint32_t interval;  /* positions between two snapshots; 0: no snapshots are taken */
    uint32_t busy_node; /* ref of a node that kv_host_tier_offload() protects from pruning */
    uint32_t first_changed, last_changed, n_changed; /* refs: list of the nodes to export */
    bool suppress_exports; /* set while a node is adopted: the manifest has this node already */
    struct kv_stats stats[MAX_GROUPS];
    uint32_t n_nodes, n_fresh_nodes, first_free_node, n_live_nodes, n_buckets;
    uint64_t host_block_bytes;
    struct block_key key; /* made of c.hash_secret */
    /* byte offsets of the arrays below from struct kv */
    uint64_t block_at, slab_at, slot_at, end_at, table_at[MAX_GROUPS];
    uint64_t node_at, bucket_at, token_at, extra_at, event_at, export_at;
    uint64_t n_events;
};

/* Defines a function that returns the first element of an array of struct kv. */
#define KV_ARRAY(name, type, at) \
    static inline type *name(const struct kv *kv) \
    { \
        return (type *)((uintptr_t)kv + kv->at); \
    }
KV_ARRAY(kv_blocks, struct kv_block, block_at)
KV_ARRAY(kv_slabs, struct kv_slab, slab_at)
KV_ARRAY(kv_seqs, struct kv_seq, slot_at)
KV_ARRAY(kv_end_ring, seq_slot, end_at)
KV_ARRAY(kv_nodes, struct kv_node, node_at)
KV_ARRAY(kv_buckets, uint32_t, bucket_at)
KV_ARRAY(kv_all_tokens, token_id, token_at)
KV_ARRAY(kv_all_extras, uint64_t, extra_at)
KV_ARRAY(kv_event_ring, struct kv_event, event_at)
KV_ARRAY(kv_export_hosts, slice_id, export_at) /* kv_tree_export.host of the last export */

/* Returns the slot's row of the group's block table, an array of block refs. */
static inline uint32_t *
kv_table(const struct kv *kv, uint32_t group, seq_slot slot)
{
    return (uint32_t *)((uintptr_t)kv + kv->table_at[group]) +
           (size_t)slot * kv->c.group[group].max_entries;
}

/* Returns the node with this ref, which is not 0. */
static inline struct kv_node *
kv_node(const struct kv *kv, uint32_t ref)
{
    return kv_nodes(kv) + ref - 1;
}

static inline bool
kv_is_leaf(const struct kv *kv, uint32_t node)
{
    return !kv_node(kv, node)->child;
}

/* Returns true if the group has the KV (or state) of decoder positions; false: of encoder input. */
static inline bool
kv_is_self(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind != KV_CROSS;
}

/* Returns true if each entry of the group has the KV of tokens_per_block decoder positions. */
static inline bool
kv_is_positions(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind == KV_FULL || kv->c.group[group].kind == KV_WINDOW;
}

/* Returns true if reserved_blocks counts a block once even if several slots share it: see above. */
static inline bool
kv_counts_once(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind == KV_FULL || kv->c.group[group].kind == KV_CROSS;
}

/* Returns how many sink entries the slot holds below s->first. All entries of the slot are visited
 * with: for (i = kv_begin(); i < s->end[group]; i = kv_after(i)). */
static inline uint32_t
kv_n_sinks(const struct kv *kv, const struct kv_seq *s, uint32_t group)
{
    return MIN(s->first[group], kv->sinks[group]);
}

static inline uint32_t
kv_n_entries(const struct kv *kv, const struct kv_seq *s, uint32_t group)
{
    return s->end[group] - s->first[group] + kv_n_sinks(kv, s, group);
}

static inline uint32_t
kv_begin(const struct kv *kv, const struct kv_seq *s, uint32_t group)
{
    return kv_n_sinks(kv, s, group) ? 0 : s->first[group];
}

static inline uint32_t
kv_after(const struct kv *kv, const struct kv_seq *s, uint32_t group, uint32_t entry)
{
    return entry + 1 == kv_n_sinks(kv, s, group) ? s->first[group] : entry + 1;
}

/* Returns the held entry before `entry`. To visit all backwards, call it kv_n_entries() times. */
static inline uint32_t
kv_before(const struct kv *kv, const struct kv_seq *s, uint32_t group, uint32_t entry)
{
    return entry == s->first[group] ? kv_n_sinks(kv, s, group) - 1 : entry - 1;
}

static inline bool
kv_has_entry(const struct kv *kv, const struct kv_seq *s, uint32_t group, uint32_t entry)
{
    return entry < s->end[group] && (entry >= s->first[group] || entry < kv_n_sinks(kv, s, group));
}

static inline uint32_t
kv_slab_of(const struct kv *kv, uint32_t block)
{
    return block >> kv->place_bits;
}

static inline uint32_t
kv_place_of(const struct kv *kv, uint32_t block)
{
    return block & (kv->stride - 1);
}

static inline bool
kv_is_host_block(const struct kv *kv, uint32_t block)
{
    return block >= kv->n_slabs * kv->stride;
}

static inline void
kv_charge(struct kv *kv, uint32_t group, int64_t n)
{
    kv->reserved_blocks[group] += (uint32_t)n;
    kv->pool[kv->c.group[group].pool].n_reserved_blocks += (uint32_t)n;
}

/* The kv_wait functions make the planned step of `lane` wait for steps of other lanes: they raise
 * out->wait[l] to the last unfinished step of lane l that uses the same memory. They are inline,
 * because kv_grow() and kv_pool_take() call them for every block.
 *
 * kv_wait_steps() waits for the steps step[l] of each other lane l. */
static inline void
kv_wait_steps(const struct kv *kv, unsigned lane, const uint64_t step[MAX_LANES],
              struct kv_out *out)
{
    for (unsigned l = 0; l < kv->c.n_lanes; l++)
        if (l != lane && step[l] > kv->done[l]) out->wait[l] = MAX(out->wait[l], step[l]);
}

/* Makes the planned step wait for the last steps of other lanes that used the block. */
static inline void
kv_wait_block(const struct kv *kv, unsigned lane, uint32_t block, struct kv_out *out)
{
    kv_wait_steps(kv, lane, kv_blocks(kv)[block].step, out);
}

/* Makes the planned step wait for the last step that used the table rows of the slot. If the slot
 * is new, that is the step with the EDIT_CLEAR of the slot's previous sequence. */
static inline void
kv_wait_row(const struct kv *kv, unsigned lane, seq_slot slot, struct kv_out *out)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];

    if (s->lane != lane && s->step > kv->done[s->lane])
        out->wait[s->lane] = MAX(out->wait[s->lane], s->step);
}

/* Appends an edit to out; aborts if out is full. Inline, because it is called for every block. */
static inline void
kv_add_edit(struct kv_out *out, enum edit_op op, uint32_t group, seq_slot slot, uint32_t entry,
            slice_id at)
{
    check(out->n_edits < out->max_edits);
    out->edit[out->n_edits++] = (struct kv_edit){
        .op = (uint8_t)op, .group = (uint8_t)group, .slot = slot, .entry = entry, .at = at
    };
}

/* kv_seq.c */

/* Releases the slot's tail of the group, if any. `step` of `lane` is the last step that uses it. */
void kv_give_tail(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane, uint64_t step);

/* kv_state.c */

/* kv_state_grow() allocates the slot's live state (kv_seq.h) if the slot has none. kv_state_start()
 * allocates a live state and plans the copy into it from the snapshot of the slot's hit, if any. */
void kv_state_grow(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group, struct kv_out *out);
void kv_state_start(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group,
                    struct kv_out *out);
/* Attaches the slot's snapshot at the end of the entry to the node, if the node has none. */
void kv_state_store(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t node,
                    uint32_t group, uint32_t entry);

/* kv_event.c: logs an event about a block in the tree. was: the block's priority before. */
void kv_event_put(struct kv *kv, enum kv_event_op op, uint32_t block, uint8_t was, enum kv_why why);

/* Returns the slice_id of a block: the index of its first slice, counted in slices of the group
 * from the start of the arena, or for a host block from the start of the host memory. */
static inline slice_id
kv_slice(const struct kv *kv, uint32_t group, uint32_t block)
{
    uint32_t host_block = block - kv->n_slabs * kv->stride;

    if (kv_is_host_block(kv, block))
        return (slice_id)(host_block * kv->host_block_bytes / kv->c.group[group].slice_bytes);
    return kv_slab_of(kv, block) * kv->slab_slices[group] +
           kv_place_of(kv, block) * kv->block_slices[group];
}
