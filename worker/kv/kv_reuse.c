/* kv_reuse.c - see kv_reuse.h. Nothing is kept yet: every lookup finds nothing. */
#include "worker/kv/kv_reuse.h"

#include "worker/kv/kv_core.h"

#include <errno.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static void
hash(const struct kv *kv, const void *p, size_t n, const uint64_t seed[4], uint64_t ret[2])
{
    XXH3_state_t state;
    XXH128_hash_t h;

    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, kv->c.hash_secret, sizeof kv->c.hash_secret);
    XXH3_128bits_update(&state, seed, 4 * sizeof seed[0]);
    XXH3_128bits_update(&state, p, n);
    h = XXH3_128bits_digest(&state);
    ret[0] = h.low64;
    ret[1] = h.high64;
}

void
kv_space(const struct kv *kv, uint64_t salt, uint64_t lora, const token_id *source,
         uint32_t n_source, struct kv_space *ret)
{
    uint64_t seed[4] = { salt, lora, n_source, 0 };

    if (!source) n_source = 0;
    hash(kv, source, n_source * sizeof *source, seed, ret->self);
    seed[3] = 1;
    hash(kv, source, n_source * sizeof *source, seed, ret->cross);
}

int
kv_keep_check(const struct kv_keep *keep, uint32_t n, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        if (keep[i].start >= keep[i].end)
            return err_set(e, -EINVAL, "tokens %u to %u are no range to keep", keep[i].start,
                           keep[i].end);
        if (keep[i].priority > KV_PRIORITY_MAX)
            return err_set(e, -EINVAL, "priority %u is above %d", keep[i].priority,
                           KV_PRIORITY_MAX);
        if (i > 0 && keep[i].start < keep[i - 1].end)
            return err_set(e, -EINVAL,
                           "ranges to keep overlap: one ends at %u, the next begins at %u",
                           keep[i - 1].end, keep[i].start);
    }
    return 0;
}

void
kv_lookup(const struct kv *kv, const struct kv_text *t, struct kv_hit *ret)
{
    (void)kv, (void)t;
    *ret = (struct kv_hit){ 0 };
}

int
kv_admit(struct kv *kv, uint32_t seat, const struct kv_need *n, const struct kv_text *t,
         struct kv_hit *ret)
{
    (void)t;
    *ret = (struct kv_hit){ 0 };
    return kv_reserve(kv, seat, n);
}

void
kv_start(struct kv *kv, unsigned lane, uint64_t step, uint32_t seat, struct kv_out *out)
{
    (void)kv, (void)lane, (void)step, (void)seat, (void)out;
}

void
kv_store(struct kv *kv, uint32_t seat, const struct kv_text *t, uint32_t n)
{
    (void)kv, (void)seat, (void)t, (void)n;
}

void
kv_release(struct kv *kv, uint32_t seat, const struct kv_text *t, uint32_t n)
{
    kv_store(kv, seat, t, n);
    kv_drop(kv, seat);
}

void
kv_now(struct kv *kv, nsec now)
{
    (void)kv, (void)now;
}

void
kv_stats(const struct kv *kv, uint32_t group, struct kv_stats *ret)
{
    check(group < kv->c.n_groups);
    *ret = (struct kv_stats){ 0 };
}
