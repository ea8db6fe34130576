/* kv_pin.c - pins cached prefixes: see kv_reuse.h. */
#include "worker/kv/kv_find.h"
#include "worker/kv/kv_reuse.h"

/* Adds the blocks that the pin holds, by group, to *n. */
static void
add_pin(const struct kv *kv, uint32_t pin, struct kv_need *n)
{
    const struct kv_seq *s = &kv_seqs(kv)[kv->c.n_slots + pin - 1];

    for (uint32_t g = 0; s->live && g < kv->c.n_groups; g++) n->n_blocks[g] += s->reserved[g];
}

/* Returns the blocks of the hit. */
static struct kv_need
blocks_of(const struct kv *kv, const struct kv_text *t, const struct kv_found *f)
{
    struct kv_need n = { { 0 } };

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        struct kv_walk w = kv_find_walk(kv, t, f, g);

        while (kv_walk_next(kv, &w)) n.n_blocks[g]++;
    }
    return n;
}

/* Checks that the longest request and all pins fit the empty arena, with the new pin's blocks. */
static int
fits_beside(const struct kv *kv, const struct kv_need *more, const struct kv_need *longest)
{
    struct kv_need all = *longest;

    for (uint32_t p = 1; p <= KV_PINS; p++) add_pin(kv, p, &all);
    for (uint32_t g = 0; g < kv->c.n_groups; g++) all.n_blocks[g] += more->n_blocks[g];
    return kv_fits_alone(kv, &all, 0, 0, NULL);
}

int
kv_pin(struct kv *kv, const struct kv_text *t, const struct kv_need *longest, uint32_t *n_tokens,
       struct err *e)
{
    struct kv_stats stats[MAX_GROUPS];
    struct kv_found f = kv_find(kv, t);
    uint32_t pin = 1, tokens = kv->c.tokens_per_block;
    struct kv_text full = *t;
    struct kv_need n;
    struct kv_hit hit;
    int r;

    if (!f.depth && !f.cross)
        return err_set(e, -ENOENT, "no full block of %u tokens of this prefix is cached", tokens);
    while (pin <= KV_PINS && kv_seqs(kv)[kv->c.n_slots + pin - 1].live) pin++;
    if (pin > KV_PINS)
        return err_set(e, -ENOSPC, "%d prefixes are pinned, which is the limit; unpin one",
                       KV_PINS);
    full.n = f.depth * tokens + 1; /* a hit excludes the last token */
    f.tail = f.part = 0;
    n = blocks_of(kv, &full, &f);
    if (fits_beside(kv, &n, longest) < 0)
        return err_set(e, -EMSGSIZE, "the longest request would not fit beside the pinned blocks");
    memcpy(stats, kv->stats, sizeof stats);
    r = kv_admit(kv, kv->c.n_slots + pin - 1, &n, &full, &hit);
    memcpy(kv->stats, stats, sizeof stats); /* a pin is no request that found blocks */
    if (r == 0 && (hit.n_full < f.depth || hit.cross != (f.cross != 0))) {
        kv_drop(kv, kv->c.n_slots + pin - 1); /* the hit was reduced to fit */
        r = -EAGAIN;
    }
    if (r < 0) return err_set(e, r, "running requests need the free blocks; retry later");
    *n_tokens = hit.n_tokens + (hit.cross ? t->n_source : 0);
    return (int)pin;
}

bool
kv_unpin(struct kv *kv, uint32_t pin)
{
    bool live = kv->c.reuse && pin >= 1 && pin <= KV_PINS &&
                kv_seqs(kv)[kv->c.n_slots + pin - 1].live;

    if (live) kv_drop(kv, kv->c.n_slots + pin - 1);
    return live;
}

uint32_t
kv_n_pinned(const struct kv *kv, uint32_t group)
{
    struct kv_need n = { { 0 } };

    for (uint32_t p = 1; kv->c.reuse && p <= KV_PINS; p++) add_pin(kv, p, &n);
    return n.n_blocks[group];
}
