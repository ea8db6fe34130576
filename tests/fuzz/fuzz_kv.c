/* fuzz_kv.c - the KV manager against a reference implementation: any geometry, any order of calls.
 *
 * The first bytes choose groups, blocks, arena and lanes; the rest are calls of a few bytes each.
 * The reference keeps units of 128 bytes with their owner and the last step of each lane that used
 * them. It derives the blocks of a slot from positions alone, and the result of a reservation from
 * the slabs in use. It checks that no step gets memory that another step may still use.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/kv/kv_reuse.h"

enum { SLOTS = 6, ENTRIES = 64, UNIT = 128, MAX_UNITS = 1 << 14, EDITS = 4096, STEPS = 256 };

uint64_t fuzz_operations;

struct kv_ref_slot {
    bool live, fresh; /* fresh: no step so far */
    uint32_t len, source, chunk, pos;
    struct kv_need need;
    slice_id at[MAX_GROUPS][ENTRIES];
    uint32_t n[MAX_GROUPS];
    uint64_t row[MAX_LANES]; /* the last steps that used its table rows */
};
struct kv_ref {
    struct kv_config c;
    void *mem;
    struct kv *kv;
    uint32_t n_slabs, n_units, block_units[MAX_GROUPS];
    int16_t owner[MAX_UNITS]; /* slot, -1 free, -2 scratch */
    uint64_t used[MAX_UNITS][MAX_LANES];
    struct kv_ref_slot slot[SLOTS];
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    uint64_t clock[MAX_LANES][STEPS][MAX_LANES]; /* steps that end before that step of that lane */
    struct kv_edit edit[EDITS];
};
static uint32_t
first_unit(const struct kv_ref *t, uint32_t group, slice_id at)
{
    uint64_t unit = (uint64_t)at * t->c.group[group].slice_bytes / UNIT;

    check(at != SLICE_NONE && unit + t->block_units[group] <= t->n_units);
    check(unit / (t->c.slab_bytes / UNIT) ==
          (unit + t->block_units[group] - 1) / (t->c.slab_bytes / UNIT));
    return (uint32_t)unit;
}

static bool
open_geometry(struct kv_ref *t, struct in *in)
{
    struct err e;

    t->c = (struct kv_config){ .n_groups = byte(in) % 5,
                               .n_slots = SLOTS,
                               .n_lanes = 1 + byte(in) % MAX_LANES,
                               .tokens_per_block = 1 + byte(in) % 9 };
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->c.group[g] = (struct kv_group){ .kind = (enum kv_kind)(byte(in) % 3),
                                           .window = 1 + byte(in) % 24,
                                           .n_layers = 1 + byte(in) % 5,
                                           .n_parts = 1 + byte(in) % 2,
                                           .slice_bytes = UNIT * (1 + byte(in) % 4),
                                           .max_entries = ENTRIES,
                                           .max_blocks = byte(in) % 40 };
    t->n_slabs = 2 + byte(in) % 24;
    t->c.arena_bytes = (uint64_t)t->n_slabs * kv_slab_bytes(&t->c);
    t->n_units = (uint32_t)(t->c.arena_bytes / UNIT);
    check(t->n_units <= MAX_UNITS);
    t->mem = calloc(1, kv_bytes(&t->c));
    t->kv = kv_init(t->mem, &t->c, &e);
    if (!t->kv) return false;
    memset(t->owner, 0xff, sizeof t->owner);
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        uint32_t unit;

        t->block_units[g] = (uint32_t)(kv_block_bytes(&t->c.group[g]) / UNIT);
        unit = first_unit(t, g, kv_scratch(t->kv, g));
        for (uint32_t i = 0; i < t->block_units[g]; i++) {
            check(t->owner[unit + i] == -1);
            t->owner[unit + i] = -2;
        }
    }
    return true;
}

/* Returns the slabs that the pool of group `like` needs for n more blocks, counted from the
 * units. */
static uint64_t
slabs_of_pool(const struct kv_ref *t, uint32_t like, const struct kv_need *n)
{
    uint32_t slab_units = t->c.slab_bytes / UNIT, begun = 0;
    uint64_t blocks = 0, per_slab = slab_units / t->block_units[like];
    bool has[64] = { false };

    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        if (t->block_units[g] != t->block_units[like]) continue;
        blocks += 1 + n->n_blocks[g]; /* 1: scratch */
        has[first_unit(t, g, kv_scratch(t->kv, g)) / slab_units] = true;
        for (uint32_t s = 0; s < SLOTS; s++) {
            if (!t->slot[s].live) continue;
            blocks += t->slot[s].need.n_blocks[g];
            for (uint32_t i = 0; i < t->slot[s].n[g]; i++)
                if (t->slot[s].at[g][i] != SLICE_NONE)
                    has[first_unit(t, g, t->slot[s].at[g][i]) / slab_units] = true;
        }
    }
    for (uint32_t i = 0; i < ARRAY_LEN(has); i++) begun += has[i];
    return MAX((blocks + per_slab - 1) / per_slab, begun);
}

static bool
must_grant(const struct kv_ref *t, const struct kv_need *n)
{
    uint64_t slabs = 0;

    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        uint64_t in_group = n->n_blocks[g];
        bool counted = false;

        for (uint32_t s = 0; s < SLOTS; s++)
            if (t->slot[s].live) in_group += t->slot[s].need.n_blocks[g];
        if (t->c.group[g].max_blocks && in_group > t->c.group[g].max_blocks) return false;
        for (uint32_t i = 0; i < g; i++) counted |= t->block_units[i] == t->block_units[g];
        if (!counted) slabs += slabs_of_pool(t, g, n);
    }
    return slabs <= t->n_slabs;
}

static void
reserve_slot(struct kv_ref *t, struct in *in)
{
    uint32_t slot = byte(in) % SLOTS;
    struct kv_ref_slot *s = &t->slot[slot];
    uint32_t len = 1 + byte(in) % 63, source = byte(in) % 40, chunk = 1 + byte(in) % 40;
    struct kv_need n = kv_need(t->kv, len, source, chunk);
    bool fits;
    struct err e;

    if (s->live || kv_fits_alone(t->kv, &n, len, source, &e) < 0) return;
    fits = must_grant(t, &n);
    check(kv_reserve(t->kv, slot, &n) == (fits ? 0 : -EAGAIN));
    if (!fits) return;
    s->live = s->fresh = true;
    s->len = len;
    s->source = source;
    s->chunk = chunk;
    s->pos = 0;
    s->need = n;
}

/* The step uses the memory: all earlier uses must end before it. */
static void
use_memory(struct kv_ref *t, unsigned lane, uint64_t step, uint64_t used[MAX_LANES])
{
    for (unsigned l = 0; l < t->c.n_lanes; l++)
        check(l == lane || used[l] <= t->clock[lane][step % STEPS][l]);
    used[lane] = step;
}

static void
release_block(struct kv_ref *t, uint32_t group, slice_id at, int slot)
{
    uint32_t unit = first_unit(t, group, at);

    for (uint32_t i = 0; i < t->block_units[group]; i++) {
        check(t->owner[unit + i] == slot);
        t->owner[unit + i] = -1;
    }
}

static void
apply_edit(struct kv_ref *t, const struct kv_edit *e, unsigned lane, uint64_t step)
{
    struct kv_ref_slot *s = &t->slot[e->slot];
    uint32_t unit;

    use_memory(t, lane, step, s->row);
    if (e->op == EDIT_CLEAR) {
        for (uint32_t g = 0; g < t->c.n_groups; g++)
            check(s->n[g] == 0); /* drop_slot() freed them */
        return;
    }
    check(e->op == EDIT_SET && e->entry < ENTRIES);
    if (e->at == SLICE_NONE) {
        check(e->entry < s->n[e->group] && t->c.group[e->group].kind == KV_WINDOW);
        release_block(t, e->group, s->at[e->group][e->entry], (int)e->slot);
        s->at[e->group][e->entry] = SLICE_NONE;
        return;
    }
    check(e->entry == s->n[e->group]); /* in order, without gaps */
    s->at[e->group][s->n[e->group]++] = e->at;
    unit = first_unit(t, e->group, e->at);
    for (uint32_t i = 0; i < t->block_units[e->group]; i++) {
        check(t->owner[unit + i] == -1);
        t->owner[unit + i] = (int16_t)e->slot;
        use_memory(t, lane, step, t->used[unit + i]);
    }
}

static void
lower_reservation(struct kv_ref *t, uint32_t slot)
{
    struct kv_ref_slot *s = &t->slot[slot];

    s->need = kv_need(t->kv, s->len, s->source, 1);
    kv_lower(t->kv, slot, &s->need);
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        uint32_t first, held = kv_held(t->kv, slot, g, &first);

        s->need.n_blocks[g] = MAX(s->need.n_blocks[g], held);
    }
}

/* Plans a step of a slot on a lane: EDIT_CLEAR first, then its own edits, as the scheduler does. */
static void
plan_step(struct kv_ref *t, struct in *in)
{
    uint32_t slot = byte(in) % SLOTS, rows = 1 + byte(in) % 40;
    unsigned lane = byte(in) % t->c.n_lanes;
    struct kv_ref_slot *s = &t->slot[slot];
    struct kv_out out = { .edit = t->edit, .max_edits = EDITS };
    uint64_t step = t->planned[lane] + 1, *clock = t->clock[lane][step % STEPS];
    bool launch = s->live && s->pos < s->len;

    if (step - t->done[lane] > 2) return;
    kv_ends(t->kv, lane, &out);
    if (!launch && out.n_edits % 2 == 0) return; /* an empty step may be launched or not */
    if (launch) {
        uint32_t end = s->pos + MIN(rows, s->chunk);

        end = MIN(end, s->len);
        if (s->fresh) kv_cross(t->kv, lane, slot, s->source, &out);
        s->fresh = false;
        if (rows % 4 != 1) kv_trim(t->kv, slot, s->pos, &out);
        if (rows % 2) { /* prefill is done: chunks of 1 from now on */
            s->chunk = 1;
            end = s->pos + 1;
            lower_reservation(t, slot);
        }
        kv_trim(t->kv, slot, s->pos, &out);
        check(kv_has_capacity(t->kv, slot, end));
        kv_grow(t->kv, lane, slot, end, &out);
        kv_fence(t->kv, slot, lane, step);
        s->pos = end;
    }
    kv_ends_sent(t->kv, lane, step);
    t->planned[lane] = step;
    memcpy(clock, t->clock[lane][(step - 1) % STEPS], sizeof t->clock[0][0]);
    for (unsigned l = 0; l < MAX_LANES; l++) {
        check(out.wait[l] == 0 || (l != lane && out.wait[l] <= t->planned[l]));
        clock[l] = MAX(clock[l], t->done[l]);
        clock[l] = MAX(clock[l], out.wait[l]);
        for (unsigned k = 0; out.wait[l] && k < MAX_LANES; k++)
            clock[k] = MAX(clock[k], t->clock[l][out.wait[l] % STEPS][k]);
    }
    for (uint32_t i = 0; i < out.n_edits; i++) apply_edit(t, &t->edit[i], lane, step);
    if (!launch) return;
    use_memory(t, lane, step, s->row);
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        for (uint32_t i = 0; i < s->n[g]; i++)
            if (s->at[g][i] != SLICE_NONE)
                for (uint32_t u = 0; u < t->block_units[g]; u++)
                    use_memory(t, lane, step, t->used[first_unit(t, g, s->at[g][i]) + u]);
}

/* Finishes the oldest step of a lane if the steps that it waits for are finished. */
static void
finish_step(struct kv_ref *t, struct in *in)
{
    unsigned lane = byte(in) % t->c.n_lanes;
    uint64_t step = t->done[lane] + 1;

    if (step > t->planned[lane]) return;
    for (unsigned l = 0; l < t->c.n_lanes; l++)
        if (l != lane && t->clock[lane][step % STEPS][l] > t->done[l]) return;
    t->done[lane] = step;
    kv_done(t->kv, lane, step);
}

static void
drop_slot(struct kv_ref *t, struct in *in)
{
    uint32_t slot = byte(in) % SLOTS;
    struct kv_ref_slot *s = &t->slot[slot];

    kv_drop(t->kv, slot);
    if (!s->live) return;
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        for (uint32_t i = 0; i < s->n[g]; i++)
            if (s->at[g][i] != SLICE_NONE) release_block(t, g, s->at[g][i], (int)slot);
        s->n[g] = 0;
    }
    s->live = false;
}

/* Compares what each slot holds with its positions, and the counts with the units. */
static void
compare_all(const struct kv_ref *t)
{
    uint64_t units = 0, counted = 0;
    static struct kv_edit edit[EDITS];

    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const struct kv_ref_slot *s = &t->slot[slot];
        struct kv_out out = { .edit = edit, .max_edits = EDITS };

        check(kv_live(t->kv, slot) == s->live);
        kv_rows(t->kv, slot, &out);
        check(out.n_edits == kv_n_held(t->kv, slot));
        for (uint32_t i = 0; i < out.n_edits; i++)
            check(edit[i].slot == slot && edit[i].at == s->at[edit[i].group][edit[i].entry]);
        for (uint32_t g = 0; g < t->c.n_groups; g++) {
            const struct kv_group *k = &t->c.group[g];
            uint32_t tokens = t->c.tokens_per_block, end = 0, first, n, held = 0;

            if (s->live && !s->fresh)
                end = CEIL_DIV(k->kind == KV_CROSS ? s->source : s->pos, tokens);
            n = kv_held(t->kv, slot, g, &first);
            check(s->n[g] == end && (n == 0 || first + n == end) && n <= s->need.n_blocks[g]);
            for (uint32_t i = 0; i < s->n[g]; i++) {
                held += s->at[g][i] != SLICE_NONE;
                check(kv_entry(t->kv, slot, g, i) == s->at[g][i]);
                /* the last computed position sees it */
                if (k->kind != KV_WINDOW || (i + 1) * tokens + k->window > s->pos)
                    check(s->at[g][i] != SLICE_NONE);
            }
            check(held == n);
            if (k->kind == KV_WINDOW && n > 0) /* no entry that no position of the step saw */
                check(n <= CEIL_DIV(k->window + s->chunk, tokens) + 1 || s->chunk == 1);
        }
    }
    for (uint32_t i = 0; i < t->n_units; i++) units += t->owner[i] >= 0;
    for (uint32_t p = 0; p < kv_n_pools(t->kv); p++) {
        struct kv_count n;

        kv_count(t->kv, p, &n);
        counted += n.used * n.block_bytes / UNIT;
        check(n.used + n.free == n.blocks);
    }
    check(units == counted);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kv_ref *t = calloc(1, sizeof *t);
    struct in in = { data, data + size };

    check(t);
    if (open_geometry(t, &in)) {
        while (in.p < in.end) {
            fuzz_operations++;
            switch (byte(&in) % 8) {
            case 0:
            case 1:
                reserve_slot(t, &in);
                break;
            case 2:
            case 3:
            case 4:
                plan_step(t, &in);
                break;
            case 5:
            case 6:
                finish_step(t, &in);
                break;
            default:
                drop_slot(t, &in);
            }
            kv_check(t->kv);
            compare_all(t);
        }
    }
    free(t->mem);
    free(t);
    return 0;
}
