/* ref_reuse.c - see ref_reuse.h. */
#include "tests/fuzz/ref_reuse.h"

uint64_t
ref_mix(uint64_t a, uint64_t b)
{
    a = (a ^ b) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    return a ^ a >> 29;
}

uint32_t
ref_unit(const struct reuse_ref *t, uint32_t group, slice_id at)
{
    uint64_t unit = (uint64_t)at * t->c.group[group].slice_bytes / UNIT;

    check(at != SLICE_NONE && unit + t->block_units[group] <= t->n_units);
    return (uint32_t)unit;
}

void
ref_name(struct reuse_slot *s)
{
    uint64_t h = ref_mix(s->salt + 17, s->text.n_source), source;

    for (uint32_t i = 0; i < s->text.n_source; i++) h = ref_mix(h, (uint64_t)s->source[i] + 1);
    source = ref_mix(h, 99);
    for (uint32_t i = 0; i < s->text.n_source; i++) s->cross_path[i] = ref_mix(source, i);
    for (uint32_t i = 0; i < LEN; i++)
        s->path[i] = h = ref_mix(ref_mix(h, (uint64_t)s->token[i] + 1), s->extra[i]);
}

uint64_t
ref_content(const struct reuse_slot *s, bool cross, uint32_t pos)
{
    return cross ? s->cross_path[pos] : s->path[pos];
}

uint64_t
ref_before(const struct reuse_slot *s, bool cross, uint32_t pos)
{
    if (pos > 0) return ref_content(s, cross, pos - 1);
    return s->text.n_source ? s->cross_path[0] : s->salt + 1;
}

bool
ref_begin(struct reuse_ref *t, struct in *in)
{
    bool skip_rare_features = byte(in) % 2 == 0;
    uint32_t kinds = byte(in), order, limit;
    struct err e;

    t->c = (struct kv_config){ .n_groups = 1 + kinds % 3,
                               .n_slots = SLOTS,
                               .n_lanes = 1 + byte(in) % 2,
                               .tokens_per_block = 1 + byte(in) % TOKENS,
                               .reuse = true,
                               .extra_ids = true };
    t->c.copy_partial = byte(in) % 4 > 0;
    order = byte(in);
    t->c.fifo = order % 4 == 0;
    limit = order / 4 % 4 == 3 ? 3 + order / 16 : 0;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->c.group[g] = (struct kv_group){ .kind = (enum kv_kind)((kinds >> (2 * g + 2)) %
                                                                  (skip_rare_features ? 3 : 4)),
                                           .window = 2 + byte(in) % 14,
                                           .n_layers = 1 + byte(in) % LAYERS,
                                           .n_parts = 2,
                                           .slice_bytes = UNIT,
                                           .max_entries = ENTRIES,
                                           .max_blocks = limit };
    t->skip_rare_features = skip_rare_features;
    if (!skip_rare_features) t->interval = byte(in) % 5 * t->c.tokens_per_block;
    for (uint32_t g = 0, sinks = skip_rare_features ? 1 : byte(in); g < t->c.n_groups; g++) {
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
    /* Then only max_blocks limits blocks, and each new block replaces one of its own group. */
    if (limit) t->n_slabs = t->c.n_groups * (limit + 1) + 1;
    t->c.arena_bytes = (uint64_t)t->n_slabs * kv_slab_bytes(&t->c);
    t->n_units = (uint32_t)(t->c.arena_bytes / UNIT);
    if (t->n_units > UNITS) return false;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->host_block_units = MAX(t->host_block_units,
                                  (uint32_t)(kv_block_bytes(&t->c.group[g]) / UNIT));
    if (byte(in) % 2)
        t->c.host_bytes = (uint64_t)(byte(in) % HOST_BLOCKS) * t->host_block_units * UNIT;
    t->mem = calloc(1, kv_bytes(&t->c));
    t->kv = kv_init(t->mem, &t->c, &e);
    if (!t->kv) return false;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->block_units[g] = (uint32_t)(kv_block_bytes(&t->c.group[g]) / UNIT);
    return true;
}

static bool
overlaps(const struct reuse_ref *t, uint32_t group, slice_id at, uint32_t first, uint32_t end)
{
    uint32_t unit = at == SLICE_NONE ? t->n_units : ref_unit(t, group, at);

    return unit < end && unit + t->block_units[group] > first;
}

/* Returns true if a block of the record, or of its snapshot, overlaps units first .. end - 1. */
static bool
record_in(const struct reuse_ref *t, const struct reuse_record *r, uint32_t first, uint32_t end)
{
    if (t->c.group[r->group].kind != KV_STATE) return overlaps(t, r->group, r->at, first, end);
    for (uint32_t i = 0; i < t->c.group[r->group].n_layers; i++)
        if (overlaps(t, r->group, r->layer[i], first, end)) return true;
    return false;
}

void
ref_forget(struct reuse_ref *t, uint32_t i)
{
    t->record[i] = t->record[--t->n_records];
}

/* The record leaves the device. */
static bool
leave_device(struct reuse_ref *t, uint32_t i)
{
    t->record[i].at = SLICE_NONE;
    if (t->record[i].host_block) return false;
    ref_forget(t, i);
    return true;
}

void
ref_acquire(struct reuse_ref *t, uint32_t group, slice_id at, unsigned lane, uint64_t step)
{
    uint32_t first = ref_unit(t, group, at), end = first + t->block_units[group];
    uint32_t slab_units = t->c.slab_bytes / UNIT, slab = first / slab_units * slab_units;

    for (uint32_t i = 0; i < t->n_records;) {
        bool taken_over = t->c.group[t->record[i].group].pool != t->c.group[group].pool &&
                          record_in(t, &t->record[i], slab, slab + slab_units);

        if (!(taken_over || record_in(t, &t->record[i], first, end)) || !leave_device(t, i)) i++;
    }
    for (uint32_t g = 0; g < t->c.n_groups; g++) /* no slot holds it */
        for (uint32_t s = 0; s < SLOTS; s++)
            for (uint32_t e = 0; t->slot[s].live && e < ENTRIES; e++) {
                slice_id other = t->slot[s].at[g][e];
                uint32_t unit = other == SLICE_NONE ? UNITS : ref_unit(t, g, other);

                check(unit >= end || unit + t->block_units[g] <= first);
            }
    for (uint32_t u = first; u < end; u++)
        for (unsigned l = 0; l < t->c.n_lanes; l++)
            check(l == lane || t->used[u][l] <= t->clock[lane][step % STEPS][l]);
}

static uint32_t
block_name(const struct reuse_ref *t, uint32_t group, slice_id at)
{
    return 1 + ref_unit(t, group, at) * MAX_GROUPS + group;
}

void
ref_write(struct reuse_ref *t, uint32_t group, slice_id at)
{
    uint32_t first = ref_unit(t, group, at);

    for (uint32_t u = 0; u < t->block_units[group]; u++)
        t->block_of[first + u] = block_name(t, group, at);
}

bool
ref_whole(const struct reuse_ref *t, uint32_t group, slice_id at)
{
    uint32_t first = ref_unit(t, group, at);

    for (uint32_t u = 0; u < t->block_units[group]; u++)
        if (t->block_of[first + u] != block_name(t, group, at)) return false;
    return true;
}

void
ref_touch(struct reuse_ref *t, uint32_t group, slice_id at, unsigned lane, uint64_t step)
{
    uint32_t first = ref_unit(t, group, at);

    for (uint32_t u = 0; u < t->block_units[group]; u++) t->used[first + u][lane] = step;
}

const struct reuse_record *
ref_find(const struct reuse_ref *t, uint32_t group, uint64_t path, uint32_t n)
{
    for (uint32_t i = 0; i < t->n_records; i++)
        if (t->record[i].group == group && t->record[i].path == path && t->record[i].n == n)
            return &t->record[i];
    return NULL;
}

bool
ref_on_device(const struct reuse_ref *t, uint32_t group, uint64_t path, uint32_t n)
{
    const struct reuse_record *r = ref_find(t, group, path, n);

    return r && r->at != SLICE_NONE;
}

/* Returns true if the block is on the device, or in a host tier that is present. */
static bool
is_there(const struct reuse_ref *t, uint32_t group, uint64_t path, uint32_t n)
{
    const struct reuse_record *r = ref_find(t, group, path, n);

    return r && (r->at != SLICE_NONE || !t->away);
}

static bool
has_block(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t group, uint32_t entry)
{
    uint32_t tokens = t->c.tokens_per_block;

    return is_there(t, group, ref_content(s, false, (entry + 1) * tokens - 1), tokens);
}

/* Returns true if a query at pos sees the entry: a sink, or within the window. */
static bool
is_seen(const struct reuse_ref *t, const struct kv_group *k, uint32_t entry, uint32_t pos)
{
    uint32_t tokens = t->c.tokens_per_block;

    if (k->kind != KV_WINDOW || entry * tokens < k->sinks) return true;
    return (entry + 1) * tokens + k->window > pos + 1;
}

/* Returns true if `depth` full blocks are cached in every group. */
static bool
holds_blocks(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t depth, uint32_t pos)
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

bool
ref_held(const struct reuse_ref *t, uint32_t group, slice_id at)
{
    for (uint32_t s = 0; s < SLOTS; s++)
        for (uint32_t e = 0; t->slot[s].live && e < ENTRIES; e++)
            if (t->slot[s].at[group][e] == at) return true;
    return false;
}

/* Returns the tokens of record r that continue s after depth blocks, if all groups have the
 * block. */
static uint32_t
part_of(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t depth,
        const struct reuse_record *r)
{
    uint32_t first = depth * t->c.tokens_per_block, n = 0;

    if (r->before != ref_before(s, false, first)) return 0;
    while (n < r->n && first + n < s->text.n - 1 && r->token[n] == s->token[first + n] &&
           r->extra[n] == s->extra[first + n])
        n++;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        if (t->c.group[g].kind != KV_CROSS && !ref_on_device(t, g, r->path, r->n)) return 0;
    return n;
}

uint32_t
ref_hit(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t *whole)
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

bool
ref_cross(const struct reuse_ref *t, const struct reuse_slot *s)
{
    uint32_t tokens = t->c.tokens_per_block;
    bool cross = false;

    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        if (t->c.group[g].kind != KV_CROSS) continue;
        cross = true;
        for (uint32_t at = 0; at < s->text.n_source; at += tokens) {
            uint32_t n = MIN(tokens, s->text.n_source - at);

            if (!is_there(t, g, ref_content(s, true, at + n - 1), n)) return false;
        }
    }
    return cross && s->text.n_source > 0;
}

bool
ref_fits(const struct reuse_ref *t, const struct kv_need *need)
{
    uint32_t slab_units = t->c.slab_bytes / UNIT;
    uint64_t slabs = 0;

    for (uint32_t p = 0; p < kv_n_pools(t->kv); p++) {
        uint64_t blocks = 0, hot = 0, per_slab = 0;
        bool has[64] = { false };

        for (uint32_t g = 0; g < t->c.n_groups; g++) {
            bool once = t->c.group[g].kind == KV_FULL || t->c.group[g].kind == KV_CROSS;
            uint64_t reserved_blocks = need->n_blocks[g];

            if (t->c.group[g].pool != p) continue;
            per_slab = slab_units / t->block_units[g];
            has[ref_unit(t, g, kv_scratch(t->kv, g)) / slab_units] = true;
            for (uint32_t s = 0; s < SLOTS; s++) {
                const struct reuse_slot *q = &t->slot[s];

                if (q->live) reserved_blocks += q->need.n_blocks[g];
                for (uint32_t e = 0; q->live && e < ENTRIES; e++) {
                    bool first = true;

                    if (q->at[g][e] == SLICE_NONE) continue;
                    has[ref_unit(t, g, q->at[g][e]) / slab_units] = true;
                    for (uint32_t o = 0; o < s; o++)
                        first = first && !(t->slot[o].live && t->slot[o].at[g][e] == q->at[g][e]);
                    if (once && !first) reserved_blocks--; /* shared: reserved once */
                }
            }
            blocks += 1 + reserved_blocks;
            if (t->c.group[g].max_blocks && reserved_blocks > t->c.group[g].max_blocks)
                return false;
        }
        for (uint32_t i = 0; i < ARRAY_LEN(has); i++) hot += has[i];
        slabs += MAX(hot, CEIL_DIV(blocks, per_slab));
    }
    return slabs <= t->n_slabs;
}

bool
ref_all_started(const struct reuse_ref *t)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        if (t->slot[i].live && !t->slot[i].started) return false;
    return true;
}
