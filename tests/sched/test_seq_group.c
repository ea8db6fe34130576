/* test_seq_group.c - beams and samples on a fake device that computes from its tables: the next
 * token depends on every token whose K and V a query attends to. One missing, extra or foreign
 * block changes the output.
 */
#include "tests/test.h"
#include "worker/kv/kv_need.h"
#include "worker/sched/scheduler.h"

#include "include/lagan_wire.h"

enum { SLOTS = 24, ENTRIES = 40, MAX_BLOCK = 16, UNITS = 4096, UNIT = 128, VOCAB = 50, WINDOW = 6 };
enum { MAX_LEN = 100, SEQ_GROUP = 8, OUT = 2, LAYERS = 2, NO_GROUP = MAX_GROUPS };

struct group_fixture {
    struct kv_config c;
    uint32_t units; /* blocks of the arena; 0: the maximum */
    bool reuse;
    uint32_t block; /* tokens per block; 0: 4 */
    uint32_t sinks; /* of the window group */
    bool has_state; /* a group of LAYERS recurrent states; snapshots each `interval` positions */
    uint32_t interval, state_group; /* NO_GROUP: none */
    struct scheduler_limits l;
    void *mem;
    struct kv *kv;
    struct scheduler *s;
    struct batch *batch[OUT];
    uint64_t planned, done;
    nsec now;

    slice_id at[MAX_GROUPS][SLOTS][ENTRIES];
    token_id holds[UNITS][MAX_BLOCK]; /* token whose K and V are at that position; -1: none */
    uint64_t recurrent[UNITS];        /* hash of the tokens that a block of state has read */
    token_id last[SLOTS];
    token_id drawn[OUT][SLOTS]; /* sampled token by segment */
    struct batch_top top[SLOTS * 128];
    uint32_t first_top[SLOTS + 1];
};

struct seq_group {
    struct seq seq[SEQ_GROUP];
    token_id token[SEQ_GROUP][MAX_LEN], done_token[SEQ_GROUP][MAX_LEN], source[16];
    float total[SEQ_GROUP][MAX_LEN], done_total[SEQ_GROUP][MAX_LEN];
    uint8_t row_slot[SEQ_GROUP][MAX_LEN], done_row_slot[SEQ_GROUP][MAX_LEN];
    struct beam beam;
    uint32_t n, n_back; /* members; members that were reaped */
};

static uint64_t
mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 29;
}

static void
open_fixture(struct group_fixture *b)
{
    struct err e;

    b->planned = b->done = 0;
    b->now = 0;
    if (!b->block) b->block = 4;
    memset(b->at, 0xff, sizeof b->at);
    memset(b->holds, 0xff, sizeof b->holds);
    b->c = (struct kv_config){ .n_groups = 2,
                               .n_slots = SLOTS,
                               .n_lanes = 1,
                               .tokens_per_block = b->block,
                               .reuse = b->reuse,
                               .copy_partial = b->reuse,
                               .arena_bytes = (uint64_t)(b->units ? b->units : UNITS) * UNIT };
    b->c.group[0] = (struct kv_group){ .kind = KV_FULL };
    b->c.group[1] = (struct kv_group){ .kind = KV_WINDOW, .window = WINDOW, .sinks = b->sinks };
    if (b->l.n_enc_layers) b->c.group[b->c.n_groups++] = (struct kv_group){ .kind = KV_CROSS };
    b->state_group = b->has_state ? b->c.n_groups++ : NO_GROUP;
    if (b->has_state)
        b->c.group[b->state_group] = (struct kv_group){ .kind = KV_STATE, .interval = b->interval };
    for (uint32_t g = 0; g < b->c.n_groups; g++) {
        b->c.group[g].n_layers = g == b->state_group ? LAYERS : 1;
        b->c.group[g].n_parts = 1;
        b->c.group[g].slice_bytes = UNIT;
        b->c.group[g].max_entries = ENTRIES;
    }
    b->c.slab_bytes = 4 * UNIT;
    b->mem = calloc(1, kv_bytes(&b->c));
    b->kv = kv_init(b->mem, &b->c, &e);
    assert_non_null(b->kv);
    assert_int_equal(scheduler_new(&b->s, &b->l, b->kv, &e), 0);
    for (int i = 0; i < OUT; i++) assert_non_null(b->batch[i] = scheduler_batch(b->s));
}

static void
close_fixture(struct group_fixture *b)
{
    scheduler_check(b->s);
    for (uint32_t p = 0; p < kv_n_pools(b->kv); p++) {
        struct kv_count n;

        kv_count(b->kv, p, &n);
        assert_int_equal(n.used, 0);
    }
    scheduler_free(b->s);
    for (int i = 0; i < OUT; i++) batch_free(b->batch[i]);
    free(b->mem);
    b->mem = NULL;
}

static token_id *
held(struct group_fixture *b, uint32_t group, uint32_t slot, uint32_t pos)
{
    slice_id at = b->at[group][slot][pos / b->block];

    check(at < UNITS);
    return &b->holds[at][pos % b->block];
}

/* Hash of all tokens that the query at pos attends to. */
static uint64_t
attend(struct group_fixture *b, const struct batch_segment *run, uint32_t pos)
{
    uint64_t h = 1;

    for (uint32_t i = 0; i <= pos; i++) h = mix(h, (uint64_t)*held(b, 0, run->slot, i));
    for (uint32_t l = 0; l < LAYERS && b->has_state; l++)
        check(b->recurrent[b->at[b->state_group][run->slot][l]] == h);
    for (uint32_t i = 0; i <= pos; i++)
        check((i >= b->sinks && i + WINDOW <= pos) ||
              *held(b, 1, run->slot, i) == *held(b, 0, run->slot, i));
    for (uint32_t i = 0; i < run->cross_tokens; i++)
        h = mix(h, (uint64_t)*held(b, 2, run->slot, i));
    return h;
}

static void
copy(struct group_fixture *b, const struct batch *p, bool after)
{
    for (const struct kv_copy *c = p->copy; c < p->copy + p->n_copies; c++) {
        if (c->after != after) continue;
        check(c->n_tokens <= b->block && (c->group == b->state_group) == (c->n_tokens == 0));
        memset(b->holds[c->to], 0xff, sizeof b->holds[0]);
        memcpy(b->holds[c->to], b->holds[c->from], c->n_tokens * sizeof(token_id));
        b->recurrent[c->to] = b->recurrent[c->from];
    }
}

/* Advances the state of the segment's slot by the token at pos. */
static void
advance(struct group_fixture *b, const struct batch_segment *run, uint32_t pos, token_id t)
{
    for (uint32_t l = 0; l < LAYERS && b->has_state; l++) {
        uint64_t *h = &b->recurrent[b->at[b->state_group][run->slot][l]];

        *h = mix(pos ? *h : 1, (uint64_t)t);
    }
}

static void
apply(struct group_fixture *b, const struct batch *p)
{
    for (uint32_t i = 0; i < p->n_edits; i++) {
        const struct kv_edit *e = &p->edit[i];

        if (e->op == EDIT_CLEAR) {
            for (uint32_t g = 0; g < b->c.n_groups; g++)
                memset(b->at[g][e->slot], 0xff, sizeof b->at[g][0]);
        } else {
            check(e->op == EDIT_SET);
            b->at[e->group][e->slot][e->entry] = e->at;
        }
    }
    copy(b, p, /* after= */ false);
}

static token_id
best_of(uint64_t h)
{
    return (token_id)(mix(h, 77) % VOCAB);
}

/* The candidates of a beam: the whole vocabulary in an order that depends on its tokens. */
static void
list_of(struct batch_top *top, uint64_t h, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        top[i] = i < VOCAB ? (struct batch_top){ (token_id)((h % 7919 + 7 * i) % VOCAB),
                                                 -0.1f - (float)i * (0.3f + (float)(h % 11) / 8) }
                           : (struct batch_top){ -1, 0 };
}

/* A replacement worker would resume at the committed position: the window before it must exist. A
 * search that has forked has one step in flight, and resumes where that one is planned. */
static void
check_window(const struct group_fixture *b, const struct batch *p)
{
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct seq *q = scheduler_seq_at(b->s, p->segment[i].slot);
        uint32_t first;

        kv_held(b->kv, q->slot, 1, &first);
        check(first <= kv_kind_first(&b->c.group[1], b->block, q->n_done));
    }
}

/* Plans a step and executes it; results are committed later. */
static const struct batch *
plan(struct group_fixture *b)
{
    struct batch *p = b->batch[(b->planned + 1) % OUT];

    if (scheduler_plan(b->s, 0, b->now, p) == 0) return NULL;
    b->planned++;
    check_window(b, p);
    apply(b, p);
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct batch_segment *r = &p->segment[i];
        const struct seq *q = scheduler_seq_at(b->s, r->slot);

        if (r->enc_tokens)
            for (uint32_t k = 0; k < r->enc_tokens; k++) *held(b, 2, r->slot, k) = q->source[k];
        check(!(r->flags & SEGMENT_BEAM) || i + 1 == p->n_segments || !q->next_member ||
              p->segment[i + 1].slot == q->next_member->slot); /* neighbours */
        check(!(r->flags & SEGMENT_SAME_SOURCE) ||
              (q->beam && i && scheduler_seq_at(b->s, p->segment[i - 1].slot)->next_member == q));
        for (uint32_t k = 0; k < r->n_tokens; k++) {
            token_id t = p->token[r->first_token + k];

            if (t == TOKEN_FROM_LAST) t = b->last[r->slot];
            check(!q->plan_after_commit || p->token[r->first_token + k] >= 0);
            for (uint32_t g = 0; g < 2; g++) *held(b, g, r->slot, (uint32_t)r->first_pos + k) = t;
            advance(b, r, (uint32_t)r->first_pos + k, t);
        }
    }
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct batch_segment *r = &p->segment[i];
        const struct seq *q = scheduler_seq_at(b->s, r->slot);
        uint64_t h;

        if (!(r->flags & SEGMENT_SAMPLE)) continue;
        h = attend(b, r, (uint32_t)r->first_pos + r->n_tokens - 1);
        if (!q->beam) h = mix(h, (uint64_t)(uintptr_t)q->owner); /* the sample's index */
        b->last[r->slot] = b->drawn[b->planned % OUT][i] = best_of(h);
    }
    copy(b, p, /* after= */ true);
    return p;
}

static void
commit(struct group_fixture *b)
{
    const struct batch *p = b->batch[++b->done % OUT];
    uint8_t n_tokens[SLOTS];
    token_id token[SLOTS * (1 + MAX_DRAFT)];
    struct batch_result r = { .step = b->done,
                              .n_tokens = n_tokens,
                              .token = token,
                              .first_top = b->first_top,
                              .top = b->top };
    uint32_t at = 0;

    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct batch_segment *run = &p->segment[i];
        const struct seq *q = scheduler_seq_at(b->s, run->slot);
        uint32_t wide = run->flags & SEGMENT_BEAM ? beam_width(q->beam->n_beams, q->beam->n_end)
                                                  : 0;

        n_tokens[i] = run->flags & SEGMENT_SAMPLE ? 1 : 0;
        token[i * (1 + MAX_DRAFT)] = b->drawn[b->done % OUT][i];
        if (!n_tokens[i]) continue;
        b->first_top[run->first_logit] = at;
        if (wide) list_of(b->top + at, attend(b, run, (uint32_t)run->first_pos), wide);
        at += wide;
        check(at <= ARRAY_LEN(b->top));
        b->first_top[run->first_logit + 1] = at;
    }
    scheduler_commit(b->s, p, &r, b->now);
    scheduler_check(b->s);
}

static struct seq_group *
seq_group_new(req_id id, uint32_t n, bool beams, uint32_t n_prompt, uint32_t max_new,
              uint32_t n_source)
{
    struct seq_group *f = calloc(1, sizeof *f);

    f->n = n;
    f->beam = (struct beam){ .n_beams = n,
                             .max_new = max_new,
                             .length_penalty = 1,
                             .first = n_prompt,
                             .n_end = 1,
                             .n_eos = 1,
                             .end_id = f->seq[0].end_id };
    for (uint32_t i = 0; i < n_source; i++) f->source[i] = (token_id)(id % 13 + i);
    for (uint32_t i = 0; i < n; i++) {
        struct seq *q = &f->seq[i];

        *q = (struct seq){ .id = id,
                           .source = n_source ? f->source : NULL,
                           .n_source = n_source,
                           .token = f->token[i],
                           .cap = MAX_LEN,
                           .n_prompt = n_prompt,
                           .max_new = max_new,
                           .n_end = 1,
                           .n_eos = 1,
                           .end_id = { 13 },
                           .priority = 0.5f,
                           .deadline = NSEC_NEVER,
                           .owner = (void *)(uintptr_t)(1000 * id + i) };
        for (uint32_t k = 0; k < n_prompt; k++)
            f->token[i][k] = (token_id)((id % 6 * 7 + k * 3) % VOCAB); /* some prompts are equal */
        if (n == 1) continue;
        q->first_member = f->seq;
        q->next_member = i + 1 < n ? q + 1 : NULL;
        f->beam.line[i] = f->token[i];
        f->beam.done_token[i] = f->done_token[i];
        f->beam.total[i] = f->total[i];
        f->beam.done_total[i] = f->done_total[i];
        f->beam.row_slot[i] = f->row_slot[i];
        f->beam.done_row_slot[i] = f->done_row_slot[i];
        if (beams) q->beam = &f->beam;
        q->plan_after_commit = beams;
    }
    f->seq[0].n_members = n > 1 ? n : 0;
    f->seq[0].n_shared = n_prompt - 1;
    if (beams && n > 1) beam_start(&f->beam, 0, 0);
    return f;
}

/* Compares the outputs with a run directly on tokens. */
static void
check_seq_group(const struct seq_group *f)
{
    const struct seq *first = &f->seq[0];
    static token_id line[SEQ_GROUP][MAX_LEN], done_token[SEQ_GROUP][MAX_LEN];
    static float total[SEQ_GROUP][MAX_LEN], done_total[SEQ_GROUP][MAX_LEN];
    static uint8_t row_slot[SEQ_GROUP][MAX_LEN], done_row_slot[SEQ_GROUP][MAX_LEN];
    static struct batch_top top[SEQ_GROUP][128];
    struct beam b = f->beam;

    for (uint32_t i = 0; i < f->n; i++) {
        memcpy(line[i], f->token[i], b.first * sizeof(token_id));
        for (uint32_t n = b.first; !first->beam && n < f->seq[i].n_tokens; n++) {
            uint64_t h = 1;

            for (uint32_t k = 0; k < n; k++) h = mix(h, (uint64_t)f->token[i][k]);
            for (uint32_t k = 0; k < first->n_source; k++) h = mix(h, (uint64_t)f->source[k]);
            assert_int_equal(f->token[i][n], best_of(mix(h, (uint64_t)(uintptr_t)f->seq[i].owner)));
        }
        b.line[i] = line[i];
        b.done_token[i] = done_token[i];
        b.total[i] = total[i];
        b.done_total[i] = done_total[i];
        b.row_slot[i] = row_slot[i];
        b.done_row_slot[i] = done_row_slot[i];
    }
    if (!first->beam) return;
    beam_start(&b, 0, 0);
    while (!b.over) {
        struct beam_list list[SEQ_GROUP];

        for (uint32_t i = 0; i < f->n; i++) {
            uint64_t h = 1;

            for (uint32_t k = 0; k < b.first + b.n_new; k++) h = mix(h, (uint64_t)line[i][k]);
            for (uint32_t k = 0; k < first->n_source; k++) h = mix(h, (uint64_t)f->source[k]);
            list[i] = (struct beam_list){ top[i], beam_width(f->n, 1) };
            list_of(top[i], h, list[i].n);
        }
        beam_decide(&b, list);
        beam_advance(&b);
    }
    for (uint32_t i = 0; i < f->n; i++) {
        struct beam_done want = beam_result(&b, i), got = beam_result(&f->beam, i);

        assert_int_equal(got.n, want.n);
        assert_true(got.score == want.score);
        assert_memory_equal(got.token, want.token, want.n * sizeof(token_id));
    }
}

static struct {
    uint32_t preemptions, searches,
        apart; /* preempted searches, and those that had forked by then */
} seen;

static void
take_back(struct group_fixture *b, struct seq_group **f, uint32_t n, uint32_t *left)
{
    struct seq *q;

    while ((q = scheduler_reap(b->s))) {
        for (uint32_t i = 0; i < n; i++) {
            if (!f[i] || q < f[i]->seq || q >= f[i]->seq + SEQ_GROUP) continue;
            seen.preemptions += q->n_preemptions;
            if (++f[i]->n_back < f[i]->n) break;
            if (f[i]->seq[0].beam) {
                seen.searches += f[i]->seq[0].n_preemptions;
                seen.apart += f[i]->seq[0].n_shared + 1 < f[i]->seq[0].n_prompt;
            }
            if (f[i]->seq[0].reason < LAGAN_FINISH_CANCELLED) check_seq_group(f[i]);
            free(f[i]);
            f[i] = NULL;
            --*left;
        }
    }
}

/* Draws groups besides full and window: sinks of the window, recurrent state. */
static void
draw_groups(struct group_fixture *b)
{
    b->sinks = test_below(2) ? 1 + test_below(9) : 0;
    b->has_state = test_below(2);
    b->interval = 16 * test_below(3);
    b->block = test_below(2) ? 4 : 16; /* below and above the window */
}

/* Mixed requests at once, some cancelled, expired or suspended for a while, with steps planned
 * ahead. */
static void
run_many(struct group_fixture *b, bool sources, enum policy policy, uint32_t max_tokens,
         uint32_t slots)
{
    enum { N = 60 };
    struct seq_group *f[N] = { NULL };
    uint32_t left = N, iterations = 0;
    struct err e;

    b->l = (struct scheduler_limits){
        .policy = policy,
        .max_seqs = slots,
        .max_tokens = max_tokens,
        .max_len = MAX_LEN,
        .n_lanes = 1,
        .lane_work = { WORK_ENCODER | WORK_PREFILL | WORK_DECODE },
        .n_enc_layers = sources ? 2 : 0,
        .max_enc_tokens = sources ? 24 : 0,
        .beam_tokens = test_below(2) ? test_below(30) : 0,
    };
    b->reuse = test_below(2);
    open_fixture(b);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t n = test_below(3) ? 1 + test_below(MIN(slots, (uint32_t)SEQ_GROUP)) : 1;

        f[i] = seq_group_new(i + 1, n, test_below(2), 1 + test_below(test_below(2) ? 3 : 30),
                             1 + test_below(20), sources ? 1 + test_below(12) : 0);
        if (test_below(8) == 0)
            for (uint32_t k = 0; k < n; k++) f[i]->seq[k].deadline = (nsec)test_below(90);
        if (scheduler_add(b->s, f[i]->seq, b->now, &e) < 0) {
            assert_true(b->units); /* refused only with few blocks */
            free(TAKE(f[i]));
            left--;
        }
        if (test_below(9) == 0) scheduler_suspend(b->s, 1 + test_below(i + 1), true);
        for (uint32_t k = test_below(4); k > 0; k--) {
            if (b->planned - b->done < OUT && plan(b)) continue;
            if (b->done < b->planned) commit(b);
        }
        if (test_below(9) == 0) scheduler_cancel(b->s, 1 + test_below(i + 1), LAGAN_E_CANCELLED);
        take_back(b, f, N, &left);
        b->now++;
    }
    for (uint32_t i = 0; i < N; i++) scheduler_suspend(b->s, i + 1, false);
    while (left > 0) {
        bool busy = b->planned - b->done < OUT && test_below(3) && plan(b);

        if (!busy && b->done < b->planned) commit(b);
        take_back(b, f, N, &left);
        b->now++;
        assert_true(++iterations < 20000);
    }
    close_fixture(b);
}

static void
beams_samples_and_single_sequences_keep_their_tokens(void **state)
{
    static struct group_fixture b;

    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        static const enum policy policies[] = { POLICY_NO_EVICT, POLICY_MAX_UTILIZATION,
                                                POLICY_STATIC };
        uint32_t slots = 8 + test_below(SLOTS - 7);

        draw_groups(&b);
        run_many(&b, i % 2, policies[i % 3], slots + test_below(30), slots);
    }
}

/* The step that computes the end of the shared prompt is in flight. */
static void
forking_group_keeps_the_window_that_a_replacement_needs(void **state)
{
    static struct group_fixture b;

    (void)state;
    for (uint32_t beams = 0; beams < 2; beams++) {
        struct seq_group *f = seq_group_new(1, 3, beams, 31, 6, 0);
        uint32_t left = 1;
        bool ahead = false;
        struct err e;

        b.l = (struct scheduler_limits){ .max_seqs = 3,
                                         .max_tokens = 9,
                                         .max_len = MAX_LEN,
                                         .n_lanes = 1,
                                         .lane_work = { WORK_PREFILL | WORK_DECODE } };
        open_fixture(&b);
        assert_int_equal(scheduler_add(b.s, f->seq, 0, &e), 0);
        while (left > 0) {
            while (b.planned - b.done < OUT && plan(&b)) continue; /* plan() checks the window */
            ahead = ahead || (f->seq[1].has_forked && f->seq[0].n_done < f->seq[0].n_shared);
            commit(&b);
            take_back(&b, &f, 1, &left);
        }
        assert_true(ahead);
        close_fixture(&b);
    }
}

static void
preempted_beams_and_samples_resume_with_the_same_tokens(void **state)
{
    static struct group_fixture b;

    (void)state;
    memset(&seen, 0, sizeof seen);
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t slots = 8 + test_below(SLOTS - 7);

        b.units = 100 + test_below(160);
        draw_groups(&b);
        run_many(&b, i % 2, i % 8 ? POLICY_MAX_UTILIZATION : POLICY_NO_EVICT,
                 slots + test_below(30), slots);
    }
    assert_true(seen.preemptions > 500 && seen.searches > 50 && seen.apart > 20);
}

/* A new process: only the table rows of the search are left. */
static void
next_life(struct group_fixture *b, struct seq_group *f)
{
    static slice_id entry[SEQ_GROUP][MAX_GROUPS][ENTRIES];
    uint32_t len = f->beam.first + f->beam.n_new, written = len - 1, slot[SEQ_GROUP];
    struct err e;

    for (uint32_t i = 0; i < f->n; i++) slot[i] = f->seq[i].slot;
    for (uint32_t i = 0; i < f->n; i++)
        for (uint32_t g = 0; g < 2; g++) {
            memcpy(entry[i][g], b->at[g][slot[i]], sizeof entry[i][g]);
            for (uint32_t k = CEIL_DIV(b->sinks, b->block);
                 g == 1 && k < (written - WINDOW) / b->block; k++)
                entry[i][g][k] = SLICE_NONE;
        }
    scheduler_free(b->s);
    memset(b->mem, 0, kv_bytes(&b->c));
    b->kv = kv_init(b->mem, &b->c, &e);
    assert_non_null(b->kv);
    for (uint32_t i = 0; i < f->n; i++) {
        const struct kv_entry_found row = { .id = f->seq[i].id,
                                            .slot = slot[i],
                                            .committed = written,
                                            .entry = { entry[i][0], entry[i][1] },
                                            .n_entries = { CEIL_DIV(written, b->block),
                                                           CEIL_DIV(written, b->block) } };
        struct seq q = f->seq[i];

        assert_int_equal(kv_adopt(b->kv, &row), 0);
        f->seq[i] = (struct seq){ .id = q.id,
                                  .token = q.token,
                                  .cap = MAX_LEN,
                                  .n_prompt = len,
                                  .max_new = f->beam.max_new - f->beam.n_new,
                                  .n_end = 1,
                                  .n_eos = 1,
                                  .end_id = { 13 },
                                  .priority = 0.5f,
                                  .deadline = NSEC_NEVER,
                                  .owner = q.owner,
                                  .beam = q.beam,
                                  .plan_after_commit = true,
                                  .first_member = f->seq,
                                  .next_member = q.next_member,
                                  .n_adopted = written,
                                  .adopted_slot = slot[i] };
    }
    f->seq[0].n_members = f->n;
    f->seq[0].n_shared = written;
    kv_adopt_end(b->kv);
    assert_int_equal(scheduler_new(&b->s, &b->l, b->kv, &e), 0);
    b->planned = b->done = 0;
}

static void
adopted_and_preempted_search_shares_only_the_common_prefix(void **state)
{
    static struct group_fixture b;

    (void)state;
    memset(&seen, 0, sizeof seen);
    for (uint32_t i = 0; i < 200; i++) {
        struct seq_group *all[2] = { seq_group_new(2, 3, true, 6, 30, 0),
                                     seq_group_new(1, 1, false, 5, 60, 0) };
        uint32_t left = 2, steps = 4 + test_below(18), iterations = 0;
        struct err e;

        b.sinks = test_below(2) * 5;
        b.units = 36 + test_below(20) + (b.sinks ? 8 : 0);
        b.l = (struct scheduler_limits){ .policy = POLICY_MAX_UTILIZATION,
                                         .max_seqs = 8,
                                         .max_tokens = 16,
                                         .max_len = MAX_LEN,
                                         .n_lanes = 1,
                                         .lane_work = { WORK_PREFILL | WORK_DECODE } };
        open_fixture(&b);
        assert_int_equal(scheduler_add(b.s, all[0]->seq, 0, &e), 0);
        for (uint32_t k = 0; k < steps && plan(&b); k++) commit(&b);
        if (!all[0]->beam.over && all[0]->beam.n_new > WINDOW) next_life(&b, all[0]);
        assert_int_equal(scheduler_add(b.s, all[1]->seq, 0, &e), 0);
        if (!b.planned) assert_int_equal(scheduler_add(b.s, all[0]->seq, 0, &e), 0);
        while (left > 0) {
            if (b.planned - b.done < OUT) plan(&b);
            if (b.done < b.planned) commit(&b);
            take_back(&b, all, 2, &left);
            b.now++;
            assert_true(++iterations < 5000);
        }
        close_fixture(&b);
    }
    assert_true(seen.searches > 20 && seen.apart > 10);
}

static void
group_is_admitted_whole_waits_or_is_refused(void **state)
{
    static struct group_fixture b;
    struct seq_group *f = seq_group_new(1, 6, true, 10, 10, 0),
                     *g = seq_group_new(2, 6, true, 10, 10, 0);
    struct seq_group *much = seq_group_new(3, 8, true, 10, 10, 0);
    struct seq_group *all[2] = { f, g };
    uint32_t left = 2;
    const struct batch *p;
    struct err e;

    (void)state;
    b.l = (struct scheduler_limits){ .max_seqs = 7,
                                     .max_tokens = 16,
                                     .max_len = MAX_LEN,
                                     .n_lanes = 1,
                                     .lane_work = { WORK_PREFILL | WORK_DECODE } };
    open_fixture(&b);
    assert_int_equal(scheduler_add(b.s, much->seq, 0, &e), -EMSGSIZE);
    assert_non_null(strstr(e.text, "8 beams or outputs"));
    assert_int_equal(scheduler_add(b.s, f->seq, 0, &e), 0);
    assert_int_equal(scheduler_add(b.s, g->seq, 0, &e), 0);
    p = plan(&b);
    assert_int_equal(p->n_segments, 1); /* the shared prompt, once */
    assert_int_equal(p->segment[0].n_tokens, 9);
    p = plan(&b);
    assert_int_equal(p->n_segments, 6);
    assert_int_equal(p->n_logits, 6);
    assert_null(plan(&b)); /* the other group has no slots, this one waits for its result */
    assert_int_equal(scheduler_counts(b.s).running, 6);
    assert_int_equal(scheduler_counts(b.s).waiting, 1);
    while (left > 0) {
        if (b.done == b.planned) assert_non_null(plan(&b));
        commit(&b);
        take_back(&b, all, 2, &left);
    }
    free(much);
    close_fixture(&b);
}

/* Two searches of three beams, the second added while a step of the first is in flight, and
 * optionally a stream. Returns the largest number of segments in a step. Two steps are in flight
 * whenever there are two. */
static uint32_t
most_runs(uint32_t beam_tokens, bool stream)
{
    static struct group_fixture b;
    struct seq_group *all[3] = { seq_group_new(1, 3, true, 1, 30, 0),
                                 seq_group_new(2, 3, true, 1, 30, 0),
                                 stream ? seq_group_new(3, 1, false, 1, 90, 0) : NULL };
    uint32_t left = 2 + stream, most = 0;
    struct err e;

    b.l = (struct scheduler_limits){ .max_seqs = 8,
                                     .max_tokens = 16,
                                     .max_len = MAX_LEN,
                                     .n_lanes = 1,
                                     .lane_work = { WORK_PREFILL | WORK_DECODE },
                                     .beam_tokens = beam_tokens };
    open_fixture(&b);
    assert_int_equal(scheduler_add(b.s, all[0]->seq, 0, &e), 0);
    if (stream) all[2]->seq[0].n_end = all[2]->seq[0].n_eos = 0;
    if (stream) assert_int_equal(scheduler_add(b.s, all[2]->seq, 0, &e), 0);
    do {
        if (b.planned - b.done == OUT || !plan(&b)) commit(&b);
    } while (b.planned < 6 || b.batch[b.planned % OUT]->n_segments < 3);
    assert_int_equal(scheduler_add(b.s, all[1]->seq, 0, &e), 0);
    while (left > 0) {
        const struct batch *p = b.planned - b.done < OUT ? plan(&b) : NULL;

        if (p) most = MAX(most, p->n_segments);
        if (!p) commit(&b);
        take_back(&b, all, ARRAY_LEN(all), &left);
    }
    close_fixture(&b);
    return most;
}

static void
few_searches_without_streams_merge_into_one_step(void **state)
{
    (void)state;
    assert_int_equal(most_runs(6, false), 6);
    assert_int_equal(most_runs(5, false), 3);
    assert_int_equal(most_runs(0, false), 3);
    assert_int_equal(most_runs(6, true), 4);
}

static void
adopted_search_never_exceeds_max_num_seqs(void **state)
{
    static struct group_fixture b;
    struct seq_group *all[2] = { seq_group_new(2, 3, true, 6, 30, 0),
                                 seq_group_new(1, 1, false, 5, 60, 0) };
    uint32_t left = 1;
    struct err e;

    (void)state;
    b.units = 0;
    b.reuse = false;
    b.l = (struct scheduler_limits){ .max_seqs = 3,
                                     .max_tokens = 16,
                                     .max_len = MAX_LEN,
                                     .n_lanes = 1,
                                     .lane_work = { WORK_PREFILL | WORK_DECODE } };
    open_fixture(&b);
    for (uint32_t k = 0; k < 3; k++) all[0]->seq[k].n_end = all[0]->seq[k].n_eos = 0;
    all[0]->beam.n_end = all[0]->beam.n_eos = 0;
    assert_int_equal(scheduler_add(b.s, all[0]->seq, 0, &e), 0);
    while (all[0]->beam.n_new <= WINDOW) {
        plan(&b);
        commit(&b);
    }
    next_life(&b, all[0]);
    assert_int_equal(scheduler_add(b.s, all[1]->seq, 0, &e), 0);
    assert_non_null(plan(&b)); /* 1 of 3 sequences runs */
    assert_int_equal(scheduler_add(b.s, all[0]->seq, 0, &e), -EAGAIN);
    assert_int_equal(scheduler_counts(b.s).running, 1);
    scheduler_cancel(b.s, 1, LAGAN_E_CANCELLED);
    commit(&b);
    take_back(&b, &all[1], 1, &left);
    assert_int_equal(left, 0);
    free(all[0]);
    close_fixture(&b);
}

/* Runs one request to its end; the caller frees it. Returns the cached positions of its prompt. */
static uint32_t
run_alone(struct group_fixture *b, struct seq_group *f)
{
    struct err e;

    assert_int_equal(scheduler_add(b->s, f->seq, b->now, &e), 0);
    for (uint32_t n = 0; n < f->n;) {
        if (b->planned == b->done) assert_non_null(plan(b));
        commit(b);
        while (scheduler_reap(b->s)) n++;
    }
    return f->seq[0].n_cached;
}

/* Opens a fixture with reuse in which single requests run one after the other. */
static void
open_reuse(struct group_fixture *b, bool sources)
{
    b->units = 0;
    b->reuse = true;
    b->l = (struct scheduler_limits){ .max_seqs = 8,
                                      .max_tokens = 64,
                                      .max_len = MAX_LEN,
                                      .n_lanes = 1,
                                      .lane_work = { WORK_ENCODER | WORK_PREFILL | WORK_DECODE },
                                      .n_enc_layers = sources ? 2 : 0,
                                      .max_enc_tokens = sources ? 24 : 0 };
    open_fixture(b);
}

/* A prompt of one token, as usual for encoder-decoder models: no position is shared. */
static void
encoder_input_of_beams_and_samples_is_encoded_once(void **state)
{
    static struct group_fixture b;

    (void)state;
    for (uint32_t beams = 0; beams < 2; beams++) {
        struct kv_stats cross;

        open_reuse(&b, true);
        for (uint32_t i = 0; i < 3; i++) {
            struct seq_group *f = seq_group_new(14, i ? 3 : 4, beams, 1, 6, 11);

            run_alone(&b, f);
            check_seq_group(f);
            free(f);
        }
        kv_stats(b.kv, 2, &cross);
        assert_int_equal(cross.missed, 3);
        assert_int_equal(cross.shared, 6);
        close_fixture(&b);
    }
}

static void
later_prompt_finds_the_outputs_of_beams_and_samples(void **state)
{
    static struct group_fixture b;

    (void)state;
    for (uint32_t beams = 0; beams < 2; beams++)
        for (uint32_t i = 0; i < 3; i++) {
            struct seq_group *f = seq_group_new(1, 3, beams, 10, 21, 0), *next;
            const token_id *output = f->token[i];
            uint32_t n;

            open_reuse(&b, false);
            for (uint32_t k = 0; k < 3; k++)
                f->seq[k].n_end = f->seq[k].n_eos = f->beam.n_end = f->beam.n_eos = 0;
            run_alone(&b, f);
            n = f->seq[i].n_tokens;
            if (beams) n = 10 + beam_result(&f->beam, i).n;
            next = seq_group_new(1, 1, false, n + 2, 5, 0);
            if (beams)
                memcpy(next->token[0] + 10, beam_result(&f->beam, i).token, 21 * sizeof(int));
            if (!beams) memcpy(next->token[0], output, n * sizeof *output);
            assert_int_equal(n, 31);
            /* 30 positions are computed; the last block of a beam is not full, so not stored */
            assert_int_equal(run_alone(&b, next), beams ? 28 : 30);
            check_seq_group(next);
            free(next);
            free(f);
            close_fixture(&b);
        }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beams_samples_and_single_sequences_keep_their_tokens),
        cmocka_unit_test(forking_group_keeps_the_window_that_a_replacement_needs),
        cmocka_unit_test(preempted_beams_and_samples_resume_with_the_same_tokens),
        cmocka_unit_test(adopted_and_preempted_search_shares_only_the_common_prefix),
        cmocka_unit_test(group_is_admitted_whole_waits_or_is_refused),
        cmocka_unit_test(few_searches_without_streams_merge_into_one_step),
        cmocka_unit_test(adopted_search_never_exceeds_max_num_seqs),
        cmocka_unit_test(encoder_input_of_beams_and_samples_is_encoded_once),
        cmocka_unit_test(later_prompt_finds_the_outputs_of_beams_and_samples),
    };

    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
