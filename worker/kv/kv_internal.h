/* kv_internal.h - the memory behind struct kv: what lies where. For the files of worker/kv/ alone.
 *
 * One piece of the caller's memory, arrays at offsets from its start, indices instead of pointers.
 * All zeroes is the empty state of every array, so memory that was never used is never touched.
 *
 *     arena   | slab 0                | slab 1                | slab 2 ...
 *     pool      0 (blocks of 2.5 MiB)   1 (a block of 13 MiB)   nobody's: any pool may draw it
 *     block     0    1    2    3    4   1 * stride              2 * stride ...
 *
 * A block's number is slab * stride + its place in the slab, stride being the first power of two that is not
 * less than the blocks that a slab of any pool has. Free slabs belong to nobody; a pool draws one when all of
 * its own are full, and gives one back the moment its last block is free.
 *
 * A block is free, held by one slot or several, or cached: nobody's, found by the tree, next in line in
 * a queue. Cached blocks are capacity: they are taken when no block is free, and a slab in which none is
 * held (a cold one) is another pool's when that needs it.
 *
 * Behind the arena's blocks stand those of the host tier, cells: one size for all groups, no slabs. A cell is
 * free, cached, or held by slots that will fetch what it has. A node may have a block and a cell of a group;
 * then they hold the same, and the block goes without a copy.
 *
 * The promise to the scheduler rests on one sum, checked by kv_check(): over all pools,
 *     max(slabs with a held block, slabs that scratch and reserved_blocks blocks would fill)  <=  all slabs.
 * A reservation is granted only if the sum still holds. Taking keeps it: a pool holds a block of one more
 * slab only where the sum allows that, and takes one of a slab it holds already where not. So a reserved_blocks
 * block can always be had. What a group has reserved_blocks (kv.reserved_blocks):
 *     full, cross   the blocks held, each once, and what slots may still take. Two slots that share
 *                   a block need it once, and whoever drops it first takes nothing from the other.
 *     window, state what all slots may hold, each block as often as it is shared. Because a slot that drops
 *                   a shared one will take another, while the first stays.
 */
#ifndef KV_INTERNAL_H
#define KV_INTERNAL_H

#include "worker/kv/kv_event.h"
#include "worker/kv/kv_kind.h"
#include "worker/kv/kv_reuse.h"

enum block_state { BLOCK_FREE, BLOCK_HELD, BLOCK_CACHED, BLOCK_SCRATCH };
enum { SECRET_BYTES = 192 };

/* Links are index + 1, 0 ends; so are node, owner, tail, cursor. */
struct kv_block {
    uint64_t step[MAX_LANES]; /* given back: the last step of each lane that may still use it */
    uint64_t stamp;           /* cached: when it was released, counted in releases */
    uint32_t next, prev;      /* free: the slab's next free one, place + 1. cached: in its queue */
    uint32_t n_refs;          /* slots that hold it, as an entry or as a tail */
    uint32_t node;            /* where it is found */
    uint32_t more;            /* of a snapshot that is found: the next layer's, in a ring */
    uint32_t owner;           /* the slot that counts it as one of its own before kv_start() */
    /* coming: a copy of step[] is yet to fill it. n_hits: since it was taken, at most 15 */
    uint8_t group, state : 3, coming : 1, n_hits : 4, priority, queue;
};

_Static_assert(sizeof(struct kv_block) == CACHE_LINE, "its neighbours are not looked at with it");

/* Blocks of one group that may be taken for others, by priority, oldest first. */
struct kv_evict_queue {
    uint64_t some[2]; /* bit: that priority has one */
    uint32_t first[KV_PRIORITY_MAX + 1], last[KV_PRIORITY_MAX + 1];
};

/* One block of tokens in the tree; a root, without tokens, is a space (kv_reuse.h). */
struct kv_node {
    uint64_t key[2];
    uint32_t parent, child, next, prev; /* prev, next: children of one parent, newest first */
    uint32_t chain;                     /* of its bucket */
    uint32_t slot[MAX_GROUPS];          /* the group's block with these tokens */
    uint32_t host[MAX_GROUPS];          /* and its cell */
    uint32_t n_pins;                    /* slots that go on from here */
    uint32_t next_changed;              /* of those that are to be told (kv_tree_export.h) */
    uint16_t n_tokens;
    bool live, has_extra, changed;
};

/* Fences [lane]: step to wait for before a block of the slab is used: before, from other pools' use of
 * the slab; freed, gathered for the next pool. What a block that is taken or given back changes stands in the
 * first cache line. */
struct kv_slab {
    uint64_t freed[MAX_LANES];
    uint32_t n_used, n_cached, n_fresh; /* held; cached; ever taken since it was drawn */
    uint32_t first_free;                /* given back last */
    uint32_t prev, next; /* of the pool's slabs with a free block, or of the free slabs */
    uint8_t pool;        /* + 1; 0: nobody's */
    uint64_t stamp;      /* cold: since when, counted in releases */
    uint64_t before[MAX_LANES];
    uint64_t mark;                 /* kv.mark: a count that goes on has seen it */
    uint32_t cold_prev, cold_next; /* of the pool's cold slabs, coldest first */
    uint64_t zero[3];
};

_Static_assert(sizeof(struct kv_slab) == 2 * CACHE_LINE, "a block's slab is looked at with it");

struct kv_pool {
    uint64_t block_bytes;
    uint32_t per_slab, n_slabs, n_hot;  /* n_hot: slabs with a held block */
    uint32_t n_used, n_cached, n_blank; /* blocks; n_blank: of the cached ones nothing is found */
    uint32_t n_scratch, n_reserved_blocks;
    uint32_t target;                /* slabs that its groups' shares come to; 0: none */
    uint32_t first_open, last_open; /* its slabs with a free block */
    uint32_t first_cold, last_cold;
};

struct kv_seq {
    uint64_t step; /* the last step that read or changed its table rows */
    uint8_t lane;
    bool live;     /* between kv_reserve() and kv_drop() */
    bool ending;   /* its EDIT_CLEAR is yet to be sent */
    bool starting; /* it was admitted with a hit, kv_start() is to come */
    bool cross_stored;
    bool dull; /* the tree had no room for it */
    uint32_t reserved[MAX_GROUPS];
    uint32_t first[MAX_GROUPS],
        end[MAX_GROUPS];         /* entries held: first .. end, and of sinks those below */
    uint32_t tail[MAX_GROUPS];   /* starting: the block of which part tokens are its next entry's */
    uint32_t n_host[MAX_GROUPS]; /* starting: entries that are cells, to be fetched */
    uint32_t part;
    uint32_t snapshot[KV_SNAPSHOTS],
        next_snapshot;         /* positions they are of; the next one's place */
    uint32_t cursor, n_stored; /* the node of its first n_stored blocks */
    req_id adopted;            /* whose row it was taken from: while rows come in */
};

struct kv {
    struct kv_config c;
    uint32_t n_pools, n_slabs, stride, place_bits; /* stride: 1 << place_bits */
    uint32_t n_drawn, n_fresh;                     /* slabs; n_fresh: ever drawn */
    uint32_t first_slab, last_slab;                /* slabs given back, oldest first */
    uint32_t first_end, n_ends; /* ring of slots whose EDIT_CLEAR is yet to be sent */
    /* blocks, without scratch */
    uint32_t used[MAX_GROUPS], cached[MAX_GROUPS], reserved_blocks[MAX_GROUPS];
    uint32_t scratch[MAX_GROUPS]; /* block numbers */
    uint32_t sinks[MAX_GROUPS];   /* entries, of a window */
    /* slices of the group's, in a slab, in a block */
    uint32_t slab_slices[MAX_GROUPS], block_slices[MAX_GROUPS];
    uint32_t next_hot[MAX_GROUPS]; /* where the search of a pool's held slabs goes on */
    uint64_t done[MAX_LANES];
    uint64_t releases, mark;
    struct kv_pool pool[MAX_GROUPS];
    struct kv_evict_queue queue[MAX_GROUPS + 1]; /* the last: cells */
    uint32_t n_cells, n_there;                   /* n_there: mapped */
    uint32_t n_fresh_cells, n_held_cells, n_cached_cells;
    uint32_t first_free_cell, n_free_cells; /* that a predecessor used and left nothing in */
    bool fetch;                             /* it is worth it */
    bool away;                              /* the cells' memory: it is yet to come */
    bool has_state;
    uint32_t interval;                               /* of its snapshots; 0: there are none */
    uint32_t busy;                                   /* a node that is not pruned now */
    uint32_t first_changed, last_changed, n_changed; /* nodes that are to be told */
    bool quiet;                                      /* what changes now is told already */
    struct kv_stats stats[MAX_GROUPS];
    uint32_t n_nodes, n_fresh_nodes, first_free_node, n_live_nodes, n_buckets;
    uint64_t cell_bytes;
    uint8_t secret[SECRET_BYTES];
    uint64_t block_at, slab_at, slot_at, end_at, table_at[MAX_GROUPS]; /* offsets, bytes */
    uint64_t node_at, bucket_at, token_at, extra_at, event_at;
    uint64_t n_events;
};

static inline struct kv_block *
kv_blocks(const struct kv *kv)
{
    return (struct kv_block *)((uintptr_t)kv + kv->block_at);
}

static inline struct kv_slab *
kv_slabs(const struct kv *kv)
{
    return (struct kv_slab *)((uintptr_t)kv + kv->slab_at);
}

static inline struct kv_seq *
kv_seqs(const struct kv *kv)
{
    return (struct kv_seq *)((uintptr_t)kv + kv->slot_at);
}

static inline seq_slot *
kv_end_ring(const struct kv *kv)
{
    return (seq_slot *)((uintptr_t)kv + kv->end_at);
}

/* The slot's row of the group's table: block number + 1, 0 = none. */
static inline uint32_t *
kv_table(const struct kv *kv, uint32_t group, seq_slot slot)
{
    return (uint32_t *)((uintptr_t)kv + kv->table_at[group]) +
           (size_t)slot * kv->c.group[group].max_entries;
}

static inline struct kv_node *
kv_nodes(const struct kv *kv)
{
    return (struct kv_node *)((uintptr_t)kv + kv->node_at);
}

/* By index + 1, as links have it. */
static inline struct kv_node *
kv_node(const struct kv *kv, uint32_t link)
{
    return &kv_nodes(kv)[link - 1];
}

static inline bool
kv_is_leaf(const struct kv *kv, uint32_t node)
{
    return !kv_node(kv, node)->child;
}

/* Of the decoder's own positions, not of its source's. */
static inline bool
kv_is_self(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind != KV_CROSS;
}

/* An entry is a block of the decoder's positions. */
static inline bool
kv_is_positions(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind == KV_FULL || kv->c.group[group].kind == KV_WINDOW;
}

/* Held blocks are counted once, however many slots share them. */
static inline bool
kv_counts_once(const struct kv *kv, uint32_t group)
{
    return kv->c.group[group].kind == KV_FULL || kv->c.group[group].kind == KV_CROSS;
}

/* The slot's entries, one after another: for (i = kv_begin(); i < end; i = kv_after(i)). */
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

/* The same backwards, from end on, kv_n_entries() times. */
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

/* Of a block of the arena. */
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
kv_is_cell(const struct kv *kv, uint32_t block)
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
 * kv_wait_steps: step[] has the last step of each lane that used what the planned step is to use. */
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

/* A tail that the slot needs no more: what it was of is copied, or the slot goes. */
void kv_give_tail(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane, uint64_t step);

/* kv_state.c */

/* The live state, where there is none yet; or from the snapshot that the slot was admitted with. */
void kv_state_grow(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group, struct kv_out *out);
void kv_state_start(struct kv *kv, unsigned lane, seq_slot slot, uint32_t group,
                    struct kv_out *out);
/* The slot's snapshot of the entry's end, if it has one, is found at the node from here on. */
void kv_state_store(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t node,
                    uint32_t group, uint32_t entry);

/* kv_event.c: the block is in the tree. was: its priority before. */
void kv_event_put(struct kv *kv, enum kv_event_op op, uint32_t block, uint8_t was, enum kv_why why);

/* What a block is called outside: its first slice, counted in slices of its group; a cell, in the host's memory. */
static inline slice_id
kv_slice(const struct kv *kv, uint32_t group, uint32_t block)
{
    uint32_t cell = block - kv->n_slabs * kv->stride;

    if (kv_is_cell(kv, block))
        return (slice_id)(cell * kv->cell_bytes / kv->c.group[group].slice_bytes);
    return kv_slab_of(kv, block) * kv->slab_slices[group] +
           kv_place_of(kv, block) * kv->block_slices[group];
}

#endif
