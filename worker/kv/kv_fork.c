/* kv_fork.c - forks sequences and reorders beams: see kv_seq.h. */
#include "worker/kv/kv_seq.h"

#include "worker/kv/kv_evict.h"

enum { MAX_SLOTS = 16 };

struct kv_need
kv_fork_need(const struct kv *kv, uint32_t len, uint32_t n_prompt, uint32_t chunk, bool beam)
{
    struct kv_need n = kv_need(kv, len, 0, chunk);

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        const struct kv_group *k = &kv->c.group[g];

        if (k->kind == KV_FULL) n.n_blocks[g] -= n_prompt / kv->c.tokens_per_block;
        if (k->kind == KV_STATE && beam) n.n_blocks[g] = k->n_layers;
    }
    return n;
}

static void
fork_group(struct kv *kv, unsigned lane, seq_slot from, seq_slot to, uint32_t group, uint32_t n,
           struct kv_out *out)
{
    const struct kv_seq *f = &kv_seqs(kv)[from];
    struct kv_seq *s = &kv_seqs(kv)[to];
    bool cross = kv->c.group[group].kind == KV_CROSS;
    uint32_t at = kv_begin(kv, f, group);
    uint32_t full = cross ? f->end[group] : n / kv->c.tokens_per_block;
    const uint32_t *row = kv_table(kv, group, from);
    uint32_t block;

    check(s->live && s->first[group] == s->end[group] && full <= f->end[group]);
    s->first[group] = f->first[group];
    s->end[group] = MAX(full, f->first[group]);
    for (uint32_t i = at; i < full; i = kv_after(kv, f, group, i)) {
        kv_pool_share(kv, row[i] - 1);
        kv_table(kv, group, to)[i] = row[i];
        if (kv_counts_once(kv, group)) s->reserved[group]++;
        kv_add_edit(out, EDIT_SET, group, to, i, kv_slice(kv, group, row[i] - 1));
    }
    if (cross || n % kv->c.tokens_per_block == 0) return;
    check(full < f->end[group] && kv_n_entries(kv, s, group) < s->reserved[group]);
    block = kv_pool_take_for(kv, to, group, lane, out);
    kv_table(kv, group, to)[s->end[group]++] = block + 1;
    kv_add_copy(kv, group, row[full] - 1, block, out)->n_tokens =
        (uint16_t)(n % kv->c.tokens_per_block);
    kv_add_edit(out, EDIT_SET, group, to, full, kv_slice(kv, group, block));
}

/* Gives slot `to` a copy of the live state of slot `from`; snapshots are not copied. At position 0
 * no slot has a state yet. */
static void
fork_state(struct kv *kv, unsigned lane, seq_slot from, seq_slot to, uint32_t group,
           struct kv_out *out)
{
    check(kv_seqs(kv)[to].live && kv_seqs(kv)[to].end[group] == 0);
    if (kv_seqs(kv)[from].end[group] == 0) return;
    kv_state_grow(kv, lane, to, group, out);
    for (uint32_t i = 0; i < kv->c.group[group].n_layers; i++)
        kv_add_copy(kv, group, kv_table(kv, group, from)[i] - 1, kv_table(kv, group, to)[i] - 1,
                    out);
}

/* Returns true if `to` has reserved enough blocks for the window blocks of the first n positions of
 * `from` that a query at position `done` or later sees. */
static bool
has_reserved(const struct kv *kv, seq_slot from, seq_slot to, uint32_t n, uint32_t done)
{
    const struct kv_seq *f = &kv_seqs(kv)[from], *s = &kv_seqs(kv)[to];
    uint32_t tokens = kv->c.tokens_per_block;

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        const struct kv_group *k = &kv->c.group[g];
        uint32_t first = MAX(f->first[g], kv_kind_first(k, tokens, done));

        if (k->kind == KV_WINDOW &&
            CEIL_DIV(n, tokens) + MIN(first, kv->sinks[g]) > first + s->reserved[g])
            return false;
    }
    return true;
}

void
kv_fork(struct kv *kv, unsigned lane, uint64_t step, seq_slot from, seq_slot to, uint32_t n,
        uint32_t done, struct kv_out *out)
{
    check(from != to && done <= n);
    kv_wait_row(kv, lane, from, out);
    kv_wait_row(kv, lane, to, out);
    kv_trim(kv, from, has_reserved(kv, from, to, n, done) ? done : n, out);
    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        if (kv->c.group[g].kind == KV_STATE) {
            check(n == 0 || kv_seqs(kv)[from].end[g] > 0);
            fork_state(kv, lane, from, to, g, out);
        } else {
            fork_group(kv, lane, from, to, g, n, out);
        }
    }
    kv_fence(kv, to, lane, step);
}

struct reorder { /* the arguments of kv_reorder(), and the group and entry being reordered */
    const seq_slot *slot;
    const uint8_t *parent;
    uint32_t n, group, entry;
    struct kv_out *out;
};

static void
set_entry(struct kv *kv, const struct reorder *t, uint32_t i, uint32_t ref)
{
    kv_table(kv, t->group, t->slot[i])[t->entry] = ref;
    kv_add_edit(t->out, EDIT_SET, t->group, t->slot[i], t->entry, kv_slice(kv, t->group, ref - 1));
}

/* Gives each slot its parent's full block of the entry; holds all new blocks before it releases an
 * old one. Returns false if all slots had the same block; then they share all earlier blocks. */
static bool
share_entry(struct kv *kv, const struct reorder *t)
{
    uint32_t old[MAX_SLOTS];
    bool differ = false;

    for (uint32_t i = 0; i < t->n; i++) {
        old[i] = kv_table(kv, t->group, t->slot[i])[t->entry];
        differ = differ || old[i] != old[0];
    }
    for (uint32_t i = 0; i < t->n; i++)
        if (old[t->parent[i]] != old[i]) kv_pool_share(kv, old[t->parent[i]] - 1);
    for (uint32_t i = 0; i < t->n; i++) {
        const struct kv_seq *s = &kv_seqs(kv)[t->slot[i]];

        if (old[t->parent[i]] == old[i]) continue;
        if (kv_pool_give(kv, old[i] - 1, s->lane, s->step) && kv_counts_once(kv, t->group))
            kv_charge(kv, t->group, -1);
        set_entry(kv, t, i, old[t->parent[i]]);
    }
    return differ;
}

/* Gives each slot the contents of its parent's last block, which is still written. One child per
 * parent keeps the block: the parent if it is its own child, else the first child. The others get a
 * copy: in their own block if no slot keeps it, else in another block that no slot keeps. */
static void
copy_entry(struct kv *kv, const struct reorder *t, uint32_t n_tokens)
{
    /* keeper[p]: index + 1 of the child that keeps the block of slot p; 0: none */
    uint32_t old[MAX_SLOTS], keeper[MAX_SLOTS] = { 0 };
    bool used[MAX_SLOTS];
    uint32_t next_idle = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        old[i] = kv_table(kv, t->group, t->slot[i])[t->entry];
        if (!keeper[t->parent[i]] || t->parent[i] == i) keeper[t->parent[i]] = i + 1;
    }
    for (uint32_t i = 0; i < t->n; i++) /* a slot keeps block i, or slot i's copy goes there */
        used[i] = keeper[i] || keeper[t->parent[i]] != i + 1;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t from = old[t->parent[i]], to = from;

        if (keeper[t->parent[i]] != i + 1) {
            if (keeper[i]) {
                while (used[next_idle]) next_idle++;
                to = old[next_idle++];
            } else {
                to = old[i];
            }
            kv_add_copy(kv, t->group, from - 1, to - 1, t->out)->n_tokens = (uint16_t)n_tokens;
        }
        if (to != old[i]) set_entry(kv, t, i, to);
    }
}

/* Reorders the partly filled entry, then earlier entries until all slots share an entry's block. */
static void
reorder_group(struct kv *kv, struct reorder *t, uint32_t n)
{
    const struct kv_seq *s = &kv_seqs(kv)[t->slot[0]];
    uint32_t tokens = kv->c.tokens_per_block, begin = kv_begin(kv, s, t->group);

    for (uint32_t i = 1; i < t->n; i++) {
        const struct kv_seq *other = &kv_seqs(kv)[t->slot[i]];

        check(other->first[t->group] == s->first[t->group]);
        check(other->end[t->group] >=
              CEIL_DIV(n, tokens)); /* an adopted slot may have one entry more */
    }
    t->entry = n / tokens;
    if (n % tokens) copy_entry(kv, t, n % tokens);
    while (t->entry > begin) {
        t->entry = kv_before(kv, s, t->group, t->entry);
        if (!share_entry(kv, t)) break;
    }
}

void
kv_reorder(struct kv *kv, unsigned lane, uint64_t step, const seq_slot *slot, const uint8_t *parent,
           uint32_t n_slots, uint32_t n, struct kv_out *out)
{
    struct reorder t = { .slot = slot, .parent = parent, .n = n_slots, .out = out };

    check(n_slots > 0 && n_slots <= MAX_SLOTS);
    for (uint32_t i = 0; i < n_slots; i++) {
        check(parent[i] < n_slots);
        kv_wait_row(kv, lane, slot[i], out);
    }
    for (t.group = 0; t.group < kv->c.n_groups; t.group++) {
        if (kv_is_positions(kv, t.group)) reorder_group(kv, &t, n);
        for (t.entry = 0; kv->c.group[t.group].kind == KV_STATE; t.entry++) {
            if (t.entry == kv->c.group[t.group].n_layers) break;
            copy_entry(kv, &t, 0);
        }
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        struct kv_seq *s = &kv_seqs(kv)[slot[i]];

        kv_fence(kv, slot[i], lane, step);
        if (parent[i] == i) continue;
        /* The slot has other tokens now: kv_store() begins at the root and stores no snapshot that
         * was taken before. */
        s->n_stored = 0;
        kv_tree_pin(kv, 0, &s->cursor);
        memset(s->snapshot, 0, sizeof s->snapshot);
    }
}
