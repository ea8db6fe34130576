/* kv_pool.c - see kv_pool.h. */
#include "worker/kv/kv_pool.h"

#include "worker/kv/kv_core.h"
#include "worker/kv/kv_slab.h"

static void
raise_wait(const struct kv *kv, uint64_t wait[MAX_LANES], unsigned lane, unsigned of, uint64_t step)
{
    if (of != lane && step > kv->done[of]) wait[of] = MAX(wait[of], step);
}

uint32_t
kv_pool_take(struct kv *kv, uint32_t group, uint32_t seat, uint32_t entry, unsigned lane,
             uint64_t wait[MAX_LANES])
{
    uint32_t pool = kv->c.group[group].pool, slab, at;
    struct kv_pool *p = &kv->pool[pool];
    struct kv_block *b;
    struct kv_slab *s;

    slab = p->first_open ? p->first_open - 1 : kv_slab_draw(kv, pool, lane);
    s = &kv_slabs(kv)[slab];
    if (s->first_free) {
        at = s->first_free - 1;
        b = &kv_blocks(kv)[(size_t)slab * kv->stride + at];
        s->first_free = b->next;
        if (!s->first_free) s->last_free = 0;
        raise_wait(kv, wait, lane, b->lane, b->step);
    } else {
        at = s->n_fresh++;
        b = &kv_blocks(kv)[(size_t)slab * kv->stride + at];
    }
    for (unsigned l = 0; l < kv->c.n_lanes; l++) raise_wait(kv, wait, lane, l, s->before[l]);
    if (++s->n_used == p->per_slab) kv_slab_close(kv, slab);
    *b = (struct kv_block){
        .state = BLOCK_HELD, .group = (uint8_t)group, .seat = seat, .entry = entry
    };
    p->n_used++;
    return slab * kv->stride + at;
}

void
kv_pool_give(struct kv *kv, uint32_t block, unsigned lane, uint64_t step)
{
    struct kv_block *all = kv_blocks(kv), *b = &all[block];
    uint32_t slab = block / kv->stride, at = block % kv->stride;
    struct kv_slab *s = &kv_slabs(kv)[slab];
    struct kv_pool *p = &kv->pool[s->pool - 1];

    check(b->state == BLOCK_HELD && p->n_used > 0);
    *b = (struct kv_block){ .state = BLOCK_FREE, .lane = (uint8_t)lane, .step = step };
    s->freed[lane] = MAX(s->freed[lane], step);
    if (s->last_free) {
        all[(size_t)slab * kv->stride + s->last_free - 1].next = at + 1;
    } else {
        s->first_free = at + 1;
    }
    s->last_free = at + 1;
    p->n_used--;
    if (s->n_used-- == p->per_slab) kv_slab_open_first(kv, slab);
    if (s->n_used == 0) kv_slab_return(kv, slab);
}

uint32_t
kv_pool_slabs(const struct kv *kv, uint32_t pool, uint64_t n)
{
    const struct kv_pool *p = &kv->pool[pool];
    uint64_t full = CEIL_DIV(p->n_scratch + p->n_reserved + n, p->per_slab);

    return (uint32_t)MIN(MAX(full, p->n_slabs), UINT32_MAX);
}
