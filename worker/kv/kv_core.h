/* kv_core.h - the memory behind struct kv: what lies where. For the files of worker/kv/ alone.
 *
 * One piece of the caller's memory, arrays at offsets from its start, indices instead of pointers.
 * All zeroes is the empty state of every array, so memory that was never used is never touched.
 *
 *     arena   | slab 0                | slab 1                | slab 2 ...
 *     pool      0 (blocks of 2.5 MiB)   1 (a block of 13 MiB)   nobody's: any pool may draw it
 *     block     0    1    2    3    4   1 * stride              2 * stride ...
 *
 * A block's number is slab * stride + its place in the slab, stride being the most blocks that a slab
 * of any pool has. Free slabs belong to nobody; a pool draws one when all of its own are full, and
 * gives one back the moment its last block is free.
 *
 * The promise to the scheduler rests on one sum, checked by kv_check(): over all pools,
 *     max(slabs drawn, slabs that scratch and reserved blocks would fill)  <=  slabs of the arena.
 * A reservation is granted only if the sum still holds. Drawing keeps it: a pool draws a slab only
 * when its slabs are full of blocks that were reserved. So a reserved block can always be had.
 */
#ifndef KV_CORE_H
#define KV_CORE_H

#include "worker/kv/kv.h"

enum block_state { BLOCK_FREE, BLOCK_HELD, BLOCK_SCRATCH };

struct kv_block {
    uint64_t step; /* free: not for others before that step of the lane is done; 0: at once */
    uint32_t next; /* free: the slab's next free one, index + 1 */
    uint32_t seat, entry;
    uint8_t lane, group, state;
};

/* Links are index + 1, 0 ends. Fences [lane]: step to wait for before a block of the slab is used:
 * before, from other pools' use of the slab; freed, gathered for the next pool. */
struct kv_slab {
    uint64_t before[MAX_LANES], freed[MAX_LANES];
    uint32_t n_used, n_fresh; /* blocks held; blocks that were ever taken since it was drawn */
    uint32_t first_free, last_free;
    uint32_t prev, next; /* of the pool's slabs with a free block, or next of the free slabs */
    uint8_t pool;        /* + 1; 0: nobody's */
};

struct kv_pool {
    uint64_t block_bytes;
    uint32_t per_slab, n_slabs;
    uint32_t n_used, n_scratch, n_reserved; /* blocks; n_reserved counts those held too */
    uint32_t first_open, last_open;         /* its slabs with a free block, index + 1 */
};

struct kv_seat {
    uint64_t step; /* the last step that read or changed its table rows */
    uint8_t lane;
    bool live;   /* between kv_reserve() and kv_drop() */
    bool ending; /* its EDIT_END is yet to be sent */
    uint32_t reserved[MAX_GROUPS];
    uint32_t first[MAX_GROUPS], end[MAX_GROUPS]; /* entries held: first .. end */
};

struct kv {
    struct kv_config c;
    uint32_t n_pools, n_slabs, stride;
    uint32_t n_drawn, n_fresh;      /* slabs; n_fresh: ever drawn */
    uint32_t first_slab, last_slab; /* slabs given back, oldest first, index + 1 */
    uint32_t first_end, n_ends;     /* ring of seats whose EDIT_END is yet to be sent */
    uint32_t used[MAX_GROUPS], reserved[MAX_GROUPS]; /* blocks by group, scratch not counted */
    uint32_t scratch[MAX_GROUPS];                    /* block numbers */
    uint64_t done[MAX_LANES];
    struct kv_pool pool[MAX_GROUPS];
    uint64_t block_at, slab_at, seat_at, end_at, table_at[MAX_GROUPS]; /* offsets in bytes */
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

static inline struct kv_seat *
kv_seats(const struct kv *kv)
{
    return (struct kv_seat *)((uintptr_t)kv + kv->seat_at);
}

static inline uint32_t *
kv_end_ring(const struct kv *kv)
{
    return (uint32_t *)((uintptr_t)kv + kv->end_at);
}

/* The seat's row of the group's table: block number + 1, 0 = none. */
static inline uint32_t *
kv_table(const struct kv *kv, uint32_t group, uint32_t seat)
{
    return (uint32_t *)((uintptr_t)kv + kv->table_at[group]) +
           (size_t)seat * kv->c.group[group].max_entries;
}

/* kv_seat.c: promise a seat that many blocks more, in every group of every pool at once, or nothing. */
struct kv_need;
bool kv_promise(struct kv *kv, uint32_t seat, const struct kv_need *more);

/* What a block is called outside: its first slice, counted in slices of its group. */
static inline slice_id
kv_slice(const struct kv *kv, uint32_t group, uint32_t block)
{
    const struct kv_pool *p = &kv->pool[kv->c.group[group].pool];
    uint64_t at = (uint64_t)(block / kv->stride) * kv->c.slab_bytes +
                  block % kv->stride * p->block_bytes;

    return (slice_id)(at / kv->c.group[group].slice_bytes);
}

#endif
