/* fuzz_reuse.c - reuse of KV blocks against a naive twin that knows what every position of the arena holds.
 *
 * The twin has no tree. Of each block's positions it keeps a number for "the K and V of this token after those
 * tokens", and a plain list of what was stored and not given to somebody else since. From that alone it says
 * how long a hit must be; before every step it looks whether each position that the step sees, through the
 * tables as edits and copies have made them, holds what the sequence needs. Of recurrent state it keeps which
 * tokens it is the state after, block by block, live ones and snapshots.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/kv/kv_core.h"
#include "worker/kv/kv_slab.h"
#include "worker/kv/kv_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SEATS = 5, LEN = 28, SOURCE = 12, ENTRIES = LEN, UNIT = 128, UNITS = 1 << 11, EDITS = 2048 };
enum { COPIES = 256, CELLS = 16, STEPS = 256, RECORDS = 1024, TOKENS = 4, LAYERS = 3 };

struct seat {
    bool live, started;
    token_id token[LEN], source[SOURCE];
    uint64_t extra[LEN];
    struct kv_text text;
    struct kv_space space;
    struct kv_keep keep[2];
    uint32_t len, chunk, pos, done; /* pos: planned; done: in steps that are over */
    uint32_t n_stored, hit;
    bool hit_cross, cross_stored;
    uint64_t salt, path[LEN],
        cross_path[SOURCE]; /* what each position holds, of self and cross groups */
    struct kv_need need;
    slice_id at[MAX_GROUPS][ENTRIES];
    uint32_t snapshot[KV_SNAPSHOTS], n_snapshots; /* positions; how many there ever were */
    slice_id copied[MAX_GROUPS]; /* the tail's copy, made before the seat was started */
    uint64_t row[MAX_LANES];
    uint32_t planned_at[MAX_LANES][STEPS]; /* positions once that step is over; 0: not in it */
};
struct record { /* a block that may be found */
    uint8_t group;
    slice_id at;            /* SLICE_NONE: only the host has it */
    slice_id layer[LAYERS]; /* of a snapshot: all of it */
    uint32_t cell;          /* + 1; 0: the host has it not */
    uint64_t path;          /* content of its last position: all tokens up to there */
    uint64_t before;        /* content of the last position before it */
    uint32_t n;
    token_id token[TOKENS];
    uint64_t extra[TOKENS];
};
struct twin {
    struct kv_config c;
    void *mem;
    struct kv *kv;
    uint32_t n_slabs, n_units, block_units[MAX_GROUPS], interval;
    bool has_state;
    uint64_t used[UNITS][MAX_LANES];
    uint64_t holds[UNITS][TOKENS]; /* of the block that begins there */
    uint32_t cell_units;
    uint64_t cell_used[CELLS][MAX_LANES], cell_holds[CELLS][TOKENS];
    struct seat seat[SEATS];
    struct record record[RECORDS];
    uint32_t n_records;
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    uint64_t clock[MAX_LANES][STEPS][MAX_LANES];
    struct kv_edit edit[EDITS];
    struct kv_copy copy[COPIES];
    nsec now;
};

static uint64_t
mix(uint64_t a, uint64_t b)
{
    a = (a ^ b) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    return a ^ a >> 29;
}

static uint32_t
unit_of(const struct twin *t, uint32_t group, slice_id at)
{
    uint64_t unit = (uint64_t)at * t->c.group[group].slice_bytes / UNIT;

    check(at != SLICE_NONE && unit + t->block_units[group] <= t->n_units);
    return (uint32_t)unit;
}

static void
name_positions(struct seat *s)
{
    uint64_t h = mix(s->salt + 17, s->text.n_source), source;

    for (uint32_t i = 0; i < s->text.n_source; i++) h = mix(h, (uint64_t)s->source[i] + 1);
    source = mix(h, 99);
    for (uint32_t i = 0; i < s->text.n_source; i++) s->cross_path[i] = mix(source, i);
    for (uint32_t i = 0; i < LEN; i++)
        s->path[i] = h = mix(mix(h, (uint64_t)s->token[i] + 1), s->extra[i]);
}

static uint64_t
content(const struct seat *s, bool cross, uint32_t pos)
{
    return cross ? s->cross_path[pos] : s->path[pos];
}

/* Of the root: the same for all of one salt and source. */
static uint64_t
before(const struct seat *s, bool cross, uint32_t pos)
{
    if (pos > 0) return content(s, cross, pos - 1);
    return s->text.n_source ? s->cross_path[0] : s->salt + 1;
}

static bool
begin(struct twin *t, struct in *in)
{
    uint32_t kinds = byte(in);
    struct err e;

    t->c = (struct kv_config){ .n_groups = 1 + kinds % 3,
                               .n_seats = SEATS,
                               .n_lanes = 1 + byte(in) % 2,
                               .tokens_per_block = 1 + byte(in) % TOKENS,
                               .reuse = true,
                               .extra_ids = true };
    t->c.copy_partial = byte(in) % 4 > 0;
    t->c.fifo = byte(in) % 4 == 0;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->c.group[g] = (struct kv_group){ .kind = (enum kv_kind)((kinds >> (2 * g + 2)) % 4),
                                           .window = 2 + byte(in) % 14,
                                           .n_layers = 1 + byte(in) % LAYERS,
                                           .n_parts = 2,
                                           .slice_bytes = UNIT,
                                           .max_entries = ENTRIES };
    t->interval = byte(in) % 5 * t->c.tokens_per_block;
    for (uint32_t g = 0, sinks = byte(in); g < t->c.n_groups; g++) {
        struct kv_group *k = &t->c.group[g];

        if (k->kind == KV_WINDOW && sinks % 3 == 0) k->sinks = sinks % 16;
        if (k->kind != KV_STATE) continue;
        t->has_state = true;
        k->n_parts = 1;
        k->slice_bytes = UNIT * (1 + k->window % 3);
        k->interval = t->interval;
    }
    t->interval = t->has_state ? t->interval : 0;
    t->n_slabs = 3 + byte(in) % 30;
    t->c.arena_bytes = (uint64_t)t->n_slabs * kv_slab_bytes(&t->c);
    t->n_units = (uint32_t)(t->c.arena_bytes / UNIT);
    if (t->n_units > UNITS) return false;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->cell_units = MAX(t->cell_units, (uint32_t)(kv_block_bytes(&t->c.group[g]) / UNIT));
    if (byte(in) % 2) t->c.host_bytes = (uint64_t)(byte(in) % CELLS) * t->cell_units * UNIT;
    t->mem = calloc(1, kv_bytes(&t->c));
    t->kv = kv_init(t->mem, &t->c, &e);
    if (!t->kv) return false;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->block_units[g] = (uint32_t)(kv_block_bytes(&t->c.group[g]) / UNIT);
    return true;
}

static bool
overlaps(const struct twin *t, uint32_t group, slice_id at, uint32_t first, uint32_t end)
{
    uint32_t unit = at == SLICE_NONE ? t->n_units : unit_of(t, group, at);

    return unit < end && unit + t->block_units[group] > first;
}

/* Whatever has a block in first .. end, any of a snapshot's. */
static bool
record_in(const struct twin *t, const struct record *r, uint32_t first, uint32_t end)
{
    if (t->c.group[r->group].kind != KV_STATE) return overlaps(t, r->group, r->at, first, end);
    for (uint32_t i = 0; i < t->c.group[r->group].n_layers; i++)
        if (overlaps(t, r->group, r->layer[i], first, end)) return true;
    return false;
}

static void
forget_record(struct twin *t, uint32_t i)
{
    t->record[i] = t->record[--t->n_records];
}

/* The device has it no more. */
static bool
leave_device(struct twin *t, uint32_t i)
{
    t->record[i].at = SLICE_NONE;
    if (t->record[i].cell) return false;
    forget_record(t, i);
    return true;
}

/* The step has the memory for itself: what was in it is nobody's, and others' use of it is over. */
static void
acquire(struct twin *t, uint32_t group, slice_id at, unsigned lane, uint64_t step)
{
    uint32_t first = unit_of(t, group, at), end = first + t->block_units[group];
    uint32_t slab_units = t->c.slab_bytes / UNIT, slab = first / slab_units * slab_units;

    for (uint32_t i = 0; i < t->n_records;) {
        bool taken_over = t->c.group[t->record[i].group].pool != t->c.group[group].pool &&
                          record_in(t, &t->record[i], slab, slab + slab_units);

        if (!(taken_over || record_in(t, &t->record[i], first, end)) || !leave_device(t, i)) i++;
    }
    for (uint32_t g = 0; g < t->c.n_groups; g++) /* nobody holds it */
        for (uint32_t s = 0; s < SEATS; s++)
            for (uint32_t e = 0; t->seat[s].live && e < ENTRIES; e++) {
                slice_id other = t->seat[s].at[g][e];
                uint32_t unit = other == SLICE_NONE ? UNITS : unit_of(t, g, other);

                check(unit >= end || unit + t->block_units[g] <= first);
            }
    for (uint32_t u = first; u < end; u++)
        for (unsigned l = 0; l < t->c.n_lanes; l++)
            check(l == lane || t->used[u][l] <= t->clock[lane][step % STEPS][l]);
}

static void
touch(struct twin *t, uint32_t group, slice_id at, unsigned lane, uint64_t step)
{
    uint32_t first = unit_of(t, group, at);

    for (uint32_t u = 0; u < t->block_units[group]; u++) t->used[first + u][lane] = step;
}

static const struct record *
find(const struct twin *t, uint32_t group, uint64_t path, uint32_t n)
{
    for (uint32_t i = 0; i < t->n_records; i++)
        if (t->record[i].group == group && t->record[i].path == path && t->record[i].n == n)
            return &t->record[i];
    return NULL;
}

static bool
on_device(const struct twin *t, uint32_t group, uint64_t path, uint32_t n)
{
    const struct record *r = find(t, group, path, n);

    return r && r->at != SLICE_NONE;
}

static bool
has_block(const struct twin *t, const struct seat *s, uint32_t group, uint32_t entry)
{
    uint32_t tokens = t->c.tokens_per_block;

    return find(t, group, content(s, false, (entry + 1) * tokens - 1), tokens);
}

/* By a query at pos: a block with a sink, or with a position that is in the window. */
static bool
is_seen(const struct twin *t, const struct kv_group *k, uint32_t entry, uint32_t pos)
{
    uint32_t tokens = t->c.tokens_per_block;

    if (k->kind != KV_WINDOW || entry * tokens < k->sinks) return true;
    return (entry + 1) * tokens + k->window > pos + 1;
}

/* So many positions are there, whole blocks, in every group. */
static bool
holds_blocks(const struct twin *t, const struct seat *s, uint32_t depth, uint32_t pos)
{
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        const struct kv_group *k = &t->c.group[g];

        if (k->kind == KV_CROSS) continue;
        if (k->kind == KV_STATE && !has_block(t, s, g, depth - 1)) return false;
        for (uint32_t i = 0; i < depth && k->kind != KV_STATE; i++)
            if (is_seen(t, k, i, pos) && !has_block(t, s, g, i)) return false;
    }
    return true;
}

static bool
held(const struct twin *t, uint32_t group, slice_id at)
{
    for (uint32_t s = 0; s < SEATS; s++)
        for (uint32_t e = 0; t->seat[s].live && e < ENTRIES; e++)
            if (t->seat[s].at[group][e] == at) return true;
    return false;
}

/* Tokens of the record r that s goes on with behind depth blocks, if all groups have such a block. */
static uint32_t
part_of(const struct twin *t, const struct seat *s, uint32_t depth, const struct record *r)
{
    uint32_t first = depth * t->c.tokens_per_block, n = 0;

    if (r->before != before(s, false, first)) return 0;
    while (n < r->n && first + n < s->text.n - 1 && r->token[n] == s->token[first + n] &&
           r->extra[n] == s->extra[first + n])
        n++;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        if (t->c.group[g].kind != KV_CROSS && !on_device(t, g, r->path, r->n)) return 0;
    return n;
}

static uint32_t
expected_hit(const struct twin *t, const struct seat *s, uint32_t *whole)
{
    uint32_t tokens = t->c.tokens_per_block, depth = 0, part = 0;
    bool self = false;

    for (uint32_t g = 0; g < t->c.n_groups; g++) self |= t->c.group[g].kind != KV_CROSS;
    *whole = 0;
    if (!self) return 0;
    for (uint32_t d = 1; d * tokens < s->text.n; d++)
        if (holds_blocks(t, s, d, d * tokens)) depth = d;
    *whole = depth * tokens;
    if (t->has_state) return *whole;
    for (uint32_t i = 0; i < t->n_records; i++)
        if (t->c.group[t->record[i].group].kind != KV_CROSS)
            part = MAX(part, part_of(t, s, depth, &t->record[i]));
    return part && holds_blocks(t, s, depth, *whole + part) ? *whole + part : *whole;
}

static bool
expected_cross(const struct twin *t, const struct seat *s)
{
    uint32_t tokens = t->c.tokens_per_block;
    bool cross = false;

    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        if (t->c.group[g].kind != KV_CROSS) continue;
        cross = true;
        for (uint32_t at = 0; at < s->text.n_source; at += tokens) {
            uint32_t n = MIN(tokens, s->text.n_source - at);

            if (!find(t, g, content(s, true, at + n - 1), n)) return false;
        }
    }
    return cross && s->text.n_source > 0;
}

/* Slabs that it takes to keep what is promised, with need more; counted from the tables alone. */
static bool
fits_cold(const struct twin *t, const struct kv_need *need)
{
    uint32_t slab_units = t->c.slab_bytes / UNIT;
    uint64_t slabs = 0;

    for (uint32_t p = 0; p < kv_n_pools(t->kv); p++) {
        uint64_t blocks = 0, hot = 0, per_slab = 0;
        bool has[64] = { false };

        for (uint32_t g = 0; g < t->c.n_groups; g++) {
            bool once = t->c.group[g].kind == KV_FULL || t->c.group[g].kind == KV_CROSS;

            if (t->c.group[g].pool != p) continue;
            per_slab = slab_units / t->block_units[g];
            has[unit_of(t, g, kv_scratch(t->kv, g)) / slab_units] = true;
            blocks += 1 + need->n_blocks[g];
            for (uint32_t s = 0; s < SEATS; s++) {
                const struct seat *q = &t->seat[s];

                if (q->live) blocks += q->need.n_blocks[g];
                for (uint32_t e = 0; q->live && e < ENTRIES; e++) {
                    bool first = true;

                    if (q->at[g][e] == SLICE_NONE) continue;
                    has[unit_of(t, g, q->at[g][e]) / slab_units] = true;
                    for (uint32_t o = 0; o < s; o++)
                        first = first && !(t->seat[o].live && t->seat[o].at[g][e] == q->at[g][e]);
                    if (once && !first) blocks--; /* shared: promised once */
                }
            }
        }
        for (uint32_t i = 0; i < ARRAY_LEN(has); i++) hot += has[i];
        slabs += MAX(hot, CEIL_DIV(blocks, per_slab));
    }
    return slabs <= t->n_slabs;
}

static bool
all_started(const struct twin *t)
{
    for (uint32_t i = 0; i < SEATS; i++)
        if (t->seat[i].live && !t->seat[i].started) return false;
    return true;
}

static void
draw_text(struct twin *t, struct seat *s, struct in *in)
{
    uint32_t how = byte(in), like = byte(in) % SEATS, n = byte(in) % LEN, alphabet = 2;

    memset(s, 0, sizeof *s);
    s->salt = how % 8 == 7;
    s->len = 1 + byte(in) % LEN;
    if (how & 8) {
        memcpy(s->token, t->seat[like].token, sizeof s->token);
        memcpy(s->extra, t->seat[like].extra, sizeof s->extra);
    }
    for (uint32_t i = how & 8 ? n : 0; i < LEN; i++) {
        s->token[i] = (token_id)(byte(in) % alphabet);
        s->extra[i] = (how & 48) == 48 && i % 8 == 3;
    }
    s->text.n_source = (how & 64) ? 1 + byte(in) % (SOURCE - 1) : 0;
    for (uint32_t i = 0; i < s->text.n_source; i++) s->source[i] = (token_id)(byte(in) % 2);
    kv_space(t->kv, s->salt, 0, s->source, s->text.n_source, &s->space);
    name_positions(s);
}

static void
admit(struct twin *t, struct in *in)
{
    uint32_t seat = byte(in) % SEATS, whole, want;
    struct seat *s = &t->seat[seat];
    struct kv_hit hit, seen;
    struct kv_need more = { { 0 } };
    bool cold, want_cross, roomy;
    int r;

    if (s->live) return;
    draw_text(t, s, in);
    s->chunk = 1 + byte(in) % 20;
    s->text.token = s->token;
    s->text.extra = s->extra;
    s->text.source = s->source;
    s->text.space = &s->space;
    s->text.n = s->len; /* the whole of it is known: a prompt */
    s->text.n_keep = byte(in) % 3;
    s->text.keep = s->text.n_keep ? s->keep : NULL;
    s->keep[0] = (struct kv_keep){ 0, 1 + byte(in) % 9, (uint8_t)(byte(in) % 101), byte(in) % 20 };
    s->keep[1] = (struct kv_keep){ s->keep[0].end, UINT32_MAX, (uint8_t)(byte(in) % 101), 0 };
    check(kv_keep_check(s->keep, 2, NULL) == 0);
    s->need = kv_need(t->kv, s->len, s->text.n_source, s->chunk);
    if (kv_fits_alone(t->kv, &s->need, s->len, s->text.n_source, NULL) < 0) return;
    want = expected_hit(t, s, &whole);
    want_cross = expected_cross(t, s);
    kv_lookup(t->kv, &s->text, &seen);
    if (t->c.copy_partial) check(seen.n_tokens == want);
    check(seen.n_tokens <= want && seen.n_tokens >= whole && seen.cross == want_cross);
    for (uint32_t g = 0; g < t->c.n_groups; g++) more.n_blocks[g] = s->need.n_blocks[g] + 1;
    /* With a block more a group it fits, whatever is shared or copied. */
    roomy = kv_n_pools(t->kv) == 1 && all_started(t) && fits_cold(t, &more);
    cold = fits_cold(t, &s->need);
    r = kv_admit(t->kv, seat, &s->need, &s->text, &hit);
    check(r == 0 || (r == -EAGAIN && (!cold || !all_started(t))));
    if (r < 0) return;
    check(hit.n_tokens == seen.n_tokens || hit.n_tokens == whole || hit.n_tokens == 0);
    if (roomy) check(hit.n_tokens == seen.n_tokens);
    s->live = true;
    s->hit = s->pos = s->done = hit.n_tokens;
    s->hit_cross = s->cross_stored = hit.cross;
    s->n_stored = hit.n_full;
    memset(s->at, 0xff, sizeof s->at);
    memset(s->copied, 0xff, sizeof s->copied);
    /* From here on nobody else is given what it hit: its rows list it before the step says so. */
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        for (uint32_t i = 0; i < t->c.group[g].max_entries; i++)
            s->at[g][i] = kv_entry(t->kv, seat, g, i);
    if (t->has_state && s->hit) s->snapshot[s->n_snapshots++] = s->hit;
}

/* A block that leaves the device, or comes back. */
static void
apply_tier(struct twin *t, const struct kv_copy *c, unsigned lane, uint64_t step)
{
    bool out = c->to_tier == TIER_HOST;
    slice_id at = out ? c->from : c->to;
    uint32_t cell = (out ? c->to : c->from) / t->cell_units, i;
    uint64_t *device = t->holds[unit_of(t, c->group, at)], *host = t->cell_holds[cell];

    check(cell < t->c.host_bytes / (t->cell_units * UNIT) && !c->n_tokens && !c->after);
    check(c->from_tier != c->to_tier);
    for (unsigned l = 0; l < t->c.n_lanes; l++)
        check(l == lane || t->cell_used[cell][l] <= t->clock[lane][step % STEPS][l]);
    t->cell_used[cell][lane] = step;
    if (out) {
        for (i = 0; i < t->n_records && t->record[i].cell != cell + 1; i++) {
        }
        if (i < t->n_records) t->record[i].cell = 0;
        if (i < t->n_records && t->record[i].at == SLICE_NONE) forget_record(t, i);
        for (i = 0; i < t->n_records; i++)
            if (t->record[i].group == c->group && t->record[i].at == at) break;
        check(i < t->n_records && !t->record[i].cell);
        t->record[i].cell = cell + 1;
    } else {
        acquire(t, c->group, at, lane, step);
        for (i = 0; i < t->n_records && t->record[i].cell != cell + 1; i++) {
        }
        check(i < t->n_records && t->record[i].at == SLICE_NONE);
        check(t->record[i].group == c->group);
        t->record[i].at = at;
    }
    touch(t, c->group, at, lane, step);
    memcpy(out ? host : device, out ? device : host, TOKENS * sizeof *host);
}

/* A seat begins with a snapshot; or one is made of what is live. */
static void
apply_state(struct twin *t, const struct kv_copy *c, unsigned lane, uint64_t step)
{
    check(!c->n_tokens && c->from_tier == TIER_DEVICE && c->to_tier == TIER_DEVICE);
    if (!c->after) acquire(t, c->group, c->to, lane, step);
    touch(t, c->group, c->to, lane, step);
    touch(t, c->group, c->from, lane, step);
    t->holds[unit_of(t, c->group, c->to)][0] = t->holds[unit_of(t, c->group, c->from)][0];
}

/* Which seat a copy is for: the one whose tail's place it takes. */
static void
apply_copies(struct twin *t, const struct kv_out *out, unsigned lane, uint64_t step, bool after)
{
    for (uint32_t i = 0; i < out->n_copies; i++) {
        const struct kv_copy *c = &out->copy[i];
        uint64_t *from, *to;

        if (c->after != after) continue;
        if (t->c.group[c->group].kind == KV_STATE) {
            apply_state(t, c, lane, step);
            continue;
        }
        if (c->from_tier == TIER_HOST || c->to_tier == TIER_HOST) {
            apply_tier(t, c, lane, step);
            continue;
        }
        from = t->holds[unit_of(t, c->group, c->from)];
        to = t->holds[unit_of(t, c->group, c->to)];
        check(c->n_tokens > 0 && c->n_tokens < t->c.tokens_per_block && c->from != c->to);
        acquire(t, c->group, c->to, lane, step);
        touch(t, c->group, c->to, lane, step);
        touch(t, c->group, c->from, lane, step);
        for (uint32_t k = 0; k < t->c.tokens_per_block; k++) to[k] = k < c->n_tokens ? from[k] : 0;
        for (uint32_t s = 0; s < SEATS; s++) {
            uint32_t entry = t->seat[s].hit / t->c.tokens_per_block;

            if (t->seat[s].live && !t->seat[s].started && t->seat[s].hit % t->c.tokens_per_block &&
                kv_entry(t->kv, s, c->group, entry) == c->to) {
                t->seat[s].copied[c->group] = c->to;
                t->seat[s].at[c->group][entry] = c->to;
            }
        }
    }
}

static void
apply_edit(struct twin *t, const struct kv_edit *e, unsigned lane, uint64_t step)
{
    struct seat *s = &t->seat[e->seat];
    const struct kv_group *k = &t->c.group[e->group];
    uint32_t shared = s->hit / t->c.tokens_per_block;

    for (unsigned l = 0; l < t->c.n_lanes; l++)
        check(l == lane || s->row[l] <= t->clock[lane][step % STEPS][l]);
    s->row[lane] = step;
    if (e->op == EDIT_END) return;
    check(e->op == EDIT_SET && e->entry < k->max_entries);
    if (k->kind == KV_CROSS) shared = s->hit_cross ? ENTRIES : 0;
    if (k->kind == KV_STATE) {
        shared = s->hit && !s->started && e->entry >= k->n_layers ? 2 * k->n_layers : 0;
        check(e->pos == (e->entry < k->n_layers ? 0 : s->snapshot[e->entry / k->n_layers - 1]));
    }
    check(e->at != SLICE_NONE ||
          (k->kind == KV_WINDOW && e->entry * t->c.tokens_per_block >= k->sinks));
    if (e->at == SLICE_NONE || e->entry < shared) {
        check(e->at == SLICE_NONE || s->at[e->group][e->entry] == e->at ||
              (s->at[e->group][e->entry] == SLICE_NONE && !s->started)); /* fetched */
        s->at[e->group][e->entry] = e->at;
        return;
    }
    if (!s->started && s->copied[e->group] == e->at) return;
    s->at[e->group][e->entry] = SLICE_NONE;
    for (uint32_t i = 1; k->kind == KV_STATE && e->entry % k->n_layers == 0 && i < k->n_layers; i++)
        s->at[e->group][e->entry + i] =
            SLICE_NONE; /* the snapshot that it is made over leaves whole */
    acquire(t, e->group, e->at, lane, step);
    s->at[e->group][e->entry] = e->at;
}

/* Its state is the one after the tokens before first, then the one after those before end. */
static void
compute_state(struct twin *t, const struct seat *s, uint32_t group, unsigned lane, uint64_t step,
              uint32_t first, uint32_t end)
{
    for (uint32_t i = 0; i < t->c.group[group].n_layers; i++) {
        uint64_t *holds = &t->holds[unit_of(t, group, s->at[group][i])][0];

        check(first == 0 || *holds == mix(s->path[first - 1], i));
        *holds = mix(s->path[end - 1], i);
        touch(t, group, s->at[group][i], lane, step);
    }
}

/* Rows first .. end of the seat: they see what is theirs, then they are there. */
static void
compute(struct twin *t, struct seat *s, unsigned lane, uint64_t step, uint32_t first, uint32_t end)
{
    uint32_t tokens = t->c.tokens_per_block;

    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        const struct kv_group *k = &t->c.group[g];
        bool cross = k->kind == KV_CROSS, fill = cross && !s->started && !s->hit_cross;
        uint32_t from = k->kind == KV_WINDOW && first >= k->window ? first - k->window + 1 : 0;
        uint32_t to = cross ? s->text.n_source : end;

        if (k->kind == KV_STATE) compute_state(t, s, g, lane, step, first, end);
        for (uint32_t pos = 0; pos < to && k->kind != KV_STATE; pos++) {
            slice_id at = s->at[g][pos / tokens];
            uint64_t *holds;

            if (pos < from && pos >= k->sinks) continue;
            holds = &t->holds[unit_of(t, g, at)][pos % tokens];
            if (fill || (!cross && pos >= first)) *holds = content(s, cross, pos);
            check(*holds == content(s, cross, pos));
            touch(t, g, at, lane, step);
        }
    }
}

/* The first position behind s->pos that a snapshot is to be of. */
static uint32_t
border_of(const struct twin *t, const struct seat *s)
{
    for (uint32_t pos = s->pos + 1; t->interval && pos < s->len; pos++) {
        if (pos % t->interval == 0) return pos;
        if (pos % t->c.tokens_per_block == 0 && pos + t->c.tokens_per_block >= s->len) return pos;
    }
    return t->interval ? CEIL_DIV(s->len, t->interval) * t->interval : UINT32_MAX;
}

static void
plan(struct twin *t, struct in *in)
{
    uint32_t seat = byte(in) % SEATS, rows = 1 + byte(in) % 20, end;
    unsigned lane = byte(in) % t->c.n_lanes;
    struct seat *s = &t->seat[seat];
    struct kv_out out = {
        .edit = t->edit, .max_edits = EDITS, .copy = t->copy, .max_copies = COPIES
    };
    uint64_t step = t->planned[lane] + 1, *clock = t->clock[lane][step % STEPS];

    out.step = step;
    if (!s->live || s->pos >= s->len || step - t->done[lane] > 2) return;
    end = MIN(s->len, s->pos + MIN(rows, s->chunk));
    end = MIN(end, border_of(t, s));
    check(!t->interval || kv_border(t->kv, s->pos, s->len) == border_of(t, s));
    kv_ends(t->kv, lane, &out);
    if (!s->started) kv_start(t->kv, lane, step, seat, &out);
    if (!s->started) kv_cross(t->kv, lane, seat, s->text.n_source, &out);
    kv_trim(t->kv, seat, s->pos, &out);
    check(kv_room(t->kv, seat, end));
    kv_grow(t->kv, lane, seat, end, &out);
    if (end == border_of(t, s)) {
        kv_snapshot(t->kv, lane, seat, end, &out);
        s->snapshot[s->n_snapshots++ % KV_SNAPSHOTS] = end;
    }
    kv_fence(t->kv, seat, lane, step);
    kv_ends_sent(t->kv, lane, step);
    t->planned[lane] = step;
    memcpy(clock, t->clock[lane][(step - 1) % STEPS], sizeof t->clock[0][0]);
    for (unsigned l = 0; l < t->c.n_lanes; l++) {
        clock[l] = MAX(clock[l], MAX(t->done[l], out.wait[l]));
        for (unsigned k = 0; out.wait[l] && k < t->c.n_lanes; k++)
            clock[k] = MAX(clock[k], t->clock[l][out.wait[l] % STEPS][k]);
    }
    apply_copies(t, &out, lane, step, false);
    for (uint32_t i = 0; i < out.n_edits; i++) apply_edit(t, &t->edit[i], lane, step);
    for (uint32_t i = 0; i < SEATS; i++) t->seat[i].planned_at[lane][step % STEPS] = 0;
    compute(t, s, lane, step, s->pos, end);
    apply_copies(t, &out, lane, step, true);
    s->started = true;
    s->pos = end;
    s->planned_at[lane][step % STEPS] = end;
}

static void
finish(struct twin *t, struct in *in)
{
    unsigned lane = byte(in) % t->c.n_lanes;
    uint64_t step = t->done[lane] + 1;

    if (step > t->planned[lane]) return;
    for (unsigned l = 0; l < t->c.n_lanes; l++)
        if (l != lane && t->clock[lane][step % STEPS][l] > t->done[l]) return;
    t->done[lane] = step;
    kv_done(t->kv, lane, step);
    for (uint32_t i = 0; i < SEATS; i++)
        t->seat[i].done = MAX(t->seat[i].done, t->seat[i].planned_at[lane][step % STEPS]);
}

static void
add_record(struct twin *t, const struct seat *s, uint32_t group, uint32_t entry, uint32_t n)
{
    bool cross = t->c.group[group].kind == KV_CROSS, is_state = t->c.group[group].kind == KV_STATE;
    uint32_t first = entry * t->c.tokens_per_block, layers = t->c.group[group].n_layers, slot = 0;
    uint64_t path = content(s, cross, first + n - 1);
    const struct record *only_host;
    struct record *r;

    if (is_state) {
        while (slot < KV_SNAPSHOTS && s->snapshot[slot] != first + n) slot++;
        if (slot == KV_SNAPSHOTS || n < t->c.tokens_per_block) return;
        entry = layers * (1 + slot);
    }
    if (s->at[group][entry] == SLICE_NONE || on_device(t, group, path, n)) return;
    for (uint32_t i = 0; i < t->n_records; i++) /* it stands elsewhere already */
        if (t->record[i].group == group && t->record[i].at == s->at[group][entry]) return;
    only_host = find(t, group, path, n);
    if (only_host) {
        t->record[only_host - t->record].at = s->at[group][entry];
        return;
    }
    r = &t->record[t->n_records];
    check(t->n_records++ < RECORDS);
    *r = (struct record){ .group = (uint8_t)group,
                          .at = s->at[group][entry],
                          .path = path,
                          .before = before(s, cross, first),
                          .n = n };
    for (uint32_t i = 0; i < layers && is_state; i++) r->layer[i] = s->at[group][entry + i];
    for (uint32_t i = 0; i < n && !cross; i++) {
        r->token[i] = s->token[first + i];
        r->extra[i] = s->extra[first + i];
    }
}

static void
record_blocks(struct twin *t, struct seat *s, uint32_t from, uint32_t n, bool cross)
{
    uint32_t tokens = t->c.tokens_per_block;

    for (uint32_t at = from * tokens; at < n; at += tokens)
        for (uint32_t g = 0; g < t->c.n_groups; g++)
            if ((t->c.group[g].kind == KV_CROSS) == cross)
                add_record(t, s, g, at / tokens, MIN(tokens, n - at));
}

static void
store(struct twin *t, struct in *in, bool drop, bool release)
{
    uint32_t seat = byte(in) % SEATS, less = byte(in) % 8, tokens = t->c.tokens_per_block, n;
    struct seat *s = &t->seat[seat];

    if (!s->live || (!s->started && !drop)) return;
    n = s->done > less ? s->done - less : 0;
    if (s->started && n > 0 && (release || !drop)) {
        if (!s->cross_stored) record_blocks(t, s, 0, s->text.n_source, true);
        s->cross_stored = true;
        if (n / tokens > s->n_stored) record_blocks(t, s, s->n_stored, n / tokens * tokens, false);
        s->n_stored = MAX(s->n_stored, n / tokens);
    }
    if (s->started && release) {
        record_blocks(t, s, 0, s->n_stored * tokens, false);
        if (n / tokens == s->n_stored && n > 0 && !t->has_state)
            record_blocks(t, s, n / tokens, n, false);
    }
    if (release) {
        kv_release(t->kv, seat, &s->text, n);
    } else if (drop) {
        kv_drop(t->kv, seat);
    } else {
        kv_store(t->kv, seat, &s->text, n);
    }
    if (!drop) return;
    s->live = false;
    memset(s->at, 0xff, sizeof s->at);
    memset(s->planned_at, 0, sizeof s->planned_at);
}

/* What the seats hold is what the tables say, and all that was stored is held or counted as cached. */
static void
compare(const struct twin *t)
{
    uint32_t cached = 0, counted = 0, cells = 0;
    struct kv_count host;

    for (uint32_t i = 0; i < SEATS; i++)
        for (uint32_t g = 0; t->seat[i].live && g < t->c.n_groups; g++) {
            uint32_t first, n = kv_held(t->kv, i, g, &first), have = 0;

            for (uint32_t e = 0; e < ENTRIES; e++) {
                have += t->seat[i].at[g][e] != SLICE_NONE;
                if (e < t->c.group[g].max_entries)
                    check(kv_entry(t->kv, i, g, e) == t->seat[i].at[g][e]);
            }
            check(have == n || (have < n && !t->seat[i].started));
        }
    for (uint32_t i = 0; i < t->n_records; i++) {
        bool is_state = t->c.group[t->record[i].group].kind == KV_STATE;

        if (t->record[i].at != SLICE_NONE && !held(t, t->record[i].group, t->record[i].at))
            cached += is_state ? t->c.group[t->record[i].group].n_layers : 1;
        cells += t->record[i].cell != 0;
    }
    kv_count_host(t->kv, &host);
    check(host.used + host.cached == cells);
    for (uint32_t p = 0; p < kv_n_pools(t->kv); p++) {
        struct kv_count n;

        kv_count(t->kv, p, &n);
        counted += n.cached;
        check(n.used + n.cached + n.free == n.blocks);
    }
    /* a tail that is held and not started is in no table */
    check(all_started(t) ? cached == counted : counted <= cached);
}

/* What the tree has no room for is not found: the twin, which has no tree, knows nothing of that. */
static bool
crowded(const struct twin *t)
{
    return t->kv->n_live_nodes + 2 * LEN > t->kv->n_nodes;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct twin *t = calloc(1, sizeof *t);
    struct in in = { data, data + size };

    check(t);
    if (begin(t, &in)) {
        while (in.p < in.end && !(t->has_state && crowded(t))) {
            switch (byte(&in) % 10) {
            case 0:
            case 1:
                admit(t, &in);
                break;
            case 2:
            case 3:
            case 4:
                plan(t, &in);
                break;
            case 5:
            case 6:
                finish(t, &in);
                break;
            case 7:
                store(t, &in, false, false);
                break;
            case 8:
                store(t, &in, true, true);
                break;
            default:
                if (byte(&in) % 4 == 0) store(t, &in, true, false);
                kv_now(t->kv, t->now += byte(&in));
            }
            kv_check(t->kv);
            compare(t);
        }
    }
    free(t->mem);
    free(t);
    return 0;
}
