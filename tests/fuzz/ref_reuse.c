/* ref_reuse.c - the rules of prefix caching on a list of blocks: see ref_reuse.h. */
#include "tests/fuzz/ref_reuse.h"

static bool
is_cross(const struct reuse_ref *t, uint32_t group)
{
    return t->c.group[group].kind == KV_CROSS;
}

static bool
is_state(const struct reuse_ref *t, uint32_t group)
{
    return t->c.group[group].kind == KV_STATE;
}

/* Rule 1, for the first n tokens; of an encoder input all tokens count. */
static bool
same_tokens(const struct reuse_ref *t, const struct reuse_block *b, const struct reuse_slot *s,
            uint32_t n)
{
    if (b->salt != s->salt || b->n_source != s->text.n_source) return false;
    if (memcmp(b->source, s->source, b->n_source * sizeof *b->source)) return false;
    return is_cross(t, b->group) || (!memcmp(b->token, s->token, n * sizeof *b->token) &&
                                     !memcmp(b->extra, s->extra, n * sizeof *b->extra));
}

/* Returns true if b is full and a has its tokens and later ones; of one encoder input: always. */
static bool
continues(const struct reuse_ref *t, const struct reuse_block *a, const struct reuse_block *b)
{
    if (is_cross(t, a->group) != is_cross(t, b->group)) return false;
    if (a->salt != b->salt || a->n_source != b->n_source) return false;
    if (memcmp(a->source, b->source, a->n_source * sizeof *a->source)) return false;
    if (is_cross(t, a->group)) return a != b;
    return b->n == t->c.tokens_per_block && a->end > b->end &&
           !memcmp(a->token, b->token, b->end * sizeof *a->token) &&
           !memcmp(a->extra, b->extra, b->end * sizeof *a->extra);
}

/* Returns the group's cached block of the n tokens of s before `end`. */
static const struct reuse_block *
find(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t group, uint32_t end,
     uint32_t n)
{
    for (const struct reuse_block *b = t->block; b < t->block + t->n_blocks; b++)
        if (b->group == group && b->end == end && b->n == n && same_tokens(t, b, s, end)) return b;
    return NULL;
}

static bool
is_found(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t group, uint32_t end,
         uint32_t n)
{
    const struct reuse_block *b = find(t, s, group, end, n);

    return b && (b->at != SLICE_NONE || !t->away);
}

uint32_t
ref_n_parts(const struct reuse_ref *t, uint32_t group)
{
    return is_state(t, group) ? t->c.group[group].n_layers : 1;
}

struct reuse_block *
ref_at(struct reuse_ref *t, uint32_t group, slice_id at)
{
    for (struct reuse_block *b = t->block; b < t->block + t->n_blocks; b++)
        if (b->group == group && b->at == at && at != SLICE_NONE) return b;
    return NULL;
}

struct reuse_block *
ref_at_host(struct reuse_ref *t, uint32_t host_block)
{
    for (struct reuse_block *b = t->block; b < t->block + t->n_blocks; b++)
        for (uint32_t i = 0; i < b->n_host; i++)
            if (b->host_block[i] == host_block) return b;
    return NULL;
}

/* Returns true if a query at pos sees entry i of the group: rule 3. */
static bool
is_seen(const struct reuse_ref *t, uint32_t group, uint32_t i, uint32_t pos)
{
    const struct kv_group *k = &t->c.group[group];
    uint32_t tokens = t->c.tokens_per_block;

    if (k->kind == KV_STATE) return (i + 1) * tokens == pos;
    return k->kind == KV_FULL || i * tokens < k->sinks || (i + 1) * tokens + k->window > pos + 1;
}

/* Returns true if the first n full blocks of s are a hit: rule 3. */
static bool
is_hit(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t n)
{
    uint32_t tokens = t->c.tokens_per_block;

    for (uint32_t g = 0; g < t->c.n_groups; g++)
        for (uint32_t i = 0; i < n && !is_cross(t, g); i++)
            if (is_seen(t, g, i, n * tokens) && !is_found(t, s, g, (i + 1) * tokens, tokens))
                return false;
    return true;
}

/* Returns how many tokens of b continue the first n tokens of s: rule 4. */
static uint32_t
n_common(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t n,
         const struct reuse_block *b)
{
    uint32_t k = 0;

    if (is_cross(t, b->group) || b->end - b->n != n || !same_tokens(t, b, s, n)) return 0;
    while (k < b->n && n + k < s->text.n - 1 && b->token[n + k] == s->token[n + k] &&
           b->extra[n + k] == s->extra[n + k])
        k++;
    return k;
}

/* Returns true if every group has a block of the tokens of b that a row may copy or take over. */
static bool
is_usable(const struct reuse_ref *t, const struct reuse_block *b)
{
    uint32_t n = 0, have = 0;

    for (uint32_t g = 0; g < t->c.n_groups; g++) n += !is_cross(t, g);
    for (const struct reuse_block *o = t->block; o < t->block + t->n_blocks; o++) {
        bool equal = o->end == b->end && o->n == b->n && !is_cross(t, o->group) &&
                     o->salt == b->salt && o->n_source == b->n_source &&
                     !memcmp(o->source, b->source, b->n_source * sizeof *b->source) &&
                     !memcmp(o->token, b->token, b->end * sizeof *b->token) &&
                     !memcmp(o->extra, b->extra, b->end * sizeof *b->extra);

        have += equal && o->at != SLICE_NONE &&
                (t->c.copy_partial || !ref_held(t, o->group, o->at));
        if (!t->c.copy_partial && continues(t, o, b)) return false;
    }
    return have == n;
}

uint32_t
ref_hit(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t *whole)
{
    uint32_t tokens = t->c.tokens_per_block, part = 0;
    bool decoder = false;

    for (uint32_t g = 0; g < t->c.n_groups; g++) decoder |= !is_cross(t, g);
    *whole = 0;
    for (uint32_t n = 1; decoder && n * tokens < s->text.n; n++)
        if (is_hit(t, s, n)) *whole = n * tokens;
    for (const struct reuse_block *b = t->block; b < t->block + t->n_blocks && !t->has_state; b++) {
        uint32_t k = n_common(t, s, *whole, b);

        if (k > part && is_usable(t, b)) part = k;
    }
    return *whole + part;
}

bool
ref_cross(const struct reuse_ref *t, const struct reuse_slot *s)
{
    uint32_t tokens = t->c.tokens_per_block, n_source = s->text.n_source;
    bool cross = false;

    for (uint32_t g = 0; g < t->c.n_groups; g++)
        for (uint32_t at = 0; at < n_source && is_cross(t, g); at += tokens) {
            uint32_t n = MIN(tokens, n_source - at);

            if (!is_found(t, s, g, at + n, n)) return false;
            cross = true;
        }
    return cross;
}

/* Rule 7. A part of an encoder input is not found either if any of its blocks is missing. */
static void
make_orphans(struct reuse_ref *t, const struct reuse_block *gone)
{
    enum kv_kind kind = t->c.group[gone->group].kind;

    for (struct reuse_block *b = t->block; b < t->block + t->n_blocks; b++) {
        if ((kind != KV_FULL && kind != KV_CROSS) || t->c.fifo || !continues(t, b, gone)) continue;
        b->orphan |= b->at != SLICE_NONE && !ref_held(t, b->group, b->at);
        b->host_orphan |= b->n_host > 0;
    }
}

bool
ref_forget(struct reuse_ref *t, uint32_t i, bool host)
{
    struct reuse_block gone = t->block[i];

    if (host) {
        t->block[i].n_host = t->block[i].host_orphan = 0;
        t->block[i].lost = t->n_operations;
    } else {
        t->block[i].at = SLICE_NONE;
    }
    if (t->block[i].at != SLICE_NONE || t->block[i].n_host) return false;
    t->block[i] = t->block[--t->n_blocks];
    make_orphans(t, &gone);
    return true;
}

static uint8_t *
priority_of(struct reuse_ref *t, const struct reuse_block *b)
{
    return &t->priority[ref_unit(t, b->group, b->at)];
}

static uint64_t
host_bits(const struct reuse_block *b)
{
    uint64_t bits = 0;

    for (uint32_t i = 0; i < b->n_host; i++) bits |= UINT64_C(1) << b->host_block[i];
    return bits;
}

/* Rule 6. Of groups that share the arena without limits, slabs decide which group evicts. */
static void
check_victim(struct reuse_ref *t, const struct reuse_block *v)
{
    uint32_t capacity = t->max_blocks ? t->max_blocks : t->n_slabs - 1;

    if (t->c.fifo || (!t->max_blocks && t->c.n_groups > 1)) return;
    check(ref_n_blocks(t, v->group) >= capacity);
    for (const struct reuse_block *b = t->block; b < t->block + t->n_blocks; b++) {
        int its, mine;

        if (b->group != v->group || b->at == SLICE_NONE || ref_held(t, b->group, b->at)) continue;
        if (t->starting && t->starting->host_held & host_bits(b)) continue; /* held meanwhile */
        its = b->orphan ? -1 : *priority_of(t, b);
        mine = v->orphan ? -1 : *priority_of(t, v);
        check(its > mine || (its == mine && (its < 0 || b->released >= v->released)));
    }
}

static bool
is_offloaded(const struct reuse_ref *t, const struct reuse_block *b)
{
    return is_cross(t, b->group) || b->n == t->c.tokens_per_block;
}

bool
ref_host_held(const struct reuse_ref *t, const struct reuse_block *b)
{
    for (const struct reuse_slot *s = t->slot; s < t->slot + ROWS; s++)
        if (s->host_held & host_bits(b)) return true;
    return false;
}

/* Returns which of the parts of b is at the place; ref_n_parts(): none. */
static uint32_t
part_at(const struct reuse_ref *t, const struct reuse_block *b, uint32_t group, slice_id at)
{
    uint32_t i = 0, n = ref_n_parts(t, b->group);

    if (b->group != group || b->at == SLICE_NONE) return n;
    while (i < n && at != (is_state(t, group) ? b->layer[i] : b->at)) i++;
    return i;
}

/* A step copies a part of a cached block to a host block, whose contents are evicted: rules 6 and
 * 9. The slot that starts gives a host block back without a copy if the arena has the block again.
 */
static void
save(struct reuse_ref *t, const struct kv_copy *c, unsigned lane, uint64_t step)
{
    uint32_t host_block = ref_host_block(t, c->group, c->to), n = 0, part;
    struct reuse_block *old = ref_at_host(t, host_block), *b = t->block;

    ref_touch_host(t, host_block, lane, step);
    for (struct reuse_block *o = t->block; o < t->block + t->n_blocks; o++) {
        n += o->n_host;
        if (!old || !o->n_host || ref_host_held(t, o) ||
            part_at(t, o, c->group, c->from) < ref_n_parts(t, o->group))
            continue;
        check((o->host_orphan ? -1 : o->host_priority) >=
              (old->host_orphan ? -1 : old->host_priority));
    }
    if (old) {
        if (old->at != SLICE_NONE) t->starting->host_held &= ~host_bits(old);
        check(n == t->n_host_blocks && !ref_host_held(t, old));
        ref_forget(t, (uint32_t)(old - t->block), /* host= */ true);
    }
    while (b < t->block + t->n_blocks &&
           part_at(t, b, c->group, c->from) == ref_n_parts(t, b->group))
        b++;
    check(b < t->block + t->n_blocks && is_offloaded(t, b) && *priority_of(t, b) >= 30);
    part = part_at(t, b, c->group, c->from);
    check(b->n_host == part);
    b->host_block[b->n_host++] = host_block;
    b->host_priority = *priority_of(t, b);
    b->host_orphan = false;
    b->saved = t->n_operations;
    ref_touch(t, c->group, c->from, lane, step);
}

void
ref_save(struct reuse_ref *t, const struct reuse_block *b, unsigned lane, uint64_t step)
{
    const struct kv_copy *end = b ? t->save : t->save_end;

    for (const struct kv_copy *c = t->save; b && c < t->save_end; c++)
        if (c->to_tier == TIER_HOST && part_at(t, b, c->group, c->from) < ref_n_parts(t, b->group))
            end = c + 1;
    for (; t->save < end; t->save++)
        if (t->save->to_tier == TIER_HOST) save(t, t->save, lane, step);
}

/* Rule 9. If all host blocks are held, none is evicted. In a step that evicts a slab of several
 * blocks, the block may have been evicted before another one took its host block. */
static void
check_saved(struct reuse_ref *t, const struct reuse_block *b)
{
    uint32_t n_held = 0;

    if (t->away || !is_offloaded(t, b) || *priority_of(t, b) < 30) return;
    for (const struct reuse_block *o = t->block; o < t->block + t->n_blocks; o++)
        n_held += ref_host_held(t, o) * o->n_host;
    check(b->n_host || b->saved == t->n_operations || b->lost == t->n_operations ||
          n_held + ref_n_parts(t, b->group) > t->n_host_blocks);
}

/* Returns the first unit of the cached block's part in units first .. end - 1; `end`: none. */
static uint32_t
unit_in(const struct reuse_ref *t, const struct reuse_block *b, uint32_t first, uint32_t end)
{
    uint32_t n = ref_n_parts(t, b->group), best = end;

    for (uint32_t i = 0; i < n && b->at != SLICE_NONE; i++) {
        uint32_t unit = ref_unit(t, b->group, is_state(t, b->group) ? b->layer[i] : b->at);

        if (unit < end && unit + t->block_units[b->group] > first) best = MIN(best, unit);
    }
    return best;
}

/* Returns the cached block that a row's new block overwrites, or the first one of the slab that
 * another pool has lost to the group. NULL: there is none. */
static struct reuse_block *
overwritten(struct reuse_ref *t, uint32_t group, uint32_t first)
{
    uint32_t slab_units = t->c.slab_bytes / UNIT, slab = first / slab_units * slab_units;
    uint32_t end = first + t->block_units[group], best = UINT32_MAX;
    struct reuse_block *ret = NULL;

    for (struct reuse_block *b = t->block; b < t->block + t->n_blocks; b++) {
        bool pool = t->c.group[b->group].pool != t->c.group[group].pool;
        uint32_t last = pool ? slab + slab_units : end;
        uint32_t unit = unit_in(t, b, pool ? slab : first, last);

        if (unit == last || unit >= best) continue;
        best = unit;
        ret = b;
    }
    return ret;
}

void
ref_acquire(struct reuse_ref *t, uint32_t group, slice_id at, bool moved, unsigned lane,
            uint64_t step)
{
    uint32_t first = ref_unit(t, group, at);
    struct reuse_block *b;

    ref_overwrite(t, group, at, lane, step);
    while ((b = overwritten(t, group, first))) {
        slice_id from = b->at;
        uint32_t g = b->group;

        if (!moved) {
            check_victim(t, b);
            ref_save(t, b, lane, step); /* may move the elements of the list */
            b = ref_at(t, g, from);
            check_saved(t, b);
        }
        ref_forget(t, (uint32_t)(b - t->block), /* host= */ false);
    }
    if (!moved) t->priority[first] = KV_PRIORITY;
}

void
ref_released(struct reuse_ref *t, uint32_t group, slice_id at)
{
    struct reuse_block *b = ref_at(t, group, at);

    if (!b || ref_held(t, group, at)) return;
    b->released = ++t->n_released;
    b->orphan = false;
}

void
ref_drop(struct reuse_ref *t, struct reuse_slot *s)
{
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        bool forward = t->c.group[g].kind == KV_WINDOW && !t->c.fifo;
        slice_id tail = s->tail[g];

        s->tail[g] = SLICE_NONE;
        ref_released(t, g, tail);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            slice_id *at = &s->at[g][forward ? i : ENTRIES - 1 - i], was = *at;

            *at = SLICE_NONE;
            ref_released(t, g, was);
        }
    }
    s->live = false;
    s->host_held = 0;
}

/* Rule 8, for a block that begins at token `first`. */
static void
set_priority(const struct reuse_slot *s, uint32_t first, uint8_t *priority)
{
    for (uint32_t i = 0; i < s->text.n_keep; i++)
        if (first >= s->keep[i].start && first < s->keep[i].end) *priority = s->keep[i].priority;
}

void
ref_claim(struct reuse_ref *t, struct reuse_slot *s)
{
    uint32_t tokens = t->c.tokens_per_block;

    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        uint32_t n = is_cross(t, g) ? s->hit_cross * s->text.n_source : s->hit / tokens * tokens;

        for (uint32_t at = 0; at < n; at += tokens) {
            uint32_t end = MIN(n, at + tokens), pos = is_state(t, g) ? n : s->hit;
            struct reuse_block *b;

            if (!is_cross(t, g) && !is_seen(t, g, at / tokens, pos)) continue;
            b = &t->block[find(t, s, g, end, end - at) - t->block];
            if (b->at == SLICE_NONE) s->host_held |= host_bits(b);
            *(b->at == SLICE_NONE ? &b->host_orphan : &b->orphan) = false;
            set_priority(s, is_cross(t, g) ? 0 : at,
                         b->at == SLICE_NONE ? &b->host_priority : priority_of(t, b));
        }
    }
}

void
ref_claim_tail(struct reuse_ref *t, const struct reuse_slot *s, uint32_t group, bool owner)
{
    uint32_t first = s->hit / t->c.tokens_per_block * t->c.tokens_per_block;
    struct reuse_block *b = ref_at(t, group, s->tail[group]);

    check(b && n_common(t, s, first, b) == s->hit - first);
    b->orphan = false;
    if (owner) set_priority(s, first, priority_of(t, b));
}

/* Adds the slot's block of the group with the n tokens before `end` to the list: rule 2. */
static void
add_block(struct reuse_ref *t, const struct reuse_slot *s, uint32_t group, uint32_t end, uint32_t n)
{
    uint32_t i = (end - n) / t->c.tokens_per_block, layers = t->c.group[group].n_layers, k = 0;
    struct reuse_block *b;

    if (is_state(t, group)) {
        while (k < KV_SNAPSHOTS && s->snapshot[k] != end) k++;
        if (k == KV_SNAPSHOTS || n < t->c.tokens_per_block) return;
        i = layers * (1 + k);
    }
    if (s->at[group][i] == SLICE_NONE || ref_at(t, group, s->at[group][i])) return;
    b = &t->block[(find(t, s, group, end, n) ? find(t, s, group, end, n) : t->block + t->n_blocks) -
                  t->block];
    if (b == t->block + t->n_blocks) {
        check(t->n_blocks++ < BLOCKS);
        *b = (struct reuse_block){ .group = (uint8_t)group,
                                   .end = end,
                                   .n = n,
                                   .at = SLICE_NONE,
                                   .salt = s->salt,
                                   .n_source = s->text.n_source };
        memcpy(b->source, s->source, s->text.n_source * sizeof *b->source);
        memcpy(b->token, s->token, (is_cross(t, group) ? 0 : end) * sizeof *b->token);
        memcpy(b->extra, s->extra, (is_cross(t, group) ? 0 : end) * sizeof *b->extra);
    }
    if (b->at != SLICE_NONE) return;
    b->at = s->at[group][i];
    for (k = 0; k < layers && is_state(t, group); k++) b->layer[k] = s->at[group][i + k];
    set_priority(s, is_cross(t, group) ? 0 : end - n, priority_of(t, b));
}

static void
add_blocks(struct reuse_ref *t, const struct reuse_slot *s, bool cross, uint32_t first, uint32_t n)
{
    uint32_t tokens = t->c.tokens_per_block;

    for (uint32_t at = first; at < n; at += tokens)
        for (uint32_t g = 0; g < t->c.n_groups; g++)
            if (is_cross(t, g) == cross)
                add_block(t, s, g, MIN(n, at + tokens), MIN(n, at + tokens) - at);
}

void
ref_store(struct reuse_ref *t, struct reuse_slot *s, uint32_t n, bool release)
{
    uint32_t tokens = t->c.tokens_per_block, full = n / tokens * tokens;

    if (!s->cross_stored) add_blocks(t, s, /* cross= */ true, 0, s->text.n_source);
    s->cross_stored = true;
    add_blocks(t, s, /* cross= */ false, s->n_stored * tokens, full);
    s->n_stored = MAX(s->n_stored, n / tokens);
    if (!release) return;
    add_blocks(t, s, /* cross= */ false, 0, s->n_stored * tokens);
    if (s->n_stored == n / tokens && !t->has_state) add_blocks(t, s, /* cross= */ false, full, n);
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        for (uint32_t i = 0; i < ENTRIES && !is_cross(t, g) && !is_state(t, g); i++)
            if (s->at[g][i] != SLICE_NONE)
                set_priority(s, i * tokens, &t->priority[ref_unit(t, g, s->at[g][i])]);
}
