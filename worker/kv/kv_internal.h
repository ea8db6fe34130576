/* kv_internal.h - the memory layout of struct kv. For the files of worker/kv/ alone.
 *
 * One piece of the caller's memory: arrays at offsets from its start, indices instead of pointers.
 * Zero is the empty state of every array, so memory that was never used is never touched.
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
 * eviction queue. Cached blocks are capacity: they are evicted when no block is free. A slab
 * without held blocks is cold; another pool that needs it may take it.
 *
 * The block numbers after the arena's are host blocks: one size for all groups, no slabs. A host
 * block is free, cached, or held by slots that onboard it. If a node has both a block and a host
 * block of a group, both have the same contents and the block is evicted without a copy.
 *
 * Reservations rest on one sum over all pools, checked by kv_check():
 *     max(slabs with a held block, slabs that scratch and reserved blocks would fill) <= all slabs.
 * A reservation is granted only if the sum still holds. kv_pool_take() keeps the sum: a pool uses a
 * slab more only if the sum allows it, and otherwise a block of a slab that it uses already. So a
 * reserved block can always be allocated. The reserved blocks of a group (kv.reserved_blocks):
 *     full, cross    the held blocks, each counted once, plus the blocks that slots may still
 *                    allocate. Two slots that share a block need it once, and the slot that drops
 *                    it first takes nothing from the other.
 *     window, state  the blocks that each slot may hold, a shared block once per slot. Because a
 *                    slot that drops a shared block allocates another while the shared one remains.
 */
#pragma once

#include "worker/kv/kv_event.h"
#include "worker/kv/kv_reuse.h"

enum block_state { BLOCK_FREE, BLOCK_HELD, BLOCK_CACHED, BLOCK_SCRATCH };
enum { SECRET_BYTES = 192 };

/* A ref is an index + 1; 0 is none. next, prev, more, node, owner, tail and cursor are refs. */
struct kv_block {
    uint64_t step[MAX_LANES]; /* the last step of each lane that may still use the block */
    uint64_t stamp;           /* cached: the value of kv.releases at its release */
    uint32_t next, prev;      /* free: next free place of the slab. cached: in its queue */
    uint32_t n_refs;          /* slots that hold it, as an entry or as a tail */
    uint32_t node;            /* its node in the tree */
    uint32_t more;            /* snapshot in the tree: the next layer's block, in a ring */
    uint32_t owner;           /* the slot whose reservation pays for this tail until kv_start() */
    /* fill_pending: the copy of step[] has yet to fill the block. n_hits: at most 15 */
    uint8_t group, state : 3, fill_pending : 1, n_hits : 4, priority, queue;
};

_Static_assert(sizeof(struct kv_block) == CACHE_LINE, "one cache line per block");

/* Evictable blocks of one group by priority, oldest first. */
struct kv_evict_queue {
    uint64_t some[2]; /* bit: the priority has a block */
    uint32_t first[KV_PRIORITY_MAX + 1], last[KV_PRIORITY_MAX + 1];
};

/* The tokens of one block in the tree. A root has no tokens; it is a cache namespace. */
struct kv_node {
    uint64_t key[2];
    uint32_t parent, child, next, prev; /* prev, next: children of one parent, newest first */
    uint32_t chain;                     /* the next node of its hash bucket */
    uint32_t slot[MAX_GROUPS];          /* each group's block with these tokens */
    uint32_t host[MAX_GROUPS];          /* and its host block */
    uint32_t n_pins;                    /* cursors on the node: it is not pruned */
    uint32_t next_changed;              /* list of nodes to export (kv_tree_export.h) */
    uint16_t n_tokens;
    bool live, has_extra, changed;
};

/* Fences [lane], the last step that used the slab's memory: before, by earlier pools; freed, by
 * this pool, collected for the next one. Taking or giving a block changes the first cache line
 * only. */
struct kv_slab {
    uint64_t freed[MAX_LANES];
    uint32_t n_used, n_cached, n_fresh; /* held; cached; allocated at least once since drawn */
    uint32_t first_free;                /* the block freed last */
    uint32_t prev, next; /* of the pool's slabs with a free block, or of the free slabs */
    uint8_t pool;        /* + 1; 0: free */
    uint64_t stamp;      /* cold: the value of kv.releases when it became cold */
    uint64_t before[MAX_LANES];
    uint64_t mark;                 /* kv.mark: the current count includes the slab */
    uint32_t cold_prev, cold_next; /* of the pool's cold slabs, coldest first */
    uint64_t zero[3];
};

_Static_assert(sizeof(struct kv_slab) == 2 * CACHE_LINE, "two cache lines per slab");

struct kv_pool {
    uint64_t block_bytes;
    uint32_t per_slab, n_slabs, n_hot;     /* n_hot: slabs with a held block */
    uint32_t n_used, n_cached, n_nodeless; /* blocks; n_nodeless: cached but not in the tree */
    uint32_t n_scratch, n_reserved_blocks;
    uint32_t target;                /* slabs, from its groups' shares; 0: none */
    uint32_t first_open, last_open; /* its slabs with a free block */
    uint32_t first_cold, last_cold;
};

struct kv_seq {
    uint64_t step; /* the last step that read or changed its table rows */
    uint8_t lane;
    bool live;     /* between kv_reserve() and kv_drop() */
    bool ending;   /* its EDIT_CLEAR is not sent yet */
    bool starting; /* admitted with a hit, kv_start() is not called yet */
    bool cross_stored;
    bool tree_full; /* the tree had no free node for it: store no more */
    uint32_t reserved[MAX_GROUPS];
    uint32_t first[MAX_GROUPS],
        end[MAX_GROUPS]; /* entries held: first .. end - 1, and sinks below */
    uint32_t
        tail[MAX_GROUPS]; /* starting: the block whose first `part` tokens its next entry needs */
    uint32_t n_host[MAX_GROUPS]; /* starting: entries that are host blocks, to be onboarded */
    uint32_t part;
    uint32_t snapshot[KV_SNAPSHOTS], next_snapshot; /* positions; index of the next snapshot */
    uint32_t cursor, n_stored;                      /* the node of its first n_stored blocks */
    req_id adopted; /* the request whose manifest entry it came from, during adoption */
};

struct kv {
    struct kv_config c;
    uint32_t n_pools, n_slabs, stride, place_bits; /* stride: 1 << place_bits */
    uint32_t n_drawn, n_fresh;                     /* slabs; n_fresh: drawn at least once */
    uint32_t first_slab, last_slab;                /* returned slabs, oldest first */
    uint32_t first_end, n_ends;                    /* ring of slots whose EDIT_CLEAR is not sent */
    /* blocks, without scratch */
    uint32_t used[MAX_GROUPS], cached[MAX_GROUPS], reserved_blocks[MAX_GROUPS];
    uint32_t scratch[MAX_GROUPS]; /* block numbers */
    uint32_t sinks[MAX_GROUPS];   /* entries, of a window */
    /* slices of the group: per slab, per block */
    uint32_t slab_slices[MAX_GROUPS], block_slices[MAX_GROUPS];
    uint32_t next_hot[MAX_GROUPS]; /* per pool: slab at which take_in_place() starts */
    uint64_t done[MAX_LANES];      /* the last finished step */
    uint64_t releases, mark;
    struct kv_pool pool[MAX_GROUPS];
    struct kv_evict_queue queue[MAX_GROUPS + 1]; /* the last: host blocks */
    uint32_t n_host_blocks, n_mapped;            /* n_mapped: with memory */
    uint32_t n_fresh_host_blocks, n_held_host_blocks, n_cached_host_blocks;
    uint32_t first_free_host_block, n_free_host_blocks; /* used by the previous worker, now free */
    bool onboard_pays;                                  /* a copy is faster than computing */
    bool host_tier_away;                                /* its memory is not mapped yet */
    bool has_state;
    uint32_t interval;                               /* of snapshots; 0: there are none */
    uint32_t busy_node;                              /* must not be pruned now */
    uint32_t first_changed, last_changed, n_changed; /* nodes to export */
    bool suppress_exports;                           /* the manifest has the change already */
    struct kv_stats stats[MAX_GROUPS];
    uint32_t n_nodes, n_fresh_nodes, first_free_node, n_live_nodes, n_buckets;
    uint64_t host_block_bytes;
    uint8_t secret[SECRET_BYTES];
    uint64_t block_at, slab_at, slot_at, end_at, table_at[MAX_GROUPS]; /* offsets, bytes */
    uint64_t node_at, bucket_at, token_at, extra_at, event_at;
    uint64_t n_events;
};

/* The arrays: name(kv) returns the first element. */
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

/* Returns the slot's row of the group's table, an array of refs. */
static inline uint32_t *
kv_table(const struct kv *kv, uint32_t group, seq_slot slot)
{
    return (uint32_t *)((uintptr_t)kv + kv->table_at[group]) +
           (size_t)slot * kv->c.group[group].max_entries;
}

/* Returns the node of a ref. */
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

/* Returns true if the group's positions are the decoder's, not the encoder input's. */
static inline bool
kv_is_self(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind != KV_CROSS;
}

/* Returns true if an entry is a block of decoder positions. */
static inline bool
kv_is_positions(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind == KV_FULL || kv->c.group[group].kind == KV_WINDOW;
}

/* Returns true if a held block counts once, also if several slots share it. */
static inline bool
kv_counts_once(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind == KV_FULL || kv->c.group[group].kind == KV_CROSS;
}

/* Visits the slot's entries in order: for (i = kv_begin(); i < end; i = kv_after(i)). */
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

/* The same backwards: start with end, kv_n_entries() times. */
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

/* The waits of a planned step: each function raises out->wait[l] to the step of another lane l that
 * has to be done first; steps that are done are left out. Inline, because kv_grow() and
 * kv_pool_take() call them for every block.
 *
 * kv_wait_steps: step[] has the last step of each lane that used what the planned step is to
 * use. */
static inline void
kv_wait_steps(const struct kv *kv, unsigned lane, const uint64_t step[MAX_LANES],
              struct kv_out *out)
{
    for (unsigned l = 0; l < kv->c.n_lanes; l++)
        if (l != lane && step[l] > kv->done[l]) out->wait[l] = MAX(out->wait[l], step[l]);
}

/* For the last steps that used the block. */
static inline void
kv_wait_block(const struct kv *kv, unsigned lane, uint32_t block, struct kv_out *out)
{
    kv_wait_steps(kv, lane, kv_blocks(kv)[block].step, out);
}

/* For the last step that used the table rows of the slot, or the step with the EDIT_CLEAR of the
 * sequence that had the slot before. */
static inline void
kv_wait_row(const struct kv *kv, unsigned lane, seq_slot slot, struct kv_out *out)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];

    if (s->lane != lane && s->step > kv->done[s->lane])
        out->wait[s->lane] = MAX(out->wait[s->lane], s->step);
}

/* Appends an edit; stops the program if the array is full. Inline for the same reason. */
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

/* Releases the slot's tail after its copy, or when the slot is dropped. */
void kv_give_tail(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane, uint64_t step);

/* kv_state.c */

/* kv_state_grow() allocates the live state if there is none. kv_state_start() allocates it as a
 * copy of the snapshot that the slot was admitted with. */
void kv_state_grow(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group, struct kv_out *out);
void kv_state_start(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group,
                    struct kv_out *out);
/* Attaches the slot's snapshot of the end of the entry, if it has one, to the node. */
void kv_state_store(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t node,
                    uint32_t group, uint32_t entry);

/* kv_event.c: logs an event of a block in the tree. was: its priority before. */
void kv_event_put(struct kv *kv, enum kv_event_op op, uint32_t block, uint8_t was, enum kv_why why);

/* Returns the public name of a block: its first slice, in slices of its group from the start of the
 * arena, or of the host memory for a host block. */
static inline slice_id
kv_slice(const struct kv *kv, uint32_t group, uint32_t block)
{
    uint32_t host_block = block - kv->n_slabs * kv->stride;

    if (kv_is_host_block(kv, block))
        return (slice_id)(host_block * kv->host_block_bytes / kv->c.group[group].slice_bytes);
    return kv_slab_of(kv, block) * kv->slab_slices[group] +
           kv_place_of(kv, block) * kv->block_slices[group];
}
