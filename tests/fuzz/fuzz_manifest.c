/* fuzz_manifest.c - adoption of a corrupted manifest, against a reference reader of manifest.h.
 *
 * The first bytes choose groups, blocks and arena; the rest are calls of a few bytes each: steps,
 * drops and crashes. Before a crash some words of the manifest are changed. The reference knows
 * units of 128 bytes and derives from the words which entries are valid. Adopted slots continue, so
 * manifest and tables must agree afterwards. Every entry of an unchanged manifest must be adopted.
 *
 * In every other arena reuse is on, and tree nodes are written and changed too. There the reference
 * checks less: the hits of an unchanged manifest are the same as before the crash, and kv_check()
 * passes after any change.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/kv/kv_reuse.h"
#include "worker/manifest/manifest.h"

enum { SLOTS = 5, ENTRIES = 24, UNIT = 128, MAX_UNITS = 1 << 13, EDITS = 2048, ROWS = 8 };

struct manifest_ref_slot {
    bool live, done;
    uint32_t pos, len, source;
};
struct manifest_ref {
    struct kv_config c;
    void *mem, *memory; /* of kv, of the manifest */
    struct kv *kv;
    struct manifest m;
    struct manifest_found found[SLOTS];
    struct manifest_ref_slot slot[SLOTS];
    uint64_t step;
    uint32_t slab_units, block_units[MAX_GROUPS];
    token_id token[SLOTS][ENTRIES * 5], source[ENTRIES * 5];
    bool capped, shared;            /* shared: changed words may make entries share blocks */
    uint8_t taken[MAX_UNITS];       /* by a valid entry, or by scratch */
    uint32_t slab_block[MAX_UNITS]; /* units per block of the slab's pool; 0: free */
    struct kv_edit edit[EDITS];
};
static const uint64_t fingerprint[2] = { 7, 8 }, kv_id[2] = { 9, 10 };

static uint32_t
read_word(struct in *in)
{
    uint32_t low = byte(in);

    switch (byte(in) % 4) {
    case 0:
        return low;
    case 1:
        return low << 8 | byte(in);
    case 2:
        return SLICE_NONE - low % 3;
    default:
        return low << 24 | byte(in) << 16 | byte(in);
    }
}

static bool
open_kv(struct manifest_ref *t)
{
    struct err e;

    t->mem = calloc(1, kv_bytes(&t->c));
    t->kv = kv_init(t->mem, &t->c, &e);
    t->step = 0;
    return t->kv != NULL;
}

static bool
open_geometry(struct manifest_ref *t, struct in *in)
{
    uint32_t how;

    t->c = (struct kv_config){ .n_groups = 1 + byte(in) % 4,
                               .n_slots = SLOTS,
                               .n_lanes = 1,
                               .tokens_per_block = 1 + byte(in) % 5 };
    how = byte(in);
    t->c.reuse = how % 2;
    for (uint32_t i = 0; i < SLOTS; i++) /* equal prefixes */
        for (uint32_t k = 0; k < ENTRIES * 5; k++)
            t->token[i][k] = (token_id)(k % 3 + (k > 8 * i ? i : 0));
    /* A window of 1 needs no block at a block boundary: a hit there is a node without blocks, which
     * is freed with the slot whose cursor pins it. */
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->c.group[g] = (struct kv_group){ .kind = (enum kv_kind)(byte(in) % 3),
                                           .window = 1 + t->c.reuse + byte(in) % 12,
                                           .n_layers = 1 + byte(in) % 3,
                                           .n_parts = 1 + byte(in) % 2,
                                           .slice_bytes = UNIT * (1 + byte(in) % 3),
                                           .max_entries = ENTRIES,
                                           .max_blocks = byte(in) % 2 ? 0 : 20 + byte(in) % 20 };
    for (uint32_t g = 0; g < t->c.n_groups; g++) t->capped |= t->c.group[g].max_blocks > 0;
    t->c.slab_bytes = kv_slab_bytes(&t->c);
    if (t->c.reuse) t->c.host_bytes = (how / 2 % 16) * (uint64_t)t->c.slab_bytes;
    t->c.arena_bytes = (uint64_t)(4 + byte(in) % 24) * t->c.slab_bytes;
    check(t->c.arena_bytes / UNIT <= MAX_UNITS);
    if (!open_kv(t)) return false;
    t->slab_units = t->c.slab_bytes / UNIT;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        t->block_units[g] = (uint32_t)(kv_block_bytes(&t->c.group[g]) / UNIT);
    t->memory = calloc(1, manifest_bytes(&t->c));
    manifest_make(&t->m, t->memory, &t->c, fingerprint, kv_id);
    return true;
}

static struct kv_text
text_of(struct manifest_ref *t, uint32_t i, uint32_t n, struct kv_namespace *space)
{
    struct kv_text text = { .token = t->token[i],
                            .n = n,
                            .source = t->source,
                            .n_source = MIN(t->slot[i].source, (uint32_t)ENTRIES * 5),
                            .namespace = space };

    kv_namespace(t->kv, 0, 0, t->source, text.n_source, space);
    return text;
}

/* Runs the next step of a slot after the one before is finished; reserves first if needed. */
static void
run_step(struct manifest_ref *t, struct in *in)
{
    uint32_t i = byte(in) % SLOTS, rows = 1 + byte(in) % ROWS;
    struct manifest_ref_slot *s = &t->slot[i];
    struct kv_out out = { .edit = t->edit, .max_edits = EDITS };
    struct manifest_owner o = { .slot = i, .id = 100 + i, .n_tokens = 3, .n_cross = 0 };
    bool first = !s->live;

    if (first) {
        uint32_t most = ENTRIES * t->c.tokens_per_block;
        struct kv_need need;

        *s = (struct manifest_ref_slot){ .len = 1 + byte(in) % most,
                                         .source = byte(in) % (most + 1) };
        need = kv_need(t->kv, s->len, s->source, 2 * ROWS);
        if (kv_fits_alone(t->kv, &need, s->len, s->source, NULL) < 0) return;
        if (kv_reserve(t->kv, i, &need) < 0) return;
        s->live = true;
        o.n_cross = s->source;
    }
    if (s->pos == s->len) return;
    rows = MIN(rows, s->len - s->pos);
    kv_ends(t->kv, 0, &out);
    if (first) kv_cross(t->kv, 0, i, s->source, &out);
    if (!first && !s->done) {
        kv_done(t->kv, 0, t->step);
        manifest_commit(&t->m, i, s->pos);
    }
    kv_trim(t->kv, i, s->pos, &out);
    kv_grow(t->kv, 0, i, s->pos + rows, &out);
    kv_fence(t->kv, i, 0, ++t->step);
    kv_ends_sent(t->kv, 0, t->step);
    manifest_put_nodes(&t->m, t->kv);
    manifest_launch(&t->m, t->edit, out.n_edits, &o, first);
    s->pos += rows;
    s->done = byte(in) % 4; /* else it is in flight at the crash */
    if (!s->done) return;
    kv_done(t->kv, 0, t->step);
    manifest_commit(&t->m, i, s->pos);
    if (t->c.reuse) {
        struct kv_namespace space;
        struct kv_text text = text_of(t, i, s->pos, &space);

        kv_store(t->kv, i, &text, s->pos);
    }
}

static uint32_t *
row_word(const struct manifest_ref *t, uint32_t slot, uint32_t at)
{
    return (uint32_t *)t->memory + (t->m.h.row_at + (size_t)slot * t->m.h.row_bytes) / 4 + at;
}

static uint32_t *
entry_table(const struct manifest_ref *t, uint32_t slot, uint32_t group)
{
    return row_word(t, slot, t->m.h.group[group].table_at / 4);
}

/* Words of an entry by their offsets in manifest.h. */
static uint32_t
seq_of(const struct manifest_ref *t, uint32_t slot)
{
    return *row_word(t, slot, 0);
}

static uint32_t
committed_of(const struct manifest_ref *t, uint32_t slot)
{
    return *row_word(t, slot, 1);
}

/* Returns the words of the first live node from `from` on; NULL: none. */
static uint32_t *
live_node(const struct manifest_ref *t, uint32_t from)
{
    uint32_t *base = (uint32_t *)t->memory + t->m.h.node_at / 4, words = t->m.h.node_bytes / 4;

    for (uint32_t i = 0; i < t->m.h.n_nodes; i++) {
        uint32_t node = (from + i) % t->m.h.n_nodes;

        if (node && base[node * words + 3]) return &base[node * words];
    }
    return NULL;
}

/* Changes a word of a node: mostly a block, to the one of another node or entry, or a neighbour. */
static bool
poke_node(struct manifest_ref *t, struct in *in)
{
    uint32_t *node = live_node(t, byte(in) % 40), *other = live_node(t, byte(in) % 40),
             v = read_word(in), at;
    uint32_t how = byte(in), slot = byte(in) % SLOTS, g = byte(in) % t->c.n_groups;
    struct kv_count host;
    bool host_word;

    if (!node) return false;
    kv_count_host(t->kv, &host);
    host_word = how % 4 && host.blocks && v % 4 == 0;
    at = how % 4 ? 12 + 2 * (how / 4 % t->c.n_groups) + host_word : v % (t->m.h.node_bytes / 4);
    switch (how / 16 % 4) {
    case 0:
        v = (how / 64 == 3 ? node : other)[how % 4 ? 12 + 2 * g + host_word : at];
        break;
    case 1:
        v = entry_table(t, slot, g)[byte(in) % ENTRIES] + 1;
        break;
    case 2:
        v = node[at] + 1 + v % 40;
        break;
    default:
        if (host_word)
            v = 1 +
                v / 4 % (host.blocks + 2) *
                    (uint32_t)(host.block_bytes / t->c.group[how / 4 % t->c.n_groups].slice_bytes);
        break;
    }
    if (node[at] == v) return false;
    node[at] = v;
    return true;
}

static bool
poke_entry(struct manifest_ref *t, struct in *in)
{
    uint32_t slot = byte(in) % SLOTS, other = byte(in) % SLOTS, g = byte(in) % t->c.n_groups;
    uint32_t i = byte(in) % ENTRIES, v = read_word(in), *at;

    if (i % 4) i = (*row_word(t, slot, (56 + 4 * g) / 4) + i % 3) % ENTRIES; /* near first */
    switch (byte(in) % 8) {
    case 0:
        at = entry_table(t, slot, g) + i;
        break;
    case 1: /* a block of another entry */
        at = entry_table(t, slot, g) + i;
        v = entry_table(t, other, byte(in) % t->c.n_groups)[byte(in) % ENTRIES];
        break;
    case 2:
        at = entry_table(t, slot, g) + i;
        v = *at + 1 - v % 3;
        break;
    case 3:
        at = row_word(t, slot, (56 + 4 * g) / 4); /* first */
        v = v % 4 ? *at + 1 : v;
        break;
    case 4:
        at = row_word(t, slot, (88 + 4 * g) / 4); /* end */
        v = v % 4 ? *at - 1 : v;
        break;
    case 5:
        at = row_word(t, slot, 1);
        v = v % 4 ? *at + v % 16 - 8 : v;
        break;
    case 6:
        at = row_word(t, slot, v % 2 ? 0 : 4); /* seq, n_cross */
        v = *at + 1;
        break;
    default:
        at = row_word(t, slot, byte(in) % (t->m.h.row_bytes / 4));
        break;
    }
    if (*at == v) return false;
    *at = v;
    return true;
}

/* Takes the units of a block if all are free and a block of the group may begin there. */
static bool
take_units(struct manifest_ref *t, uint32_t group, uint32_t at)
{
    uint64_t unit = (uint64_t)at * t->c.group[group].slice_bytes / UNIT, n = t->block_units[group];
    uint64_t slab = unit / t->slab_units;

    if (at == SLICE_NONE || unit + n > t->c.arena_bytes / UNIT) return false;
    if (unit % t->slab_units % n || unit % t->slab_units + n > t->slab_units) return false;
    if (t->slab_block[slab] && t->slab_block[slab] != n) return false;
    for (uint64_t i = 0; i < n; i++)
        if (t->taken[unit + i]) return false;
    memset(t->taken + unit, 1, n);
    t->slab_block[slab] = (uint32_t)n;
    return true;
}

/* Returns true if the entry is valid, given the entries before it. */
static bool
is_valid(struct manifest_ref *t, uint32_t slot, uint32_t used[MAX_GROUPS])
{
    uint32_t committed = committed_of(t, slot), source = *row_word(t, slot, 4);

    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        const struct kv_group *k = &t->c.group[g];
        uint32_t first = *row_word(t, slot, (56 + 4 * g) / 4), tokens = t->c.tokens_per_block;
        uint32_t end = *row_word(t, slot, (88 + 4 * g) / 4);
        uint64_t need = k->kind == KV_CROSS ? source : committed;

        if (first > end || end > ENTRIES || (uint64_t)end * tokens < need) return false;
        if (k->kind == KV_CROSS && end > 0 && (uint64_t)(end - 1) * tokens >= need) return false;
        if (first > 0 && k->kind != KV_WINDOW) return false;
        /* the next query sees no dropped position */
        if (first > 0 && (uint64_t)first * tokens + k->window > (uint64_t)committed + 1)
            return false;
        used[g] += end - first;
        if (k->max_blocks && used[g] > k->max_blocks) return false;
        for (uint32_t i = first; i < end; i++)
            if (!take_units(t, g, entry_table(t, slot, g)[i])) return false;
    }
    return true;
}

static void
read_valid(struct manifest_ref *t, bool want[SLOTS])
{
    uint32_t used[MAX_GROUPS] = { 0 };

    memset(t->taken, 0, sizeof t->taken);
    memset(t->slab_block, 0, sizeof t->slab_block);
    for (uint32_t g = 0; g < t->c.n_groups; g++) check(take_units(t, g, kv_scratch(t->kv, g)));
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct manifest_ref *before = malloc(sizeof *before);
        uint32_t used_before[MAX_GROUPS];

        memcpy(before, t, sizeof *before);
        memcpy(used_before, used, sizeof used);
        want[slot] = seq_of(t, slot) % 2 == 0 && committed_of(t, slot) > 0 &&
                     (*row_word(t, slot, 2) || *row_word(t, slot, 3)) && is_valid(t, slot, used);
        if (!want[slot]) {
            memcpy(t->taken, before->taken, sizeof t->taken);
            memcpy(t->slab_block, before->slab_block, sizeof t->slab_block);
            memcpy(used, used_before, sizeof used);
        }
        free(before);
    }
}

/* Returns true if 2 entries have one request id (beams, samples): they may share full blocks. */
static bool
has_shared_request(const struct manifest_ref *t)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        for (uint32_t k = 0; k < i; k++)
            if (*row_word(t, i, 2) == *row_word(t, k, 2) && *row_word(t, i, 2) &&
                *row_word(t, i, 3) == *row_word(t, k, 3))
                return true;
    return false;
}

/* The request is resubmitted, or not. */
static void
resubmit(struct manifest_ref *t, struct in *in, uint32_t i)
{
    struct manifest_ref_slot *s = &t->slot[i];
    struct kv_out out = { .edit = t->edit, .max_edits = EDITS };
    struct kv_need need;
    int r;

    *s = (struct manifest_ref_slot){ .pos = committed_of(t, i), .source = *row_word(t, i, 4) };
    s->len = s->pos + byte(in) % 30;
    need = kv_need(t->kv, s->len, s->source, 2 * ROWS);
    if (byte(in) % 8 && kv_fits_alone(t->kv, &need, s->len, s->source, NULL) == 0) {
        r = kv_resume(t->kv, i, s->pos, &need);
        check(r == 0 || r == -EAGAIN || (r == -ENODATA && (t->c.reuse || t->shared)));
        s->live = r == 0;
        s->done = true;
    }
    if (!s->live) {
        kv_drop(t->kv, i);
        return;
    }
    kv_start(t->kv, 0, 1, i, &out);
    check(out.n_edits == kv_n_held(t->kv, i));
    manifest_launch(&t->m, t->edit, out.n_edits, NULL, 0);
}

/* Returns the cached full blocks of a slot's tokens. */
static uint32_t
n_found(struct manifest_ref *t, uint32_t i)
{
    struct kv_namespace space;
    struct kv_text text = text_of(t, i, ENTRIES * t->c.tokens_per_block, &space);
    struct kv_hit hit;

    kv_lookup(t->kv, &text, &hit);
    return hit.n_full;
}

static void
crash(struct manifest_ref *t, struct in *in)
{
    uint32_t before[SLOTS] = { 0 };
    uint32_t pokes = byte(in) % 5, changed = 0, n = 0;
    struct manifest_adopted a;
    slice_id *tables = malloc(t->m.h.row_bytes);
    bool want[SLOTS], may[SLOTS];
    struct err e;

    if (t->c.reuse) manifest_put_nodes(&t->m, t->kv);
    for (uint32_t i = 0; i < SLOTS && t->c.reuse; i++) before[i] = n_found(t, i);
    for (uint32_t i = 0; i < pokes; i++)
        changed += t->c.reuse && byte(in) % 2 ? poke_node(t, in) : poke_entry(t, in);
    if (pokes == 4) { /* max_blocks is not in the head */
        changed++;
        t->c.group[byte(in) % t->c.n_groups].max_blocks = 1 + byte(in) % 30;
    }
    free(t->mem);
    check(open_kv(t));
    if (byte(in) % 16 == 0) { /* any changed byte of the head must be detected */
        uint8_t *at = (uint8_t *)t->memory + byte(in) * 2 + byte(in) % 2;

        *at ^= 1;
        check(manifest_open(&t->m, t->memory, t->m.h.bytes, &t->c, fingerprint, kv_id, &e) ==
              -EBADMSG);
        *at ^= 1;
    }
    check(manifest_open(&t->m, t->memory, t->m.h.bytes, &t->c, fingerprint, kv_id, &e) == 0);
    read_valid(t, want);
    for (uint32_t i = 0; i < SLOTS; i++)
        may[i] = seq_of(t, i) % 2 == 0 && committed_of(t, i) > 0 &&
                 (*row_word(t, i, 2) || *row_word(t, i, 3));
    t->shared |= (t->c.reuse && changed) || has_shared_request(t);
    a = manifest_adopt(&t->m, t->kv, true, t->found, tables);
    kv_check(t->kv);
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (t->shared) want[i] = kv_live(t->kv, i);
        check(t->shared || t->capped || n_found(t, i) == before[i]);
    }
    check(t->shared || a.no_nodes == 0);
    for (uint32_t i = 0; i < SLOTS; i++) {
        check(kv_live(t->kv, i) == want[i] && (t->found[i].owner.id != 0) == want[i]);
        check(changed || t->shared || want[i] == may[i]); /* unchanged: all are adopted */
        n += want[i];
        t->slot[i].live = false;
        if (!want[i]) { /* cleared before its blocks are reused */
            check(*row_word(t, i, 2) == 0 && *row_word(t, i, 3) == 0 && seq_of(t, i) % 2 == 0);
            continue;
        }
        for (uint32_t g = 0; g < t->c.n_groups; g++) {
            uint32_t first, held = kv_held(t->kv, i, g, &first);

            check(first == *row_word(t, i, (56 + 4 * g) / 4) || held == 0);
            for (uint32_t k = first; k < first + held; k++)
                check(kv_entry(t->kv, i, g, k) == entry_table(t, i, g)[k]);
        }
    }
    check(a.rows == n);
    for (uint32_t i = 0; i < SLOTS; i++)
        if (want[i]) resubmit(t, in, i);
    kv_check(t->kv);
    free(tables);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct manifest_ref ref;
    struct manifest_ref *t = &ref;
    struct in in = { data, data + size };

    memset(t, 0, sizeof *t);
    if (open_geometry(t, &in)) {
        while (in.p < in.end) {
            uint32_t op = byte(&in) % 8;

            if (op < 6) run_step(t, &in);
            if (op == 6) crash(t, &in);
            if (op == 7) {
                uint32_t i = byte(&in) % SLOTS;
                struct kv_namespace space;
                struct kv_text text = text_of(t, i, t->slot[i].pos, &space);

                if (t->c.reuse && t->slot[i].live && t->slot[i].done && t->slot[i].pos > 0)
                    kv_release(t->kv, i, &text, t->slot[i].pos);
                kv_drop(t->kv, i);
                t->slot[i].live = false;
            }
            kv_check(t->kv);
        }
    }
    free(t->mem);
    free(t->memory);
    return 0;
}
