/* kv_pool.c - takes and gives blocks, and moves slabs between pools: see kv_evict.h. */
#include "worker/kv/kv_evict.h"

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

/* Draws a free slab for the pool and puts it on the pool's list of slabs with a free block. Prefers
 * a slab whose use on `lane` need not wait for another lane. A slab must be free. */
static uint32_t
draw_slab(struct kv *kv, uint32_t pool, unsigned lane)
{
    struct kv_slab *all = kv_slabs(kv);
    uint32_t slab = kv->first_slab - 1;

    if (!kv->first_slab || (kv->n_fresh < kv->n_slabs && must_wait(kv, &all[slab], lane))) {
        check(kv->n_fresh < kv->n_slabs); /* follows from any_slab() */
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

static bool
any_slab(const struct kv *kv)
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

/* Adds `held` and `cached` (may be negative) to the slab's counts of held and cached blocks, moves
 * the slab to the lists of its new state, and returns the slab if it is empty. */
static void
count_slab(struct kv *kv, uint32_t slab, int held, int cached)
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

uint32_t
kv_pool_slabs(const struct kv *kv, uint32_t pool, uint64_t n)
{
    const struct kv_pool *p = &kv->pool[pool];
    uint64_t full = CEIL_DIV(p->n_scratch + p->n_reserved_blocks + n, p->per_slab);

    return (uint32_t)MIN(MAX(full, p->n_hot), UINT32_MAX);
}

/* Returns true if the slab sum (kv_internal.h) allows the pool to make one more slab hot. */
static bool
may_use_slab(const struct kv *kv, uint32_t pool)
{
    uint64_t slabs = 1;

    if (kv_pool_slabs(kv, pool, 0) > kv->pool[pool].n_hot) return true;
    for (uint32_t p = 0; p < kv->n_pools; p++) slabs += kv_pool_slabs(kv, p, 0);
    return slabs <= kv->n_slabs;
}

struct pool_take { /* the arguments of kv_pool_take(), and a result */
    unsigned lane;
    struct kv_out *out;
    bool fresh; /* the block was not allocated before since the pool drew its slab */
};

static void
free_block(struct kv *kv, uint32_t block)
{
    struct kv_block *b = &kv_blocks(kv)[block];
    uint32_t slab = kv_slab_of(kv, block), at = kv_place_of(kv, block);
    struct kv_slab *s = &kv_slabs(kv)[slab];

    for (unsigned l = 0; l < MAX_LANES; l++) s->freed[l] = MAX(s->freed[l], b->step[l]);
    b->state = BLOCK_FREE;
    b->prev = b->node = 0;
    b->priority = KV_PRIORITY;
    b->next = s->first_free;
    s->first_free = at + 1;
}

/* Removes a cached block from its queue and from all counts except the slab's. */
static void
uncache(struct kv *kv, uint32_t block)
{
    uint32_t group = kv_blocks(kv)[block].group;

    kv_evict_queue_remove(kv, block);
    kv->cached[group]--;
    kv->pool[kv->c.group[group].pool].n_cached--;
}

/* Frees a block after uncache(). */
static void
free_cached(struct kv *kv, uint32_t block)
{
    free_block(kv, block);
    count_slab(kv, kv_slab_of(kv, block), 0, -1);
}

/* Frees the blocks of a snapshot's other layers, because `block` is evicted. Returns how many. */
static uint32_t
free_layers(struct kv *kv, uint32_t block)
{
    struct kv_block *all = kv_blocks(kv);
    uint32_t at = all[block].more - 1, n = 0;

    while (at != block) {
        uint32_t next = all[at].more - 1;

        uncache(kv, at);
        free_cached(kv, at);
        at = next;
        n++;
    }
    return n;
}

/* Removes a cached block from its queue and its node; the caller corrects the slab's count. Returns
 * how many blocks left the tree. t NULL: the cache is flushed, so the block is not offloaded. */
static uint32_t
evict_block(struct kv *kv, uint32_t block, struct pool_take *t)
{
    struct kv_block *b = &kv_blocks(kv)[block];
    uint32_t n = 1;

    uncache(kv, block);
    if (!b->node) {
        kv->pool[kv->c.group[b->group].pool].n_nodeless--;
        return 0;
    }
    if (t) {
        b->state = BLOCK_HELD; /* so that an eviction in the host tier does not make b an orphan */
        kv_host_tier_offload(kv, block, t->lane, t->out);
        b->state = BLOCK_CACHED;
    }
    if (kv->c.group[b->group].kind == KV_STATE) n += free_layers(kv, block);
    if (t) kv->stats[b->group].evicted += n;
    kv_tree_detach(kv, block, t ? kv_evict_queue_why(kv, block) : KV_FLUSHED);
    return n;
}

static void
evict_slab(struct kv *kv, uint32_t slab, struct pool_take *t)
{
    uint32_t first = slab * kv->stride, n = kv_slabs(kv)[slab].n_fresh;

    for (uint32_t i = 0; i < n; i++) {
        if (kv_blocks(kv)[first + i].state != BLOCK_CACHED) continue;
        evict_block(kv, first + i, t);
        free_cached(kv, first + i);
    }
    check(kv_slabs(kv)[slab].pool == 0);
}

/* Returns the ref of the cached block that the pool evicts next; 0: the pool has none. */
static uint32_t
first_victim(const struct kv *kv, uint32_t pool)
{
    const struct kv_block *all = kv_blocks(kv);
    uint32_t best = 0;

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t b = kv->c.group[g].pool == pool ? kv_evict_queue_first(kv, g) : 0;

        if (b && (!best || kv_evict_queue_before(&all[b - 1], &all[best - 1]))) best = b;
    }
    return best;
}

/* Returns -1 if the pool has over 12.5 % fewer slabs than its target, 1 if over 12.5 % more. */
static int
share_level(const struct kv_pool *p)
{
    if (p->target == 0) return 0;
    return p->n_slabs * 8 > p->target * UINT64_C(9)   ? 1
           : p->n_slabs * 8 < p->target * UINT64_C(7) ? -1
                                                      : 0;
}

/* Returns the ref of the cold slab (with cached blocks, without held blocks) to take from another
 * pool: of the pools with the highest share_level(), the slab whose last held block was released
 * first. 0: no other pool has a cold slab. */
static uint32_t
coldest_slab(const struct kv *kv, uint32_t pool)
{
    const struct kv_slab *all = kv_slabs(kv);
    uint32_t best = 0;
    int most = -1;

    for (uint32_t p = 0; p < kv->n_pools; p++) {
        uint32_t s = p == pool ? 0 : kv->pool[p].first_cold;
        int l = share_level(&kv->pool[p]);

        if (!s || l < most) continue;
        if (best && l == most && all[s - 1].stamp >= all[best - 1].stamp) continue;
        best = s;
        most = l;
    }
    return best;
}

/* Returns true if the pool should take the cold slab of another pool instead of evicting `own`. */
static bool
prefer_slab(const struct kv *kv, uint32_t pool, const struct kv_block *own, uint32_t slab)
{
    const struct kv_slab *s = &kv_slabs(kv)[slab];
    const struct kv_pool *from = &kv->pool[s->pool - 1];
    int mine = share_level(&kv->pool[pool]), theirs = share_level(from);

    if (own->queue < KV_PRIORITY) return false;
    return mine != theirs ? mine < theirs : s->stamp + from->per_slab < own->stamp;
}

static uint32_t
take_free(struct kv *kv, uint32_t slab, struct pool_take *t)
{
    struct kv_slab *s = &kv_slabs(kv)[slab];
    uint32_t at;

    if (s->first_free) {
        at = s->first_free - 1;
        s->first_free = kv_blocks(kv)[slab * kv->stride + at].next;
    } else {
        at = s->n_fresh++;
        check(at < kv->pool[s->pool - 1].per_slab);
        t->fresh = true;
    }
    count_slab(kv, slab, 1, 0);
    return slab * kv->stride + at;
}

static uint32_t
take_cached(struct kv *kv, uint32_t block, struct pool_take *t)
{
    evict_block(kv, block, t);
    count_slab(kv, kv_slab_of(kv, block), 1, -1);
    return block;
}

/* Takes a block of one of the pool's hot slabs, because the slab sum allows no further hot slab. */
static uint32_t
take_in_place(struct kv *kv, uint32_t pool, struct pool_take *t)
{
    const struct kv_pool *p = &kv->pool[pool];

    for (uint32_t n = 0; n < kv->n_fresh; n++) {
        uint32_t slab = (kv->next_hot[pool] + n) % kv->n_fresh, first = slab * kv->stride;
        const struct kv_slab *s = &kv_slabs(kv)[slab];

        if (s->pool != pool + 1 || s->n_used == 0 || s->n_used == p->per_slab) continue;
        kv->next_hot[pool] = slab;
        if (s->n_used + s->n_cached < p->per_slab) return take_free(kv, slab, t);
        for (uint32_t i = 0; i < p->per_slab; i++)
            if (kv_blocks(kv)[first + i].state == BLOCK_CACHED)
                return take_cached(kv, first + i, t);
    }
    check(false); /* a reserved block can always be allocated */
    return 0;
}

/* Evicts the group's next cached block, because the group has max_blocks blocks, and takes it. If
 * its slab is cold and the slab sum allows no more hot slabs (warm false), the block is freed, and
 * a block of a hot slab is taken. */
static uint32_t
take_own(struct kv *kv, uint32_t group, bool warm, struct pool_take *t)
{
    uint32_t own = kv_evict_queue_first(kv, group);

    check(own); /* fewer than max_blocks are held, so some are cached */
    if (warm || kv_slabs(kv)[kv_slab_of(kv, own - 1)].n_used > 0)
        return take_cached(kv, own - 1, t);
    evict_block(kv, own - 1, t);
    free_cached(kv, own - 1);
    return take_in_place(kv, kv->c.group[group].pool, t);
}

static uint32_t
take_any(struct kv *kv, uint32_t group, struct pool_take *t)
{
    const struct kv_group *g = &kv->c.group[group];
    const struct kv_block *all = kv_blocks(kv);
    struct kv_pool *p = &kv->pool[g->pool];
    uint32_t own = kv->c.fifo ? kv_evict_queue_first(kv, group) : 0, cold;
    bool capped = g->max_blocks && kv->used[group] + kv->cached[group] >= g->max_blocks, warm;

    if (!capped && !own && p->first_open && kv_slabs(kv)[p->first_open - 1].n_used > 0)
        return take_free(kv, p->first_open - 1, t); /* the common case: a hot slab has a block */
    warm = may_use_slab(kv, g->pool);
    if (capped) return take_own(kv, group, warm, t);
    /* With fifo a free block counts as KV_PRIORITY: cached blocks below that are taken first. */
    if (own && all[own - 1].queue < KV_PRIORITY &&
        (warm || kv_slabs(kv)[kv_slab_of(kv, own - 1)].n_used > 0))
        return take_cached(kv, own - 1, t);
    if (p->first_open && (warm || kv_slabs(kv)[p->first_open - 1].n_used > 0))
        return take_free(kv, p->first_open - 1, t);
    if (warm && any_slab(kv)) return take_free(kv, draw_slab(kv, g->pool, t->lane), t);
    own = first_victim(kv, g->pool);
    cold = warm ? coldest_slab(kv, g->pool) : 0;
    if (cold && (!own || prefer_slab(kv, g->pool, &all[own - 1], cold - 1))) {
        evict_slab(kv, cold - 1, t);
        return take_free(kv, draw_slab(kv, g->pool, t->lane), t);
    }
    if (own && (warm || kv_slabs(kv)[kv_slab_of(kv, own - 1)].n_used > 0))
        return take_cached(kv, own - 1, t);
    return take_in_place(kv, g->pool, t);
}

uint32_t
kv_pool_take(struct kv *kv, uint32_t group, unsigned lane, struct kv_out *out)
{
    struct pool_take t = { .lane = lane, .out = out };
    uint32_t block = take_any(kv, group, &t);
    struct kv_block *b = &kv_blocks(kv)[block];
    const struct kv_slab *s = &kv_slabs(kv)[kv_slab_of(kv, block)];

    kv_wait_block(kv, lane, block, out);
    kv_wait_steps(kv, lane, s->before, out);
    *b = (struct kv_block){
        .state = BLOCK_HELD, .n_refs = 1, .group = (uint8_t)group, .priority = KV_PRIORITY
    };
    kv->used[group]++;
    kv->pool[kv->c.group[group].pool].n_used++;
    kv->stats[group].allocated++;
    kv->stats[group].allocated_new += t.fresh;
    return block;
}

uint32_t
kv_pool_take_for(struct kv *kv, seq_slot slot, uint32_t group, unsigned lane, struct kv_out *out)
{
    struct kv_use *use = &kv_seqs(kv)[slot].use;
    uint64_t n_new = kv->stats[group].allocated_new;
    uint32_t block = kv_pool_take(kv, group, lane, out);

    use->allocated++;
    use->allocated_new += kv->stats[group].allocated_new > n_new;
    return block;
}

void
kv_pool_share(struct kv *kv, uint32_t block)
{
    struct kv_block *b = &kv_blocks(kv)[block];

    check(b->state == BLOCK_HELD || (b->state == BLOCK_CACHED && b->node));
    if (b->n_refs++ > 0) return;
    uncache(kv, block);
    b->state = BLOCK_HELD;
    kv->used[b->group]++;
    kv->pool[kv->c.group[b->group].pool].n_used++;
    count_slab(kv, kv_slab_of(kv, block), 1, -1);
}

void
kv_pool_hold(struct kv *kv, uint32_t group, uint32_t block)
{
    struct kv_block *b = &kv_blocks(kv)[block];

    if (b->owner) kv_charge(kv, group, 1);
    if (b->state == BLOCK_CACHED && kv_counts_once(kv, group)) kv_charge(kv, group, 1);
    b->owner = 0;
    kv_pool_share(kv, block);
}

uint32_t
kv_pool_flush(struct kv *kv, uint32_t max, uint64_t *bytes)
{
    uint32_t n = 0, at;

    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        while (n < max && (at = kv_evict_queue_first(kv, g))) {
            uint32_t some = evict_block(kv, at - 1, NULL);

            free_cached(kv, at - 1);
            *bytes += some * kv_block_bytes(&kv->c.group[g]);
            n += some;
        }
    return n;
}

bool
kv_pool_give(struct kv *kv, uint32_t block, unsigned lane, uint64_t step)
{
    struct kv_block *b = &kv_blocks(kv)[block];
    struct kv_pool *p = &kv->pool[kv->c.group[b->group].pool];
    bool keep = b->node || kv->c.fifo;

    check(b->state == BLOCK_HELD && b->n_refs > 0 && p->n_used > 0);
    b->step[lane] = MAX(b->step[lane], step);
    if (--b->n_refs > 0) return false;
    kv->used[b->group]--;
    p->n_used--;
    if (keep) {
        b->state = BLOCK_CACHED;
        kv->cached[b->group]++;
        p->n_cached++;
        p->n_nodeless += !b->node;
        kv_evict_queue_push(kv, block);
    } else {
        free_block(kv, block);
    }
    count_slab(kv, kv_slab_of(kv, block), -1, keep);
    return true;
}
