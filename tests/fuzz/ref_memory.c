/* ref_memory.c - what the positions of the arena hold, which steps use them: see ref_reuse.h. */
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

bool
ref_begin(struct reuse_ref *t, struct in *in)
{
    bool skip_rare_features = byte(in) % 2 == 0;
    uint32_t kinds = byte(in), order, limit;
    struct kv_count host;
    uint64_t host_block = 0;
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
    t->max_blocks = limit;
    t->c.arena_bytes = (uint64_t)t->n_slabs * kv_slab_bytes(&t->c);
    t->n_units = (uint32_t)(t->c.arena_bytes / UNIT);
    if (t->n_units > UNITS) return false;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        host_block = MAX(host_block, kv_block_bytes(&t->c.group[g]));
    if (byte(in) % 2) t->c.host_bytes = (byte(in) % HOST_BLOCKS) * host_block;
    t->mem = calloc(1, kv_bytes(&t->c));
    t->kv = kv_init(t->mem, &t->c, &e);
    if (!t->kv) return false;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->block_units[g] = (uint32_t)(kv_block_bytes(&t->c.group[g]) / UNIT);
    kv_count_host(t->kv, &host);
    t->n_host_blocks = host.blocks;
    t->host_block_units = (uint32_t)(host.block_bytes / UNIT);
    return true;
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

uint32_t
ref_host_block(const struct reuse_ref *t, uint32_t group, slice_id at)
{
    uint64_t unit = (uint64_t)at * t->c.group[group].slice_bytes / UNIT;

    check(!t->away && unit % t->host_block_units == 0);
    check(unit / t->host_block_units < t->n_host_blocks);
    return (uint32_t)(unit / t->host_block_units);
}

void
ref_touch_host(struct reuse_ref *t, uint32_t host_block, unsigned lane, uint64_t step)
{
    for (unsigned l = 0; l < t->c.n_lanes; l++)
        check(l == lane || t->host_steps[host_block][l] <= t->clock[lane][step % STEPS][l]);
    t->host_steps[host_block][lane] = step;
}

/* Runs its body for each block `place` that a row holds in group `g`. */
#define FOR_HELD(t, g, place) \
    for (const struct reuse_slot *row = (t)->slot; row < (t)->slot + ROWS; row++) \
        for (uint32_t g = 0; row->live && g < (t)->c.n_groups; g++) \
            for (uint32_t i = 0, place; i <= ENTRIES; i++) \
                if ((place = i < ENTRIES ? row->at[g][i] : row->tail[g]) != SLICE_NONE)

void
ref_overwrite(struct reuse_ref *t, uint32_t group, slice_id at, unsigned lane, uint64_t step)
{
    uint32_t first = ref_unit(t, group, at), end = first + t->block_units[group];

    FOR_HELD(t, g, other)
    check(ref_unit(t, g, other) >= end || ref_unit(t, g, other) + t->block_units[g] <= first);
    for (uint32_t u = first; u < end; u++)
        for (unsigned l = 0; l < t->c.n_lanes; l++)
            check(l == lane || t->used[u][l] <= t->clock[lane][step % STEPS][l]);
}

bool
ref_held(const struct reuse_ref *t, uint32_t group, slice_id at)
{
    for (const struct reuse_slot *s = t->slot; s < t->slot + ROWS; s++) {
        if (s->live && s->tail[group] == at) return true;
        for (uint32_t e = 0; s->live && e < ENTRIES; e++)
            if (s->at[group][e] == at) return true;
    }
    return false;
}

uint32_t
ref_n_blocks(const struct reuse_ref *t, uint32_t group)
{
    bool seen[UNITS] = { false };
    uint32_t n = 0;

    FOR_HELD(t, g, at)
    {
        if (g != group || seen[ref_unit(t, g, at)]) continue;
        seen[ref_unit(t, g, at)] = true;
        n++;
    }
    for (uint32_t i = 0; i < t->n_blocks; i++) {
        const struct reuse_block *b = &t->block[i];

        if (b->group != group || b->at == SLICE_NONE || seen[ref_unit(t, group, b->at)]) continue;
        n += ref_n_parts(t, group);
    }
    return n;
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
            for (uint32_t s = 0; s < ROWS; s++) {
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
