/* sched_harness.c - see sched_harness.h.
 *
 * The device keeps one vector clock per lane: the steps of other lanes that are ordered before its
 * next step, by waits or because they are done. A write needs every earlier use of the object
 * ordered before it; a read needs every earlier write. Objects are 128-byte units of the arena, a
 * slot's table rows, and rows of encoder states. So every race between lanes is found, also one
 * without visible effect.
 *
 * A block may be in several tables while all their sequences would compute its contents; it is
 * written only while it is in one table.
 */
#include "tests/sched/sched_harness.h"

enum { UNIT = 128, CLOCKS = 4, RUN_TOPS = 64, RUN_ROWS = 1 << 16 };

struct use { /* the last step of each lane that wrote, and that read or wrote */
    uint64_t wrote[MAX_LANES], used[MAX_LANES];
};
struct unit {
    struct use use;
    bool scratch;
    uint32_t n_listed; /* tables that name it */
    req_id id;         /* whose K/V it holds: of group, entry, positions below filled */
    uint64_t space;    /* cache namespace of the K/V */
    uint32_t group, entry, filled;
};
struct row { /* the rows of one slot in all tables */
    struct use use;
    req_id id;
    bool begun;
    uint32_t next_pos;
    uint32_t refused; /* rejected drafts of its last step, and that step; 0: no drafts */
    unsigned draft_lane;
    uint64_t draft_step;
    slice_id at[MAX_GROUPS][RUN_ENTRIES];
};
struct enc {
    struct use use;
    req_id id;
    uint32_t layers;
};
struct fake {
    struct unit *unit, *cell; /* cell: unit of the host tier */
    uint32_t n_units, n_cells, n_enc;
    struct enc *enc;
    struct row *row;                                /* [n_slots] */
    uint64_t clock[MAX_LANES][MAX_LANES];           /* clock of the lane's last step */
    uint64_t of_step[MAX_LANES][CLOCKS][MAX_LANES]; /* clocks of its last few steps */
    struct {
        uint32_t first, n; /* first position, and tokens accepted */
    } taken[MAX_LANES][RUN_OUT][RUN_SLOTS];
};

uint32_t
fake_taken(const struct scheduler_limits *l, req_id id, uint32_t first, uint32_t n_draft)
{
    bool right[1 + MAX_DRAFT] = { true }, has[1 + MAX_DRAFT] = { false };
    uint32_t n = 1;

    for (uint32_t i = 1; i <= n_draft; i++) {
        uint32_t parent = i - 1 - l->draft_back[i - 1];

        /* of several drafts for one position at most one is right */
        right[i] = right[parent] && !has[parent] && ((uint32_t)id * 31 + first * 7 + i * 3) % 5 < 3;
        has[parent] = has[parent] || right[i];
        n += right[i];
    }
    return n;
}

static uint64_t
space_of(const struct seq *q)
{
    return (q->n_source * UINT64_C(1000003) + q->lora) * UINT64_C(1000003) + q->salt;
}

static bool
alike(req_id a, req_id b, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (fake_token(a, first + i) != fake_token(b, first + i)) return false;
    return true;
}

/* True if the unit holds what q would compute, up to position `end` of its prompt or, with cross,
 * of its encoder input. */
static bool
same(const struct unit *u, const struct seq *q, bool cross, uint32_t end)
{
    if (u->space != space_of(q)) return false;
    if (u->id == seq_name(q)) return true;
    /* outputs of beams are no fake tokens, and those of two searches may begin alike */
    if (q->beam && !cross) end = MIN(end, q->beam->first);
    return alike(u->id, q->id, RUN_SOURCE, q->n_source) &&
           (cross || alike(u->id, seq_name(q), 0, end));
}

struct kv_group
run_group(enum kv_kind kind, uint32_t window, uint32_t slice_bytes, uint32_t max_blocks)
{
    return (struct kv_group){ .kind = kind,
                              .window = window,
                              .n_layers = 1,
                              .n_parts = 2,
                              .slice_bytes = slice_bytes,
                              .max_entries = RUN_ENTRIES,
                              .max_blocks = max_blocks };
}

void
run_defaults(struct sched_fixture *r)
{
    memset(r, 0, sizeof *r);
    r->c = (struct kv_config){
        .n_groups = 1,
        .n_slots = RUN_SLOTS,
        .n_lanes = 1,
        .tokens_per_block = 10,
        .arena_bytes = 1 << 20,
    };
    r->c.group[0] = run_group(KV_FULL, 0, UNIT, 0);
    r->l = (struct scheduler_limits){
        .max_seqs = RUN_SLOTS,
        .max_tokens = 100000,
        .max_len = 5000,
        .chunk_unit = 1,
        .n_lanes = 1,
        .lane_work = { WORK_ENCODER | WORK_PREFILL | WORK_DECODE },
    };
}

static uint32_t
block_units(const struct sched_fixture *r, uint32_t group)
{
    return (uint32_t)(kv_block_bytes(&r->c.group[group]) / UNIT);
}

static struct unit *
units_at(const struct sched_fixture *r, uint32_t group, slice_id at)
{
    uint64_t first = (uint64_t)at * r->c.group[group].slice_bytes / UNIT;

    check(at != SLICE_NONE && first + block_units(r, group) <= r->fake->n_units);
    return &r->fake->unit[first];
}

static struct unit *
units_of(const struct sched_fixture *r, uint8_t tier, uint32_t group, slice_id at)
{
    uint64_t first = (uint64_t)at * r->c.group[group].slice_bytes / UNIT;

    if (tier == TIER_DEVICE) return units_at(r, group, at);
    check(first + block_units(r, group) <= r->fake->n_cells);
    return &r->fake->cell[first];
}

static void
open_process(struct sched_fixture *r)
{
    struct err e;

    check(r->c.n_slots <= RUN_SLOTS);
    r->mem = calloc(1, kv_bytes(&r->c));
    r->kv = kv_init(r->mem, &r->c, &e);
    check(r->kv);
    if (r->adopt) r->adopt(r);
    check(scheduler_new(&r->s, &r->l, r->kv, &e) == 0);
    for (unsigned l = 0; l < r->l.n_lanes; l++)
        for (unsigned i = 0; i < RUN_OUT; i++) check((r->batch[l][i] = scheduler_batch(r->s)));
}

static void
close_process(struct sched_fixture *r)
{
    r->s = scheduler_free(r->s);
    for (unsigned l = 0; l < MAX_LANES; l++)
        for (unsigned i = 0; i < RUN_OUT; i++) r->batch[l][i] = batch_free(r->batch[l][i]);
    free(r->mem);
}

void
run_open(struct sched_fixture *r)
{
    open_process(r);
    r->fake = calloc(1, sizeof *r->fake);
    r->fake->n_units = (uint32_t)(r->c.arena_bytes / UNIT);
    r->fake->unit = calloc(r->fake->n_units + 1, sizeof r->fake->unit[0]);
    r->fake->n_cells = (uint32_t)(r->c.host_bytes / UNIT);
    r->fake->cell = calloc(r->fake->n_cells + 1, sizeof r->fake->cell[0]);
    r->fake->n_enc = r->l.max_enc_tokens;
    r->fake->enc = calloc(r->fake->n_enc + 1, sizeof r->fake->enc[0]);
    r->fake->row = calloc(r->c.n_slots, sizeof r->fake->row[0]);
    for (uint32_t i = 0; i < r->c.n_slots; i++)
        memset(r->fake->row[i].at, 0xff, r->c.n_groups * sizeof r->fake->row[i].at[0]);
    for (uint32_t g = 0; g < r->c.n_groups; g++)
        for (uint32_t i = 0; i < block_units(r, g); i++)
            units_at(r, g, kv_scratch(r->kv, g))[i].scratch = true;
}

void
run_close(struct sched_fixture *r)
{
    scheduler_check(r->s);
    close_process(r);
    free(r->fake->unit);
    free(r->fake->cell);
    free(r->fake->enc);
    free(r->fake->row);
    free(r->fake);
}

/* The step failed: its writes are invalid. */
static void
unwrite(struct sched_fixture *r, const struct row *row, uint32_t group, uint32_t first, uint32_t n)
{
    uint32_t tokens = r->c.tokens_per_block;

    for (uint32_t pos = first + n; pos-- > first;) {
        slice_id at = row->at[group][pos / tokens];

        for (uint32_t i = 0; at != SLICE_NONE && i < block_units(r, group); i++) {
            struct unit *u = &units_at(r, group, at)[i];

            u->filled = MIN(u->filled, pos % tokens);
            if (u->filled == 0) u->id = UINT64_MAX;
        }
    }
}

static void
unwrite_all(struct sched_fixture *r, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_copies; i++) {
        const struct kv_copy *c = &b->copy[i];

        for (uint32_t k = 0; k < block_units(r, c->group); k++) {
            struct unit *u = &units_of(r, c->to_tier, c->group, c->to)[k];

            if (u->use.wrote[b->lane] == b->step) u->filled = 0; /* unless written since */
        }
    }
    for (uint32_t i = 0; i < b->n_segments; i++)
        for (uint32_t g = 0; g < r->c.n_groups; g++) {
            const struct batch_segment *run = &b->segment[i];

            if (r->c.group[g].kind == KV_CROSS) {
                unwrite(r, &r->fake->row[run->slot], g, 0, run->enc_tokens);
            } else {
                unwrite(r, &r->fake->row[run->slot], g,
                        r->fake->taken[b->lane][b->step % RUN_OUT][i].first, run->n_tokens);
            }
        }
}

void
run_die(struct sched_fixture *r)
{
    for (unsigned l = 0; l < r->l.n_lanes; l++)
        for (; r->planned[l] > r->done[l]; r->planned[l]--) {
            const struct batch *b = r->batch[l][r->planned[l] % RUN_OUT];

            if (b->step % 3 == 0) unwrite_all(r, b);
        }
    close_process(r);
    memset(r->planned, 0, sizeof r->planned);
    memset(r->done, 0, sizeof r->done);
    memset(r->fake->clock, 0, sizeof r->fake->clock);
    memset(r->fake->of_step, 0, sizeof r->fake->of_step);
    for (uint32_t i = 0; i < r->fake->n_units; i++) {
        r->fake->unit[i].use = (struct use){ { 0 }, { 0 } };
        r->fake->unit[i].n_listed = 0;
    }
    for (uint32_t i = 0; i < r->fake->n_cells; i++)
        r->fake->cell[i].use = (struct use){ { 0 }, { 0 } };
    memset(r->fake->enc, 0, r->fake->n_enc * sizeof r->fake->enc[0]);
    memset(r->fake->row, 0, r->c.n_slots * sizeof r->fake->row[0]);
    for (uint32_t i = 0; i < r->c.n_slots; i++)
        memset(r->fake->row[i].at, 0xff, sizeof r->fake->row[i].at);
}

void
run_again(struct sched_fixture *r)
{
    open_process(r);
}

bool
run_holds(const struct sched_fixture *r, uint8_t tier, uint32_t group, slice_id at,
          const struct seq *q, uint32_t entry, uint32_t n)
{
    bool cross = r->c.group[group].kind == KV_CROSS;

    for (uint32_t i = 0; i < block_units(r, group); i++) {
        const struct unit *u = &units_of(r, tier, group, at)[i];

        if (u->scratch || u->group != group || u->entry != entry || u->filled < n) return false;
        if (!same(u, q, cross, entry * r->c.tokens_per_block + n)) return false;
    }
    return true;
}

void
run_add(struct sched_fixture *r, struct seq *q)
{
    struct err e;

    check(scheduler_add(r->s, q, r->now, &e) == 0);
}

static bool
ordered(const struct sched_fixture *r, const uint64_t clock[MAX_LANES], unsigned lane,
        const uint64_t step[MAX_LANES])
{
    for (unsigned l = 0; l < MAX_LANES; l++)
        if (l != lane && step[l] > clock[l] && step[l] > r->done[l]) return false;
    return true;
}

static void
write_to(const struct sched_fixture *r, const struct batch *b, struct use *u)
{
    check(ordered(r, r->fake->clock[b->lane], b->lane, u->used));
    u->wrote[b->lane] = u->used[b->lane] = b->step;
}

static void
read_from(const struct sched_fixture *r, const struct batch *b, struct use *u)
{
    check(ordered(r, r->fake->clock[b->lane], b->lane, u->wrote));
    u->used[b->lane] = b->step;
}

static void
advance_clock(struct sched_fixture *r, const struct batch *b)
{
    uint64_t *clock = r->fake->clock[b->lane];

    for (uint32_t i = 0; i < b->n_waits; i++) {
        const struct step_dependency *w = &b->wait[i];

        check(w->lane != b->lane && w->step <= r->planned[w->lane] && w->step > 0);
        clock[w->lane] = MAX(clock[w->lane], w->step);
        if (w->step <= r->done[w->lane]) continue;
        for (unsigned l = 0; l < MAX_LANES; l++)
            clock[l] = MAX(clock[l], r->fake->of_step[w->lane][w->step % CLOCKS][l]);
    }
    memcpy(r->fake->of_step[b->lane][b->step % CLOCKS], clock, sizeof r->fake->clock[0]);
}

/* Removes the block that a table entry names from that table. */
static void
unlist(struct sched_fixture *r, uint32_t group, struct row *row, uint32_t entry)
{
    struct unit *u;

    if (row->at[group][entry] == SLICE_NONE) return;
    u = units_at(r, group, row->at[group][entry]);
    for (uint32_t i = 0; i < block_units(r, group); i++) check(u[i].n_listed-- > 0);
    row->at[group][entry] = SLICE_NONE;
}

/* Tokens of an earlier sequence in the entry that this step or a later sample continues. */
static uint32_t
left_in(const struct sched_fixture *r, const struct batch *b, const struct kv_edit *e)
{
    const struct seq *q = scheduler_seq_at(r->s, e->slot);
    bool cross = r->c.group[e->group].kind == KV_CROSS,
         forked = q && q->has_forked && seq_member(q);
    uint32_t tokens = r->c.tokens_per_block, first = e->entry * tokens;
    uint32_t n = forked && !r->fake->row[e->slot].begun ? (cross ? q->n_source : q->n_planned) : 0;

    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *run = &b->segment[i];

        if (run->slot != e->slot || !(run->flags & (SEGMENT_FIRST_CHUNK | SEGMENT_BEAM))) continue;
        n = (uint32_t)run->first_pos;
        if (cross) n = run->enc_tokens ? 0 : q->n_source;
    }
    return n > first ? MIN(n - first, tokens) : 0;
}

/* The block belongs to an admitted sequence whose first step has not sent its table entries. */
static bool
is_sent_later(const struct sched_fixture *r, const struct kv_copy *c)
{
    for (uint32_t i = 0; i < r->c.n_slots; i++) {
        uint32_t first, n = kv_held(r->kv, i, c->group, &first);

        for (uint32_t k = 0; k < first + n && !r->fake->row[i].begun; k++)
            if (kv_entry(r->kv, i, c->group, k) == c->to) return true;
    }
    return false;
}

static void
do_copy(struct sched_fixture *r, const struct batch *b, const struct kv_copy *c)
{
    struct unit *from = units_of(r, c->from_tier, c->group, c->from);
    struct unit *to = units_of(r, c->to_tier, c->group, c->to);
    bool whole = c->from_tier != c->to_tier;

    check(!c->after && (whole || c->from_tier == TIER_DEVICE));
    for (uint32_t i = 0; i < block_units(r, c->group); i++) {
        read_from(r, b, &from[i].use);
        write_to(r, b, &to[i].use);
        check(from[i].group == c->group && from[i].filled >= c->n_tokens);
        check(c->to_tier == TIER_HOST || to[i].n_listed > 0 || is_sent_later(r, c));
        check(whole || to[i].n_listed <= 1);
        to[i].id = from[i].id;
        to[i].space = from[i].space;
        to[i].group = from[i].group;
        to[i].entry = from[i].entry;
        to[i].filled = whole ? from[i].filled : c->n_tokens;
    }
}

/* Clears a block except the part that its new owner continues. */
static void
forget(struct sched_fixture *r, const struct batch *b, const struct kv_edit *e)
{
    struct unit *u = units_at(r, e->group, e->at);
    uint32_t left = left_in(r, b, e);
    bool forked = r->c.group[e->group].kind == KV_CROSS &&
                  scheduler_seq_at(r->s, e->slot)->has_forked;

    for (uint32_t n = 0; n < block_units(r, e->group); n++) {
        u[n].filled = MIN(u[n].filled, left);
        if (u[n].filled == 0) u[n].id = UINT64_MAX;
        /* in one table, or shared for its contents, or written by this step for all */
        check(u[n].n_listed == 1 || left > 0 || forked);
    }
}

static void
apply_edits(struct sched_fixture *r, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_edits; i++) {
        const struct kv_edit *e = &b->edit[i];
        struct row *row = &r->fake->row[e->slot];

        check(e->slot < r->c.n_slots);
        write_to(r, b, &row->use);
        if (e->op == EDIT_CLEAR) {
            for (uint32_t g = 0; g < r->c.n_groups; g++)
                for (uint32_t n = 0; n < RUN_ENTRIES; n++) unlist(r, g, row, n);
            row->next_pos = 0;
            row->begun = false;
            continue;
        }
        check(e->op == EDIT_SET && e->group < r->c.n_groups && e->entry < RUN_ENTRIES);
        if (e->at == SLICE_NONE) {
            /* Adopted blocks are in the manifest, and not yet in the device's table. */
            check(row->at[e->group][e->entry] != SLICE_NONE || !row->begun);
            unlist(r, e->group, row, e->entry);
        } else {
            struct unit *u = units_at(r, e->group, e->at);

            if (row->at[e->group][e->entry] != SLICE_NONE) { /* continues another beam */
                check(scheduler_seq_at(r->s, e->slot)->beam);
                unlist(r, e->group, row, e->entry);
            }
            row->at[e->group][e->entry] = e->at;
            for (uint32_t n = 0; n < block_units(r, e->group); n++) {
                check(!u[n].scratch);
                u[n].n_listed++;
            }
        }
    }
    for (uint32_t i = 0; i < b->n_copies; i++) do_copy(r, b, &b->copy[i]);
    for (uint32_t i = 0; i < b->n_edits; i++)
        if (b->edit[i].op == EDIT_SET && b->edit[i].at != SLICE_NONE) forget(r, b, &b->edit[i]);
}

static void
fill(struct sched_fixture *r, const struct batch *b, uint32_t group, const struct row *row,
     const struct seq *q, uint32_t pos)
{
    bool cross = r->c.group[group].kind == KV_CROSS;
    uint32_t tokens = r->c.tokens_per_block, entry = pos / tokens;
    struct unit *u = units_at(r, group, row->at[group][entry]);

    for (uint32_t i = 0; i < block_units(r, group); i++) {
        write_to(r, b, &u[i].use);
        check(u[i].n_listed == 1 || (cross && q->has_forked));
        check(pos % tokens == 0 || (same(&u[i], q, cross, pos) && u[i].filled == pos % tokens));
        u[i].id = seq_name(q);
        u[i].space = space_of(q);
        u[i].group = group;
        u[i].entry = entry;
        u[i].filled = pos % tokens + 1;
    }
}

/* Marks the position as written by a rejected draft. */
static void
spoil(struct sched_fixture *r, const struct batch *b, uint32_t group, const struct row *row,
      uint32_t pos)
{
    uint32_t tokens = r->c.tokens_per_block;
    struct unit *u = units_at(r, group, row->at[group][pos / tokens]);

    for (uint32_t i = 0; i < block_units(r, group); i++) {
        write_to(r, b, &u[i].use);
        check(u[i].n_listed == 1 && u[i].filled <= pos % tokens);
    }
}

static void
see(struct sched_fixture *r, const struct batch *b, uint32_t group, const struct row *row,
    const struct seq *q, uint32_t first, uint32_t end)
{
    uint32_t tokens = r->c.tokens_per_block;
    bool cross = r->c.group[group].kind == KV_CROSS;

    for (uint32_t entry = first / tokens; entry <= (end - 1) / tokens; entry++) {
        struct unit *u = units_at(r, group, row->at[group][entry]);

        for (uint32_t i = 0; i < block_units(r, group); i++) {
            read_from(r, b, &u[i].use);
            check(same(&u[i], q, cross, MIN(end, (entry + 1) * tokens)));
            check(u[i].group == group && u[i].entry == entry);
            check(u[i].filled >= MIN(end - entry * tokens, tokens));
        }
    }
}

/* The tokens of its segment that draft i attends to, and its depth. */
static uint32_t
row_sees(const struct scheduler_limits *l, uint32_t i, int32_t *depth)
{
    uint32_t sees = 1u << i;

    for (*depth = 0; i > 0; ++*depth) {
        i -= 1u + l->draft_back[i - 1];
        sees |= 1u << i;
    }
    return sees;
}

static void
check_rows(const struct sched_fixture *r, const struct batch *b, const struct batch_segment *run,
           const struct seq *q)
{
    bool tree = false;

    check(run->n_draft <= r->l.n_draft && run->n_draft <= q->n_draft);
    check(run->n_draft == 0 || (run->work == WORK_DECODE && run->n_tokens == 1u + run->n_draft));
    for (uint32_t i = 0; i < run->n_tokens; i++) {
        uint32_t pos = (uint32_t)run->first_pos + i;
        int32_t depth = (int32_t)i;
        uint32_t sees = run->n_draft ? row_sees(&r->l, i, &depth) : 0;

        tree = tree || depth != (int32_t)i;
        check(b->pos[run->first_token + i] == run->first_pos + depth);
        check(b->token[run->first_token + i] == (q->beam ? q->token[pos]
                                                 : pos < q->n_prompt
                                                     ? fake_token(seq_name(q), pos)
                                                     : TOKEN_FROM_LAST - (int32_t)i));
        if (run->flags & SEGMENT_MASK) check(b->mask[run->first_logit + i] == sees);
    }
    check(tree == ((run->flags & SEGMENT_MASK) != 0));
}

static void
do_run(struct sched_fixture *r, const struct batch *b, uint32_t at)
{
    const struct batch_segment *run = &b->segment[at];
    struct row *row = &r->fake->row[run->slot];
    const struct seq *q = scheduler_seq_at(r->s, run->slot);
    uint32_t last = (uint32_t)run->first_pos + run->n_tokens - 1, first, taken = run->n_tokens;
    bool behind = row->draft_step > r->done[row->draft_lane];

    check(q && q->n_source == run->cross_tokens);
    read_from(r, b, &row->use);
    row->use.wrote[b->lane] = b->step; /* the slot's last token */
    check(((run->flags & SEGMENT_FIRST_CHUNK) != 0) == !row->begun);
    if (!row->begun) row->next_pos = q->n_adopted;
    if (!row->begun && (r->c.reuse || (q->has_forked && seq_member(q) > 0)))
        row->next_pos = (uint32_t)run->first_pos; /* continues the tokens below */
    row->begun = true;
    check(((run->flags & SEGMENT_AFTER_DRAFTS) != 0) == behind);
    check(run->first_pos == (int32_t)(row->next_pos + (behind ? row->refused : 0)));
    check(((run->flags & SEGMENT_SAMPLE) != 0) == (last + 1 >= q->n_prompt));
    check(run->work == (last + 1 > q->n_prompt ? WORK_DECODE : WORK_PREFILL));
    row->id = q->id;
    check_rows(r, b, run, q);
    first = row->next_pos;
    if (run->n_draft) taken = fake_taken(&r->l, q->id, first, run->n_draft);
    r->fake->taken[b->lane][b->step % RUN_OUT][at].first = first;
    r->fake->taken[b->lane][b->step % RUN_OUT][at].n = taken;
    row->next_pos = first + taken;
    row->refused = run->n_tokens - taken;
    row->draft_lane = b->lane;
    row->draft_step = run->n_draft ? b->step : 0;
    last = row->next_pos - 1;
    if (run->enc_tokens > 0) {
        check(run->enc_tokens == q->n_source && (run->flags & SEGMENT_FIRST_CHUNK));
        for (uint32_t i = 0; i < run->enc_tokens; i++) {
            struct enc *e = &r->fake->enc[run->enc_token + i];

            read_from(r, b, &e->use);
            check(e->id == q->id && e->layers == r->l.n_enc_layers);
        }
    }
    for (uint32_t g = 0; g < r->c.n_groups; g++) {
        const struct kv_group *k = &r->c.group[g];

        if (k->kind == KV_CROSS) {
            for (uint32_t i = 0; i < run->enc_tokens; i++) fill(r, b, g, row, q, i);
            see(r, b, g, row, q, 0, q->n_source);
            continue;
        }
        for (uint32_t i = 0; i < taken; i++) fill(r, b, g, row, q, first + i);
        for (uint32_t i = taken; i < run->n_tokens; i++) spoil(r, b, g, row, first + i);
        for (uint32_t pos = first; pos <= last; pos++) {
            uint32_t from = k->kind == KV_WINDOW && pos >= k->window ? pos - k->window + 1 : 0;

            if (pos == first || pos == last) see(r, b, g, row, q, from, pos + 1);
        }
    }
}

static void
do_encode(struct sched_fixture *r, const struct batch *b, const struct batch_encode *c)
{
    const struct seq *q = scheduler_seq_at(r->s, c->slot);

    check(q && c->n_tokens == q->n_source && c->enc_token + c->n_tokens <= r->fake->n_enc);
    for (uint32_t i = 0; i < c->n_tokens; i++) {
        struct enc *e = &r->fake->enc[c->enc_token + i];

        write_to(r, b, &e->use);
        check(c->first_layer == 0 || (e->id == q->id && e->layers == c->first_layer));
        e->id = q->id;
        e->layers = c->first_layer + c->n_layers;
        check(b->token[c->first_token + i] == q->source[i]);
        check(b->pos[c->first_token + i] == (int32_t)i);
    }
}

static unsigned
may_do(const struct sched_fixture *r, unsigned lane)
{
    unsigned work = r->l.lane_work[lane];

    return r->divided && work & WORK_PREFILL ? work | WORK_DECODE : work;
}

const struct batch *
run_plan(struct sched_fixture *r, unsigned lane)
{
    struct batch *b = r->batch[lane][(r->planned[lane] + 1) % RUN_OUT];
    uint32_t row = 0, decoder = 0, logits = 0;
    bool taken[RUN_SLOTS] = { false };

    if (scheduler_plan(r->s, lane, r->now, b) == 0) return NULL;
    check(r->planned[lane] - r->done[lane] < RUN_OUT); /* else the batch is in use */
    check(b->lane == lane && b->step == r->planned[lane] + 1 && b->n_tokens > 0);
    if (r->launching) r->launching(r, b);
    r->planned[lane] = b->step;
    advance_clock(r, b);
    apply_edits(r, b);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *run = &b->segment[i];

        check(run->first_token == row && run->n_tokens > 0 && !taken[run->slot]);
        check(run->work & may_do(r, lane));
        taken[run->slot] = true;
        row += run->n_tokens;
        if (run->flags & (SEGMENT_SAMPLE | SEGMENT_PROMPT_LOGPROBS))
            check(run->first_logit == logits);
        if (run->flags & SEGMENT_PROMPT_LOGPROBS) {
            logits += run->n_tokens;
        } else if (run->flags & SEGMENT_SAMPLE) {
            logits += 1u + run->n_draft;
        }
        do_run(r, b, i);
    }
    decoder = row;
    check(decoder <= r->l.max_tokens && logits == b->n_logits);
    for (uint32_t i = 0; i < b->n_encode; i++) {
        check(b->encode[i].first_token == row && !taken[b->encode[i].slot]);
        check(r->l.lane_work[lane] & WORK_ENCODER);
        taken[b->encode[i].slot] = true;
        row += b->encode[i].n_tokens;
        do_encode(r, b, &b->encode[i]);
    }
    check(row == b->n_tokens && row - decoder <= r->l.max_enc_tokens);
    check(b->bucket == 0 || (decoder && b->bucket >= decoder));
    if (r->launched) r->launched(r, b);
    return b;
}

/* Candidates of a beam, best first: beams continue themselves, another beam, or end. */
static uint32_t
list_tops(const struct seq *q, uint32_t pos, struct batch_top *to)
{
    uint32_t n = beam_width(q->beam->n_beams, q->beam->n_end);

    check(n <= RUN_TOPS);
    for (uint32_t i = 0; i < n; i++)
        to[i] =
            (struct batch_top){ (fake_token(q->id + seq_member(q), pos) + (token_id)i * 7) % 1000,
                                -0.1f - (float)i * (float)(1 + (q->id + pos) % 4) / 3 };
    return n;
}

bool
run_commit(struct sched_fixture *r, unsigned lane)
{
    const struct batch *b = r->batch[lane][(r->done[lane] + 1) % RUN_OUT];
    struct batch_result res = { .lane = (uint8_t)lane, .status = r->failing ? -5 : 0 };
    uint8_t n_tokens[RUN_SLOTS] = { 0 };
    token_id token[RUN_SLOTS * (1 + MAX_DRAFT)];
    static struct batch_top top[RUN_SLOTS * RUN_TOPS];
    static uint32_t first_top[RUN_ROWS + 1];
    uint32_t n_tops = 0;

    if (r->planned[lane] == r->done[lane]) return false;
    for (uint32_t i = 0; i < b->n_waits; i++) /* the step cannot finish before them */
        while (r->done[b->wait[i].lane] < b->wait[i].step) check(run_commit(r, b->wait[i].lane));
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct seq *q = scheduler_seq_at(r->s, b->segment[i].slot);
        uint32_t first, n;

        if (!(b->segment[i].flags & SEGMENT_SAMPLE)) continue;
        if (b->segment[i].flags & SEGMENT_BEAM) {
            check(b->segment[i].first_logit < RUN_ROWS);
            first_top[b->segment[i].first_logit] = n_tops;
            n_tops += list_tops(q, (uint32_t)b->segment[i].first_pos, top + n_tops);
            first_top[b->segment[i].first_logit + 1] = n_tops;
            continue;
        }
        first = r->fake->taken[lane][b->step % RUN_OUT][i].first;
        n = r->fake->taken[lane][b->step % RUN_OUT][i].n;
        n_tokens[i] = (uint8_t)(b->segment[i].n_draft ? n : 1);
        for (uint32_t k = 0; k < n_tokens[i]; k++)
            token[i * (1 + MAX_DRAFT) + k] = fake_token(seq_name(q),
                                                        first + n - n_tokens[i] + 1 + k);
    }
    if (r->failing) unwrite_all(r, b);
    res.step = b->step;
    res.n_tokens = n_tokens;
    res.token = token;
    res.top = top;
    res.first_top = first_top;
    r->done[lane] = b->step;
    if (r->finishing) r->finishing(r, b);
    scheduler_commit(r->s, b, &res, r->now);
    return true;
}

const struct batch *
run_step(struct sched_fixture *r, unsigned lane)
{
    const struct batch *b = run_plan(r, lane);

    if (b) check(run_commit(r, lane));
    return b;
}

uint32_t
run_used(const struct sched_fixture *r)
{
    uint32_t used = 0;

    for (uint32_t p = 0; p < kv_n_pools(r->kv); p++) {
        struct kv_count n;

        kv_count(r->kv, p, &n);
        used += n.used;
    }
    return used;
}

bool
in_batch(const struct batch *b, const struct seq *q)
{
    for (uint32_t i = 0; b && i < b->n_segments; i++)
        if (b->segment[i].slot == q->slot) return true;
    for (uint32_t i = 0; b && i < b->n_encode; i++)
        if (b->encode[i].slot == q->slot) return true;
    return false;
}
