/* fuzz_reuse.c - reuse of KV blocks against a reference that knows the contents of the arena.
 *
 * The reference (ref_reuse.h) has no tree: it follows the sentences of its head with a list of
 * cached blocks. It predicts each hit and checks each eviction. Before every step it checks that
 * each position that the step sees, through the tables as edits and copies set them, holds what the
 * sequence needs. For recurrent state it keeps the tokens before the state, for live states and
 * snapshots. Slots may be forked and reordered, and are stored like others; prefixes are pinned.
 */
#include "tests/fuzz/ref_reuse.h"

#include "worker/exec/copy_order.h"
#include "worker/kv/kv_evict.h"
#include "worker/kv/kv_internal.h"

uint64_t fuzz_operations;

static void
draw_text(struct reuse_ref *t, struct reuse_slot *s, struct in *in)
{
    uint32_t how = byte(in), like = byte(in) % SLOTS, n = byte(in) % LEN, alphabet = 2;

    memset(s, 0, sizeof *s);
    s->salt = how % 8 == 7;
    s->len = 1 + byte(in) % LEN;
    if (how & 8) {
        memcpy(s->token, t->slot[like].token, sizeof s->token);
        memcpy(s->extra, t->slot[like].extra, sizeof s->extra);
    }
    for (uint32_t i = how & 8 ? n : 0; i < LEN; i++) {
        s->token[i] = (token_id)(byte(in) % alphabet);
        s->extra[i] = (how & 48) == 48 && i % 8 == 3;
    }
    s->text.n_source = (how & 64) ? 1 + byte(in) % (SOURCE - 1) : 0;
    for (uint32_t i = 0; i < s->text.n_source; i++) s->source[i] = (token_id)(byte(in) % 2);
    kv_namespace(t->kv, s->salt, 0, s->source, s->text.n_source, &s->space);
    ref_name(s);
}

/* Checks the hit length that would result if the host tier were present. */
static void
check_length(struct reuse_ref *t, const struct reuse_slot *s)
{
    uint32_t found = kv_lookup_length(t->kv, &s->text, /* with_host_tier= */ true), whole, want;
    bool away = t->away;

    t->away = false;
    want = ref_hit(t, s, &whole);
    t->away = away;
    check(found >= whole && found <= want && (found == want || !t->c.copy_partial));
}

/* Each block of a prompt and of its encoder input is a hit or missed; a window group does not hold
 * the hits behind its window. */
static void
check_use(const struct reuse_ref *t, uint32_t slot)
{
    const struct reuse_slot *s = &t->slot[slot];
    struct kv_use use = { 0 };
    uint32_t blocks = 0;
    bool all = true;

    if (t->has_state) return;
    kv_add_use(t->kv, slot, &use);
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        uint32_t n = t->c.group[g].kind == KV_CROSS ? s->text.n_source : s->len;

        all = all && t->c.group[g].kind != KV_WINDOW;
        blocks += CEIL_DIV(n, t->c.tokens_per_block);
    }
    check(use.allocated == 0 && use.allocated_new == 0);
    check(all ? use.reused + use.missed == blocks : use.reused + use.missed <= blocks);
}

static void
admit_slot(struct reuse_ref *t, struct in *in)
{
    uint32_t slot = byte(in) % SLOTS, whole, want;
    struct reuse_slot *s = &t->slot[slot];
    struct kv_hit hit, seen;
    struct kv_need more = { { 0 } };
    bool fits_without_hit, want_cross, fits_any_hit;
    int r;

    if (s->live) return;
    draw_text(t, s, in);
    s->chunk = 1 + byte(in) % 20;
    s->text.token = s->token;
    s->text.extra = s->extra;
    s->text.source = s->source;
    s->text.namespace = &s->space;
    s->text.n = s->len; /* all tokens are known: a prompt */
    s->text.n_keep = byte(in) % 3;
    s->text.keep = s->text.n_keep ? s->keep : NULL;
    byte(in); /* the recorded inputs have an unused byte here */
    s->keep[0] = (struct kv_keep){ 0, 1 + byte(in) % 9, (uint8_t)(byte(in) % 101) };
    s->keep[1] = (struct kv_keep){ s->keep[0].end, UINT32_MAX, (uint8_t)(byte(in) % 101) };
    check(kv_keep_check(s->keep, 2, NULL) == 0);
    s->need = kv_need(t->kv, s->len, s->text.n_source, s->chunk);
    if (kv_fits_alone(t->kv, &s->need, s->len, s->text.n_source, NULL) < 0) return;
    want = ref_hit(t, s, &whole);
    want_cross = ref_cross(t, s);
    check_length(t, s);
    kv_lookup(t->kv, &s->text, &seen);
    check(kv_lookup_length(t->kv, &s->text, /* with_host_tier= */ false) == seen.n_tokens);
    if (t->c.copy_partial) check(seen.n_tokens == want);
    check(seen.n_tokens <= want && seen.n_tokens >= whole && seen.cross == want_cross);
    for (uint32_t g = 0; g < t->c.n_groups; g++) more.n_blocks[g] = s->need.n_blocks[g] + 1;
    /* Enough for one more block per group is enough for any hit. */
    fits_any_hit = kv_n_pools(t->kv) == 1 && ref_all_started(t) && ref_fits(t, &more);
    fits_without_hit = ref_fits(t, &s->need);
    r = kv_admit(t->kv, slot, &s->need, &s->text, &hit);
    check(r == 0 || (r == -EAGAIN && (!fits_without_hit || !ref_all_started(t))));
    if (r < 0) return;
    check_use(t, slot);
    check(hit.n_tokens == seen.n_tokens || hit.n_tokens == whole || hit.n_tokens == 0);
    if (fits_any_hit) check(hit.n_tokens == seen.n_tokens);
    s->live = true;
    s->hit = s->pos = s->done = hit.n_tokens;
    s->hit_cross = s->cross_stored = hit.cross;
    s->n_stored = hit.n_full;
    memset(s->at, 0xff, sizeof s->at);
    memset(s->copied, 0xff, sizeof s->copied);
    memset(s->tail, 0xff, sizeof s->tail);
    /* The hit is held from now on, so the rows have it before the edits of the step. */
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        for (uint32_t i = 0; i < t->c.group[g].max_entries; i++)
            s->at[g][i] = kv_entry(t->kv, slot, g, i);
    if (t->has_state && s->hit) s->snapshot[s->n_snapshots++] = s->hit;
    ref_claim(t, s);
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        uint32_t tail = kv_seqs(t->kv)[slot].tail[g]; /* the choice between equal ones is free */

        s->tail[g] = tail ? kv_slice(t->kv, g, tail - 1) : SLICE_NONE;
        if (tail) ref_claim_tail(t, s, g, kv_blocks(t->kv)[tail - 1].owner == slot + 1);
        check(!tail == (s->hit % t->c.tokens_per_block == 0 || t->c.group[g].kind == KV_CROSS));
    }
}

/* Applies the copy of a host block to the slot that starts. */
static void
onboard(struct reuse_ref *t, struct reuse_slot *s, const struct kv_copy *c, unsigned lane,
        uint64_t step)
{
    uint32_t host_block = ref_host_block(t, c->group, c->from), part = 0;
    struct reuse_block *b;

    check(c->from_tier == TIER_HOST && c->to_tier == TIER_DEVICE && !c->n_tokens && !c->after);
    ref_touch_host(t, host_block, lane, step);
    ref_acquire(t, c->group, c->to, /* moved= */ false, lane, step);
    ref_touch(t, c->group, c->to, lane, step);
    b = ref_at_host(t, host_block);
    check(b && b->at == SLICE_NONE && b->group == c->group && (s->host_held >> host_block & 1));
    while (b->host_block[part] != host_block) part++;
    t->priority[ref_unit(t, c->group, c->to)] = b->host_priority;
    b->layer[part] = c->to;
    if (part + 1 == b->n_host) {
        b->at = b->layer[0];
        b->orphan = false;
        for (uint32_t i = 0; i < b->n_host; i++) s->host_held &= ~(UINT64_C(1) << b->host_block[i]);
    }
    if (t->c.group[c->group].kind == KV_STATE)
        s->at[c->group][b->n_host + part] = c->to;
    else
        s->at[c->group][(b->end - b->n) / t->c.tokens_per_block] = c->to;
}

/* Applies a copy of a snapshot to a live state, or of a live state to a snapshot. */
static void
apply_state(struct reuse_ref *t, struct reuse_slot *s, const struct kv_copy *c, unsigned lane,
            uint64_t step)
{
    check(!c->n_tokens && c->from_tier == TIER_DEVICE && c->to_tier == TIER_DEVICE);
    if (!c->after) ref_acquire(t, c->group, c->to, /* moved= */ false, lane, step);
    for (uint32_t i = 0; i < t->c.group[c->group].n_layers && !c->after; i++)
        if (kv_entry(t->kv, (seq_slot)(s - t->slot), c->group, i) == c->to)
            s->at[c->group][i] = c->to;
    ref_touch(t, c->group, c->to, lane, step);
    ref_touch(t, c->group, c->from, lane, step);
}

static uint64_t *
memory_of(struct reuse_ref *t, uint8_t tier, uint8_t group, slice_id at)
{
    return tier == TIER_HOST ? t->host_holds[ref_host_block(t, group, at)]
                             : t->holds[ref_unit(t, group, at)];
}

static void
move_block(struct reuse_ref *t, const struct kv_copy *c)
{
    const uint64_t *from = memory_of(t, c->from_tier, c->group, c->from);
    uint64_t *to = memory_of(t, c->to_tier, c->group, c->to);

    if (c->from_tier == TIER_DEVICE) check(ref_whole(t, c->group, c->from));
    for (uint32_t k = 0; k < TOKENS; k++) to[k] = !c->n_tokens || k < c->n_tokens ? from[k] : 0;
    if (c->to_tier == TIER_DEVICE) ref_write(t, c->group, c->to);
}

/* Copies like the executor: launch by launch, each in reverse, because a launch has no order. */
static void
move_blocks(struct reuse_ref *t, const struct kv_out *out, bool after)
{
    struct copy_order_bytes bytes;
    uint64_t place[COPIES];

    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        bytes.slice[g] = t->c.group[g].slice_bytes;
        bytes.block[g] = kv_block_bytes(&t->c.group[g]);
    }
    copy_order_sort(out->copy, out->n_copies, &bytes, place);
    for (uint32_t first = 0, end; first < out->n_copies; first = end) {
        for (end = first + 1; end < out->n_copies; end++)
            if (copy_order_launch(place[end]) != copy_order_launch(place[first])) break;
        for (uint32_t i = end; i > first; i--) {
            const struct kv_copy *c = &out->copy[copy_order_index(place[i - 1])];

            check(c->group == out->copy[copy_order_index(place[first])].group);
            if (c->after == after) move_block(t, c);
        }
    }
}

/* Applies the copy of a tail to a new block of a slot. */
static void
copy_tail(struct reuse_ref *t, const struct kv_copy *c, unsigned lane, uint64_t step)
{
    check(c->n_tokens > 0 && c->n_tokens < t->c.tokens_per_block && c->from != c->to);
    ref_acquire(t, c->group, c->to, /* moved= */ false, lane, step);
    ref_touch(t, c->group, c->to, lane, step);
    ref_touch(t, c->group, c->from, lane, step);
    t->priority[ref_unit(t, c->group, c->to)] = t->priority[ref_unit(t, c->group, c->from)];
    for (seq_slot i = 0; i < SLOTS; i++) {
        struct reuse_slot *s = &t->slot[i];
        uint32_t entry = s->hit / t->c.tokens_per_block;

        if (!s->live || s->started || s->tail[c->group] != c->from) continue;
        if (kv_entry(t->kv, i, c->group, entry) != c->to) continue;
        s->copied[c->group] = s->at[c->group][entry] = c->to;
        s->tail[c->group] = SLICE_NONE;
        ref_released(t, c->group, c->from);
        return;
    }
    check(false);
}

/* Applies the copies of kv_start() in order; ref_acquire() applies those of evicted blocks. */
static void
apply_copies(struct reuse_ref *t, struct reuse_slot *s, const struct kv_out *out, unsigned lane,
             uint64_t step, bool after)
{
    const struct kv_copy *end = out->copy + out->n_copies;

    t->starting = s;
    if (!after) t->save = out->copy;
    t->save_end = end;
    for (const struct kv_copy *c = out->copy; c < end; c++) {
        struct reuse_block *b = c->to_tier == TIER_HOST ? ref_at(t, c->group, c->from) : NULL;

        if (b && !s->started && ref_held(t, c->group, c->from))
            ref_save(t, b, lane, step); /* after KV_SAVE_HITS hits; with the other layers */
        if (c->to_tier == TIER_HOST || c->after != after) continue;
        if (c->from_tier == TIER_HOST)
            onboard(t, s, c, lane, step);
        else if (t->c.group[c->group].kind == KV_STATE)
            apply_state(t, s, c, lane, step);
        else
            copy_tail(t, c, lane, step);
    }
    if (!after) s->host_held = 0;
    move_blocks(t, out, after);
}

static void
apply_edit(struct reuse_ref *t, const struct kv_edit *e, unsigned lane, uint64_t step)
{
    struct reuse_slot *s = &t->slot[e->slot];
    const struct kv_group *k = &t->c.group[e->group];
    uint32_t shared = s->hit / t->c.tokens_per_block;
    slice_id was;
    bool moved;

    for (unsigned l = 0; l < t->c.n_lanes; l++)
        check(l == lane || s->row[l] <= t->clock[lane][step % STEPS][l]);
    s->row[lane] = step;
    if (e->op == EDIT_CLEAR) return;
    check(e->op == EDIT_SET && e->entry < k->max_entries);
    was = s->at[e->group][e->entry];
    if (k->kind == KV_CROSS) shared = s->hit_cross ? ENTRIES : 0;
    if (k->kind == KV_STATE) {
        shared = s->hit && !s->started && e->entry >= k->n_layers ? 2 * k->n_layers : 0;
        check(e->pos == (e->entry < k->n_layers ? 0 : s->snapshot[e->entry / k->n_layers - 1]));
    }
    check(e->at != SLICE_NONE ||
          (k->kind == KV_WINDOW && e->entry * t->c.tokens_per_block >= k->sinks));
    if (e->at == SLICE_NONE || e->entry < shared) {
        check(e->at == SLICE_NONE || was == e->at ||
              (was == SLICE_NONE && !s->started)); /* onboarded for another slot */
        s->at[e->group][e->entry] = e->at;
        if (e->at == SLICE_NONE) ref_released(t, e->group, was);
        return;
    }
    if (!s->started && (s->copied[e->group] == e->at || was == e->at)) return;
    s->at[e->group][e->entry] = SLICE_NONE;
    for (uint32_t i = 1; k->kind == KV_STATE && e->entry % k->n_layers == 0 && i < k->n_layers; i++)
        s->at[e->group][e->entry + i] = SLICE_NONE; /* the overwritten snapshot is dropped whole */
    ref_released(t, e->group, was);
    moved = !s->started && s->tail[e->group] == e->at;
    if (moved) s->tail[e->group] = SLICE_NONE;
    ref_acquire(t, e->group, e->at, moved, lane, step);
    s->at[e->group][e->entry] = e->at;
}

/* The step reads the state at position first and writes the state at position end. */
static void
compute_state(struct reuse_ref *t, const struct reuse_slot *s, uint32_t group, unsigned lane,
              uint64_t step, uint32_t first, uint32_t end)
{
    for (uint32_t i = 0; i < t->c.group[group].n_layers; i++) {
        uint64_t *holds = &t->holds[ref_unit(t, group, s->at[group][i])][0];

        if (first == 0) ref_write(t, group, s->at[group][i]);
        check(ref_whole(t, group, s->at[group][i]));
        check(first == 0 || *holds == ref_mix(s->path[first - 1], i));
        *holds = ref_mix(s->path[end - 1], i);
        ref_touch(t, group, s->at[group][i], lane, step);
    }
}

/* Ends the evictions of a step. If a step evicts a slab, snapshots with a layer there leave other
 * slabs too, and the step may take such a slab instead. The code chooses the slab. */
static void
end_evictions(struct reuse_ref *t, unsigned lane, uint64_t step)
{
    ref_save(t, NULL, lane, step);
    for (uint32_t i = 0; t->has_state && kv_n_pools(t->kv) > 1 && i < t->n_blocks;) {
        const struct reuse_block *b = &t->block[i];
        uint32_t block = 0;

        if (b->at != SLICE_NONE && !ref_held(t, b->group, b->at) &&
            kv_block_at(t->kv, b->group, b->at, &block) == 0 && !kv_blocks(t->kv)[block].node &&
            ref_forget(t, i, /* host= */ false))
            continue;
        i++;
    }
}

/* Computes positions first .. end - 1: checks what they see, then writes them. */
static void
compute_positions(struct reuse_ref *t, struct reuse_slot *s, unsigned lane, uint64_t step,
                  uint32_t first, uint32_t end)
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
            holds = &t->holds[ref_unit(t, g, at)][pos % tokens];
            if (fill || (!cross && pos >= first)) {
                if (pos % tokens == 0) ref_write(t, g, at);
                *holds = ref_content(s, cross, pos);
            }
            check(ref_whole(t, g, at));
            check(*holds == ref_content(s, cross, pos));
            ref_touch(t, g, at, lane, step);
        }
    }
}

/* Returns the first snapshot position after s->pos. */
static uint32_t
border_of(const struct reuse_ref *t, const struct reuse_slot *s)
{
    for (uint32_t pos = s->pos + 1; t->interval && pos < s->len; pos++) {
        if (pos % t->interval == 0) return pos;
        if (pos % t->c.tokens_per_block == 0 && pos + t->c.tokens_per_block >= s->len) return pos;
    }
    return t->interval ? CEIL_DIV(s->len, t->interval) * t->interval : UINT32_MAX;
}

/* Records which steps end before the launched step. */
static void
launch_step(struct reuse_ref *t, const struct kv_out *out, unsigned lane, uint64_t step)
{
    uint64_t *clock = t->clock[lane][step % STEPS];

    kv_ends_sent(t->kv, lane, step);
    t->planned[lane] = step;
    memcpy(clock, t->clock[lane][(step - 1) % STEPS], sizeof t->clock[0][0]);
    for (unsigned l = 0; l < t->c.n_lanes; l++) {
        clock[l] = MAX(clock[l], MAX(t->done[l], out->wait[l]));
        for (unsigned k = 0; out->wait[l] && k < t->c.n_lanes; k++)
            clock[k] = MAX(clock[k], t->clock[l][out->wait[l] % STEPS][k]);
    }
    for (uint32_t i = 0; i < SLOTS; i++) t->slot[i].planned_at[lane][step % STEPS] = 0;
}

/* Applies copies within a sequence group, whose slots own the destinations already. */
static void
copy_in_seq_group(struct reuse_ref *t, const struct kv_out *out, unsigned lane, uint64_t step)
{
    for (uint32_t i = 0; i < out->n_copies; i++) {
        const struct kv_copy *c = &out->copy[i];
        uint32_t first;

        if (c->to_tier == TIER_HOST) continue; /* the old contents of a new block */
        check(c->from_tier == TIER_DEVICE && !c->after);
        check(ref_held(t, c->group, c->to) && ref_held(t, c->group, c->from) && c->from != c->to);
        first = ref_unit(t, c->group, c->to);
        for (uint32_t u = first; u < first + t->block_units[c->group]; u++)
            for (unsigned l = 0; l < t->c.n_lanes; l++)
                check(l == lane || t->used[u][l] <= t->clock[lane][step % STEPS][l]);
        ref_touch(t, c->group, c->to, lane, step);
        ref_touch(t, c->group, c->from, lane, step);
    }
    move_blocks(t, out, false);
}

/* Copies a slot, with other tokens from pos on. */
static void
copy_slot(struct reuse_slot *to, const struct reuse_slot *from, struct in *in)
{
    struct kv_text text = from->text;

    *to = *from;
    to->text = text;
    to->text.token = to->token;
    to->text.extra = to->extra;
    to->text.source = to->source;
    to->text.namespace = &to->space;
    to->text.keep = NULL;
    to->text.n_keep = 0;
    for (uint32_t i = to->pos; i < LEN; i++) to->token[i] = (token_id)(byte(in) % 2);
    ref_name(to);
}

static void
fork_slot(struct reuse_ref *t, struct in *in)
{
    uint32_t a = byte(in) % SLOTS, b = byte(in) % SLOTS;
    unsigned lane = byte(in) % t->c.n_lanes;
    struct reuse_slot *from = &t->slot[a], *to = &t->slot[b];
    struct kv_out out = {
        .edit = t->edit, .max_edits = EDITS, .copy = t->copy, .max_copies = COPIES
    };
    uint64_t step = t->planned[lane] + 1;
    struct kv_need need;
    int r;

    if (a == b || !from->live || !from->started || to->live) return;
    if (from->pos >= from->len || step - t->done[lane] > 2) return;
    need = kv_fork_need(t->kv, from->len, from->pos, 1, /* beam= */ false);
    r = kv_reserve(t->kv, b, &need);
    check(r == 0 || (r == -EAGAIN && (!ref_all_started(t) || !ref_fits(t, &need))));
    if (r < 0) return;
    out.step = step;
    kv_ends(t->kv, lane, &out);
    kv_fork(t->kv, lane, step, a, b, from->pos, from->pos, &out);
    kv_fence(t->kv, a, lane, step);
    if (!from->group_id) from->group_id = ++t->n_groups_made;
    copy_slot(to, from, in);
    memset(to->at, 0xff, sizeof to->at);
    memset(to->tail, 0xff, sizeof to->tail);
    memset(to->row, 0, sizeof to->row);
    memset(to->planned_at, 0, sizeof to->planned_at);
    memset(to->snapshot, 0, sizeof to->snapshot);
    to->n_snapshots = to->hit = to->n_stored = 0;
    to->hit_cross = to->cross_stored = false;
    /* this step copies the last block */
    to->done = MIN(from->done, from->pos / t->c.tokens_per_block * t->c.tokens_per_block);
    to->chunk = 1;
    to->need = need;
    launch_step(t, &out, lane, step);
    to->planned_at[lane][step % STEPS] = to->pos;
    t->starting = to;
    t->save = t->copy;
    t->save_end = t->copy + out.n_copies;
    for (uint32_t i = 0; i < out.n_edits; i++) {
        const struct kv_edit *e = &t->edit[i];

        if (e->op != EDIT_SET || e->slot != b || from->at[e->group][e->entry] != e->at) {
            apply_edit(t, e, lane, step);
            continue;
        }
        to->row[lane] = step;
        to->at[e->group][e->entry] = e->at; /* shared */
        to->need.n_blocks[e->group] += t->c.group[e->group].kind == KV_FULL ||
                                       t->c.group[e->group].kind == KV_CROSS;
    }
    end_evictions(t, lane, step);
    copy_in_seq_group(t, &out, lane, step);
}

/* Returns true if both slots have written and hold the same positions. */
static bool
are_level(const struct reuse_ref *t, uint32_t a, uint32_t b)
{
    if (!t->slot[b].live || !t->slot[b].started || t->slot[a].group_id != t->slot[b].group_id)
        return false;
    if (t->slot[a].pos != t->slot[b].pos) return false;
    for (uint32_t g = 0; g < t->c.n_groups; g++)
        for (uint32_t e = 0; e < ENTRIES && t->c.group[g].kind != KV_STATE; e++)
            if ((t->slot[a].at[g][e] == SLICE_NONE) != (t->slot[b].at[g][e] == SLICE_NONE))
                return false;
    return true;
}

static void
reorder_group(struct reuse_ref *t, struct in *in)
{
    static struct reuse_slot was[ROWS];
    uint32_t a = byte(in) % SLOTS, slot[SLOTS], n = 0;
    unsigned lane = byte(in) % t->c.n_lanes;
    struct kv_out out = {
        .edit = t->edit, .max_edits = EDITS, .copy = t->copy, .max_copies = COPIES
    };
    uint64_t step = t->planned[lane] + 1;
    uint8_t parent[SLOTS];

    if (!t->slot[a].live || !t->slot[a].group_id || step - t->done[lane] > 2) return;
    for (uint32_t i = 0; i < SLOTS; i++)
        if (are_level(t, a, i)) slot[n++] = i;
    for (uint32_t i = 0; i < n; i++) parent[i] = (uint8_t)(byte(in) % n);
    memcpy(was, t->slot, sizeof was);
    out.step = step;
    kv_ends(t->kv, lane, &out);
    kv_reorder(t->kv, lane, step, slot, parent, n, t->slot[a].pos, &out);
    launch_step(t, &out, lane, step);
    for (uint32_t i = 0; i < out.n_edits; i++) {
        const struct kv_edit *e = &t->edit[i];
        bool theirs = e->op != EDIT_SET;

        for (uint32_t k = 0; k < n && !theirs; k++)
            theirs = was[slot[k]].at[e->group][e->entry] == e->at;
        check(theirs);
        for (unsigned l = 0; l < t->c.n_lanes; l++)
            check(l == lane || t->slot[e->slot].row[l] <= t->clock[lane][step % STEPS][l]);
        t->slot[e->slot].row[lane] = step;
        if (e->op == EDIT_SET) t->slot[e->slot].at[e->group][e->entry] = e->at;
    }
    for (uint32_t i = 0; i < out.n_edits; i++)
        if (t->edit[i].op == EDIT_SET)
            ref_released(t, t->edit[i].group,
                         was[t->edit[i].slot].at[t->edit[i].group][t->edit[i].entry]);
    copy_in_seq_group(t, &out, lane, step);
    for (uint32_t i = 0; i < n; i++) {
        struct reuse_slot *s = &t->slot[slot[i]];

        memcpy(s->token, was[slot[parent[i]]].token, s->pos * sizeof s->token[0]);
        memcpy(s->extra, was[slot[parent[i]]].extra, s->pos * sizeof s->extra[0]);
        ref_name(s);
        if (parent[i] == i) continue;
        /* its blocks are the parent's, and the last one is copied in this step; its snapshots are
         * those of the tokens that it had before */
        s->n_stored = 0;
        memset(s->snapshot, 0, sizeof s->snapshot);
        memset(s->planned_at, 0, sizeof s->planned_at);
        s->planned_at[lane][step % STEPS] = s->pos;
        s->done = MIN(was[slot[parent[i]]].done,
                      s->pos / t->c.tokens_per_block * t->c.tokens_per_block);
    }
}

static void
plan_step(struct reuse_ref *t, struct in *in)
{
    uint32_t slot = byte(in) % SLOTS, rows = 1 + byte(in) % 20, end;
    unsigned lane = byte(in) % t->c.n_lanes;
    struct reuse_slot *s = &t->slot[slot];
    struct kv_out out = {
        .edit = t->edit, .max_edits = EDITS, .copy = t->copy, .max_copies = COPIES
    };
    uint64_t step = t->planned[lane] + 1;

    out.step = step;
    if (!s->live || s->pos >= s->len || step - t->done[lane] > 2) return;
    end = MIN(s->len, s->pos + MIN(rows, s->chunk));
    end = MIN(end, border_of(t, s));
    check(!t->interval || kv_border(t->kv, s->pos, s->len) == border_of(t, s));
    kv_ends(t->kv, lane, &out);
    if (!s->started) kv_start(t->kv, lane, step, slot, &out);
    if (!s->started) kv_cross(t->kv, lane, slot, s->text.n_source, &out);
    kv_trim(t->kv, slot, s->pos, &out);
    check(kv_has_capacity(t->kv, slot, end));
    kv_grow(t->kv, lane, slot, end, &out);
    if (end == border_of(t, s)) {
        kv_snapshot(t->kv, lane, slot, end, &out);
        s->snapshot[s->n_snapshots++ % KV_SNAPSHOTS] = end;
    }
    kv_fence(t->kv, slot, lane, step);
    launch_step(t, &out, lane, step);
    apply_copies(t, s, &out, lane, step, /* after= */ false);
    for (uint32_t i = 0; i < out.n_edits; i++) apply_edit(t, &t->edit[i], lane, step);
    end_evictions(t, lane, step);
    compute_positions(t, s, lane, step, s->pos, end);
    apply_copies(t, s, &out, lane, step, /* after= */ true);
    s->started = true;
    s->pos = end;
    s->planned_at[lane][step % STEPS] = end;
}

static void
finish_step(struct reuse_ref *t, struct in *in)
{
    unsigned lane = byte(in) % t->c.n_lanes;
    uint64_t step = t->done[lane] + 1;

    if (step > t->planned[lane]) return;
    for (unsigned l = 0; l < t->c.n_lanes; l++)
        if (l != lane && t->clock[lane][step % STEPS][l] > t->done[l]) return;
    t->done[lane] = step;
    kv_done(t->kv, lane, step);
    for (uint32_t i = 0; i < SLOTS; i++)
        t->slot[i].done = MAX(t->slot[i].done, t->slot[i].planned_at[lane][step % STEPS]);
}

static void
store_slot(struct reuse_ref *t, struct in *in, bool drop, bool release)
{
    uint32_t slot = byte(in) % SLOTS, less = byte(in) % 8, n;
    struct reuse_slot *s = &t->slot[slot];
    bool computed = s->live && s->started && s->done > s->hit; /* its first step has finished */

    if (!s->live || (!computed && !drop)) return;
    release = release && computed;
    n = s->done > less ? s->done - less : 0;
    if (release || !drop) ref_store(t, s, n, release);
    if (release) {
        kv_release(t->kv, slot, &s->text, n);
    } else if (drop) {
        kv_drop(t->kv, slot);
    } else {
        kv_store(t->kv, slot, &s->text, n);
    }
    if (!drop) return;
    ref_drop(t, s);
    s->group_id = 0;
    memset(s->planned_at, 0, sizeof s->planned_at);
}

/* Pins the prefix of a slot, or removes a pin. */
static void
pin_prefix(struct reuse_ref *t, uint32_t how)
{
    static const struct kv_need none;
    const struct reuse_slot *s = &t->slot[how % SLOTS];
    struct reuse_slot *pin;
    uint32_t before[MAX_GROUPS], whole, n;
    struct err e;
    int r;

    if (how / SLOTS % 2) {
        pin = &t->slot[SLOTS + how % KV_PINS];
        check(kv_unpin(t->kv, 1 + how % KV_PINS) == pin->live);
        if (pin->live) ref_drop(t, pin);
        return;
    }
    if (!s->live || s->text.n != s->len) return;
    ref_hit(t, s, &whole);
    for (uint32_t g = 0; g < t->c.n_groups; g++) before[g] = kv_n_pinned(t->kv, g);
    r = kv_pin(t->kv, &s->text, &none, &n, &e);
    check((r == -ENOENT) == (!whole && !ref_cross(t, s)));
    if (r < 0) return;
    check(n == whole + (ref_cross(t, s) ? s->text.n_source : 0));
    pin = &t->slot[SLOTS + r - 1];
    check(r >= 1 && r <= KV_PINS && !pin->live);
    *pin = *s;
    pin->live = true;
    pin->started = false;
    pin->hit = whole;
    pin->hit_cross = ref_cross(t, s);
    pin->host_held = 0;
    memset(pin->at, 0xff, sizeof pin->at);
    memset(pin->tail, 0xff, sizeof pin->tail);
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        pin->need.n_blocks[g] = kv_n_pinned(t->kv, g) - before[g];
        for (uint32_t i = 0; i < t->c.group[g].max_entries; i++)
            pin->at[g][i] = kv_entry(t->kv, (seq_slot)(SLOTS + r - 1), g, i);
    }
    ref_claim(t, pin);
}

/* Compares the slots with the tables, and the stored blocks with the held and cached counts. */
static void
compare_all(const struct reuse_ref *t)
{
    uint32_t cached = 0, counted = 0, host_blocks = 0;
    struct kv_count host;

    for (uint32_t i = 0; i < SLOTS; i++)
        for (uint32_t g = 0; t->slot[i].live && g < t->c.n_groups; g++) {
            uint32_t first, n = kv_held(t->kv, i, g, &first), have = 0;

            for (uint32_t e = 0; e < ENTRIES; e++) {
                have += t->slot[i].at[g][e] != SLICE_NONE;
                if (e < t->c.group[g].max_entries)
                    check(kv_entry(t->kv, i, g, e) == t->slot[i].at[g][e]);
            }
            check(have == n || (have < n && !t->slot[i].started));
        }
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        struct kv_stats n;

        kv_stats(t->kv, g, &n);
        check(t->c.fifo || n.held + n.cached == ref_n_blocks(t, g));
    }
    for (uint32_t i = 0; i < t->n_blocks; i++) {
        const struct reuse_block *b = &t->block[i];

        if (b->at != SLICE_NONE && !ref_held(t, b->group, b->at))
            cached += ref_n_parts(t, b->group);
        host_blocks += b->n_host;
    }
    kv_count_host(t->kv, &host);
    check(host.used + host.cached == (t->away ? 0 : host_blocks));
    for (uint32_t p = 0; p < kv_n_pools(t->kv); p++) {
        struct kv_count n;

        kv_count(t->kv, p, &n);
        counted += n.cached;
        check(n.used + n.cached + n.free == n.blocks);
    }
    check(cached == counted);
}

/* Returns true if the tree may be full: then hits are missing that the reference expects. */
static bool
tree_may_be_full(const struct reuse_ref *t)
{
    return t->kv->n_live_nodes + 2 * LEN > t->kv->n_nodes;
}

/* The host tier is removed, or returns: with its contents, or empty if no copy is in flight. */
static void
move_host(struct reuse_ref *t, uint32_t how)
{
    bool whole = how % 4 > 0;

    for (unsigned l = 0; l < t->c.n_lanes; l++) whole = whole || t->done[l] < t->planned[l];
    if (!t->away) {
        if (!t->c.host_bytes || t->kv->n_held_host_blocks) return; /* an onboard is planned */
        kv_host_tier_away(t->kv);
    } else {
        kv_host_tier_came(t->kv, whole);
        for (uint32_t i = 0; i < t->n_blocks && !whole;)
            if (!t->block[i].n_host || !ref_forget(t, i, /* host= */ true)) i++;
    }
    t->away = !t->away;
}

/* Flushes all cached blocks, a few per call. */
static void
flush_all(struct reuse_ref *t, uint32_t max)
{
    struct kv_flushed went = { 0 };
    uint64_t blocks = 0, bytes = 0, host_blocks = 0;

    while (kv_flush(t->kv, max, &went) >= max) kv_check(t->kv);
    for (uint32_t i = 0; i < t->n_blocks;) {
        struct reuse_block *b = &t->block[i];
        const struct kv_group *g = &t->c.group[b->group];
        uint32_t n = ref_n_parts(t, b->group);
        bool device = b->at != SLICE_NONE && !ref_held(t, b->group, b->at);
        bool host = b->n_host && !ref_host_held(t, b), left = false;

        blocks += device * n;
        bytes += device * n * kv_block_bytes(g);
        host_blocks += host * b->n_host;
        if (host) left = ref_forget(t, i, /* host= */ true);
        if (device && !left) left = ref_forget(t, i, /* host= */ false);
        i += !left;
    }
    check(went.blocks == blocks && went.bytes == bytes && went.host_blocks == host_blocks);
}

/* Two sequences have equal names exactly as far as their tokens are equal. */
static void
check_names(const struct reuse_ref *t, uint32_t slot)
{
    uint64_t name[SLOTS][LEN][2];
    const struct reuse_slot *s = &t->slot[slot % SLOTS];
    uint32_t tokens = t->c.tokens_per_block;

    for (uint32_t i = 0; i < SLOTS; i++)
        if (t->slot[i].live)
            check(kv_names(t->kv, &t->slot[i].text, name[i], LEN) == t->slot[i].text.n / tokens);
    for (uint32_t i = 0; i < SLOTS && s->live; i++) {
        for (uint32_t end = tokens; t->slot[i].live && end <= MIN(s->text.n, t->slot[i].text.n);
             end += tokens) {
            const uint64_t *a = name[s - t->slot][end / tokens - 1], *b = name[i][end / tokens - 1];

            check((s->path[end - 1] == t->slot[i].path[end - 1]) == (a[0] == b[0] && a[1] == b[1]));
        }
    }
}

/* The first range is valid; the second may be anything. */
static void
check_retention(uint32_t how)
{
    uint32_t start = how % 4, end = start + how / 4 % 2;
    struct kv_keep k[2] = { { 0, 2, 100 }, { start, end, how & 8 ? 101 : 100 } };
    struct err e;

    check((kv_keep_check(k, 2, &e) == 0) == (start >= 2 && end > start && !(how & 8)));
}

enum op { ADMIT, PLAN, FINISH, STORE, RELEASE, FORK, REORDER, DROP };

/* Steps are the most frequent operation, so that several are in flight. */
static enum op
pick_operation(const struct reuse_ref *t, uint8_t b)
{
    static const uint8_t skip_rare_features[] = { ADMIT,  ADMIT,  PLAN,  PLAN,    PLAN,
                                                  FINISH, FINISH, STORE, RELEASE, DROP };
    static const uint8_t wide[] = { ADMIT,   ADMIT, PLAN, PLAN,    PLAN,    PLAN,    FINISH, STORE,
                                    RELEASE, FORK,  FORK, REORDER, REORDER, RELEASE, DROP,   DROP };

    return (enum op)(t->skip_rare_features ? skip_rare_features[b % ARRAY_LEN(skip_rare_features)]
                                           : wide[b % ARRAY_LEN(wide)]);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct reuse_ref ref;
    struct reuse_ref *t = &ref;
    struct in in = { data, data + size };

    memset(t, 0, offsetof(struct reuse_ref, block));
    if (ref_begin(t, &in)) {
        while (in.p < in.end && !(t->has_state && tree_may_be_full(t))) {
            fuzz_operations++;
            t->n_operations++;
            switch (pick_operation(t, byte(&in))) {
            case ADMIT:
                admit_slot(t, &in);
                break;
            case PLAN:
                plan_step(t, &in);
                break;
            case FINISH:
                finish_step(t, &in);
                break;
            case STORE:
                store_slot(t, &in, false, false);
                break;
            case RELEASE:
                store_slot(t, &in, true, true);
                break;
            case FORK:
                fork_slot(t, &in);
                break;
            case REORDER:
                reorder_group(t, &in);
                break;
            case DROP: {
                uint32_t what = byte(&in);

                if (what % 16 == 12) pin_prefix(t, byte(&in));
                if (what % 4 == 0 && what % 16 != 12) store_slot(t, &in, true, false);
                if (what % 4 == 1) move_host(t, what / 4);
                if (what % 4 == 2) check_names(t, what / 4);
                if (what % 8 == 3) check_retention(what / 8);
                if (what % 8 == 7) flush_all(t, 1 + what / 8);
                byte(&in); /* the recorded inputs have an unused byte here */
            }
            }
            kv_check(t->kv);
            compare_all(t);
        }
    }
    free(t->mem);
    return 0;
}
