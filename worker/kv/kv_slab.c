/* kv_slab.c - see kv_slab.h. */
#include "worker/kv/kv_slab.h"

#include "worker/kv/kv_internal.h"

#include <errno.h>

void
kv_slab_open_first(struct kv *kv, uint32_t slab)
{
    struct kv_slab *all = kv_slabs(kv), *s = &all[slab];
    struct kv_pool *p = &kv->pool[s->pool - 1];

    s->prev = 0;
    s->next = p->first_open;
    if (s->next) all[s->next - 1].prev = slab + 1;
    p->first_open = slab + 1;
    if (!p->last_open) p->last_open = slab + 1;
}

static void
close_slab(struct kv *kv, uint32_t slab)
{
    struct kv_slab *all = kv_slabs(kv), *s = &all[slab];
    struct kv_pool *p = &kv->pool[s->pool - 1];

    *(s->prev ? &all[s->prev - 1].next : &p->first_open) = s->next;
    *(s->next ? &all[s->next - 1].prev : &p->last_open) = s->prev;
    s->prev = s->next = 0;
}

void
kv_slab_claim(struct kv *kv, uint32_t slab, uint32_t pool)
{
    kv_slabs(kv)[slab].pool = (uint8_t)(pool + 1);
    kv->n_drawn++;
    kv->pool[pool].n_slabs++;
}

void
kv_slab_cold(struct kv *kv, uint32_t slab)
{
    struct kv_slab *all = kv_slabs(kv), *s = &all[slab];
    struct kv_pool *p = &kv->pool[s->pool - 1];

    s->stamp = kv->releases;
    s->cold_next = 0;
    s->cold_prev = p->last_cold;
    *(s->cold_prev ? &all[s->cold_prev - 1].cold_next : &p->first_cold) = slab + 1;
    p->last_cold = slab + 1;
}

static void
leave_cold(struct kv *kv, uint32_t slab)
{
    struct kv_slab *all = kv_slabs(kv), *s = &all[slab];
    struct kv_pool *p = &kv->pool[s->pool - 1];

    *(s->cold_prev ? &all[s->cold_prev - 1].cold_next : &p->first_cold) = s->cold_next;
    *(s->cold_next ? &all[s->cold_next - 1].cold_prev : &p->last_cold) = s->cold_prev;
    s->cold_prev = s->cold_next = 0;
}

static bool
must_wait(const struct kv *kv, const struct kv_slab *s, unsigned lane)
{
    for (unsigned l = 0; l < kv->c.n_lanes; l++)
        if (l != lane && s->before[l] > kv->done[l]) return true;
    return false;
}

uint32_t
kv_slab_draw(struct kv *kv, uint32_t pool, unsigned lane)
{
    struct kv_slab *all = kv_slabs(kv);
    uint32_t slab = kv->first_slab - 1;

    if (!kv->first_slab || (kv->n_fresh < kv->n_slabs && must_wait(kv, &all[slab], lane))) {
        check(kv->n_fresh < kv->n_slabs); /* a reserved block can always be allocated */
        slab = kv->n_fresh++;
    } else {
        kv->first_slab = all[slab].next;
        if (!kv->first_slab) kv->last_slab = 0;
    }
    check(all[slab].pool == 0 && all[slab].n_used == 0 && all[slab].n_cached == 0);
    all[slab].n_fresh = all[slab].first_free = 0;
    kv_slab_claim(kv, slab, pool);
    kv_slab_open_first(kv, slab);
    return slab;
}

bool
kv_slab_any(const struct kv *kv)
{
    return kv->first_slab || kv->n_fresh < kv->n_slabs;
}

static void
return_slab(struct kv *kv, uint32_t slab)
{
    struct kv_slab *all = kv_slabs(kv), *s = &all[slab];

    close_slab(kv, slab);
    kv->pool[s->pool - 1].n_slabs--;
    kv->n_drawn--;
    s->pool = 0;
    for (unsigned l = 0; l < MAX_LANES; l++) {
        s->before[l] = MAX(s->before[l], s->freed[l]);
        s->freed[l] = 0;
    }
    s->next = 0;
    *(kv->last_slab ? &all[kv->last_slab - 1].next : &kv->first_slab) = slab + 1;
    kv->last_slab = slab + 1;
}

void
kv_slab_count(struct kv *kv, uint32_t slab, int held, int cached)
{
    struct kv_slab *s = &kv_slabs(kv)[slab];
    struct kv_pool *p = &kv->pool[s->pool - 1];
    bool was_hot = s->n_used > 0, was_cold = !was_hot && s->n_cached > 0, hot, cold;
    bool was_full = s->n_used + s->n_cached == p->per_slab, full;

    s->n_used += (uint32_t)held;
    s->n_cached += (uint32_t)cached;
    hot = s->n_used > 0;
    cold = !hot && s->n_cached > 0;
    full = s->n_used + s->n_cached == p->per_slab;
    check(s->n_used + s->n_cached <= p->per_slab);
    p->n_hot += (uint32_t)hot - (uint32_t)was_hot;
    if (was_cold && !cold) leave_cold(kv, slab);
    if (cold && !was_cold) kv_slab_cold(kv, slab);
    if (full && !was_full) close_slab(kv, slab);
    if (was_full && !full) kv_slab_open_first(kv, slab);
    if (!hot && !cold) return_slab(kv, slab);
}

int
kv_block_at(const struct kv *kv, uint32_t group, slice_id at, uint32_t *ret)
{
    const struct kv_pool *p = &kv->pool[kv->c.group[group].pool];
    uint64_t byte = (uint64_t)at * kv->c.group[group].slice_bytes;
    uint64_t slab = byte / kv->c.slab_bytes, in_slab = byte % kv->c.slab_bytes;

    if (at == SLICE_NONE || slab >= kv->n_slabs) return -EBADMSG;
    if (in_slab % p->block_bytes || in_slab / p->block_bytes >= p->per_slab) return -EBADMSG;
    *ret = (uint32_t)(slab * kv->stride + in_slab / p->block_bytes);
    return 0;
}
