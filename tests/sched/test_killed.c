/* test_killed.c - a worker killed between any two stores into its manifest, and its replacement.
 *
 * The scheduler runs on the device of sched_harness.c, with the manifest written around each launch
 * as in the engine. At every store a replacement inspects a copy: what it would adopt must be what
 * the device holds, and all reported tokens must be continuable. Then some stores are the last: the
 * process is gone, the next one adopts, every request is submitted again with its reported tokens,
 * and the device checks each step. The same search must find each planted mistake in the order of
 * publication.
 */
#include "tests/sched/sched_harness.h"
#include "tests/test.h"

#include "base/failpoint.h"
#include "worker/kv/kv_need.h"
#include "worker/manifest/manifest.h"

enum { SLOTS = 5, ENTRIES = 64, JOBS = 24, BLOCK = 4, EDITS = 1024 };
enum mistake { NONE, LAUNCH_LATE, DROPS_LATE, ENDS_LATE, COMMIT_EARLY, LABELS_LATE, N_MISTAKES };
/* Shapes of a run, as bits. */
enum {
    WINDOW = 1,
    LANES = 2,
    CROSS = 4,
    TIGHT = 8,
    REUSE = 16,
    HOST = 32,
    TINY = 64,
    STEPWISE = 128, /* blocks are reserved step by step */
    SHAPES = 16
};

struct job {
    struct seq *q;    /* NULL: not in the scheduler */
    struct seq *text; /* the complete request, for lookups */
    req_id id;
    uint32_t n_prompt, max_new, n_source, n_reported; /* n_reported: prompt and reported tokens */
};

static struct sched_fixture r;
static struct manifest m;
static void *memory;
static struct manifest_found found[SLOTS];
static struct job job[JOBS];
static uint32_t written[SLOTS]; /* positions of finished steps */
static req_id begun[SLOTS]; /* slots that have had a step: before it a found prefix may be lost */
static const uint64_t print[2] = { 1, 2 }, kv_id[2] = { 3, 4 };
static struct {
    enum mistake mistake;
    uint32_t kill_in; /* stores until the kill; 0: never */
    jmp_buf dead;
    bool looking;
    uint64_t stores, wrong, lost, kills, adopted, again, found, fetched;
    struct kv_flushed went;
} life;

static struct job *
job_of(req_id id)
{
    uint32_t i = (uint32_t)id;

    check(i > 0 && i <= JOBS && job[i - 1].id == id);
    return &job[i - 1];
}

/* The blocks of the entry hold the positions below pos that a query there attends to. */
static bool
is_there(const struct kv *kv, const struct manifest_owner *o, uint32_t pos)
{
    for (uint32_t g = 0; g < r.c.n_groups; g++) {
        const struct kv_group *k = &r.c.group[g];
        uint32_t n = k->kind == KV_CROSS ? o->n_cross : pos;

        for (uint32_t i = kv_kind_first(k, BLOCK, pos); i * BLOCK < n; i++) {
            slice_id at = kv_entry(kv, o->slot, g, i);

            if (at == SLICE_NONE || !run_holds(&r, TIER_DEVICE, g, at, job_of(o->id)->text, i,
                                               MIN(n - i * BLOCK, (uint32_t)BLOCK)))
                return false;
        }
    }
    return true;
}

/* The source of the copy that fills that block, if any. */
static const struct kv_copy *
copy_to(const struct kv_out *out, uint32_t group, slice_id at)
{
    for (uint32_t i = 0; i < out->n_copies; i++)
        if (out->copy[i].group == group && out->copy[i].to == at &&
            out->copy[i].to_tier == TIER_DEVICE)
            return &out->copy[i];
    return NULL;
}

/* A replacement's lookup of the job's tokens finds only blocks that hold them. */
static void
look_for(struct kv *kv, const struct job *j)
{
    static struct kv_edit edit[EDITS];
    static struct kv_copy copy[EDITS];
    struct kv_out out = {
        .edit = edit, .max_edits = EDITS, .copy = copy, .max_copies = EDITS, .step = 1
    };
    struct kv_text t = { .token = j->text->token,
                         .n = j->text->n_prompt,
                         .source = j->n_source ? j->text->source : NULL,
                         .n_source = j->n_source };
    struct kv_need need = kv_need(kv, t.n, j->n_source, 9);
    struct kv_namespace space;
    struct kv_hit hit;
    uint32_t slot = 0;

    while (slot < SLOTS && kv_live(kv, slot)) slot++;
    kv_namespace(kv, 0, 0, t.source, t.n_source, &space);
    t.namespace = &space;
    if (slot == SLOTS || kv_admit(kv, slot, &need, &t, &hit) < 0) return;
    kv_start(kv, 0, 1, slot, &out);
    kv_check(kv);
    life.found += hit.n_tokens;
    for (uint32_t g = 0; g < r.c.n_groups; g++) {
        bool cross = r.c.group[g].kind == KV_CROSS;
        uint32_t first, n = kv_held(kv, slot, g, &first), end = cross ? j->n_source : hit.n_tokens;

        for (uint32_t i = first; i < first + n; i++) {
            slice_id at = kv_entry(kv, slot, g, i);
            const struct kv_copy *c = copy_to(&out, g, at);

            life.fetched += c && c->from_tier == TIER_HOST;
            if (!run_holds(&r, c ? c->from_tier : TIER_DEVICE, g, c ? c->from : at, j->text, i,
                           MIN(end - i * BLOCK, (uint32_t)BLOCK)))
                life.wrong++;
        }
    }
}

/* Inspects the manifest as a replacement would now. */
static void
look(void)
{
    struct manifest_found here[SLOTS];
    slice_id scratch[MAX_GROUPS * ENTRIES + 64];
    void *copy = malloc(m.h.bytes), *mem = calloc(1, kv_bytes(&r.c));
    struct manifest seen;
    struct kv_config c = r.c;
    struct kv *kv;
    struct manifest_adopted a;
    struct err e;

    memcpy(copy, memory, m.h.bytes);
    kv = kv_init(mem, &c, &e);
    assert_non_null(kv);
    assert_int_equal(manifest_open(&seen, copy, m.h.bytes, &c, print, kv_id, &e), 0);
    a = manifest_adopt(&seen, kv, true, here, scratch);
    kv_check(kv);
    life.wrong += a.no_nodes + a.no_rows;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const struct manifest_owner *o = &here[slot].owner;
        const struct manifest_entry *row =
            (void *)((char *)memory + m.h.row_at + (size_t)slot * m.h.row_bytes);
        const struct seq *q = scheduler_seq_at(r.s, slot);
        uint32_t n_reported = q ? job_of(q->id)->n_reported : 0, pos;

        if (o->id) {
            pos = MIN(here[slot].row.committed, job_of(o->id)->n_reported - 1);
            if (!is_there(kv, o, pos) || here[slot].row.committed > written[slot]) life.wrong++;
        }
        if (!q || q->n_done == 0 || q->state == SEQ_ENDED || (row->seq & 1)) continue;
        if (begun[slot] != q->id) continue;
        pos = MIN(q->n_done, n_reported - 1);
        if (o->id != q->id || here[slot].row.committed < pos) life.lost++;
    }
    if (c.reuse) look_for(kv, &job[test_below(JOBS)]);
    free(mem);
    free(copy);
}

void
failpoint(enum failpoint p)
{
    assert_int_equal(p, FP_manifest_stored);
    if (!r.s || life.looking) return; /* stores during adoption */
    life.stores++;
    life.looking = true;
    look();
    life.looking = false;
    if (life.kill_in && --life.kill_in == 0) longjmp(life.dead, 1);
}

static uint32_t
owners(const struct batch *b, struct manifest_owner *to)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct seq *q = scheduler_seq_at(r.s, b->segment[i].slot);
        struct manifest_owner *o = &to[n];

        if (!(b->segment[i].flags & SEGMENT_FIRST_CHUNK) || q->n_adopted) continue;
        *o = (struct manifest_owner){
            .slot = q->slot, .id = q->id, .n_cross = q->n_source, .n_tokens = q->n_prompt
        };
        manifest_hash(q->token, q->n_prompt, o->tokens_hash);
        manifest_hash(q->source, q->n_source, o->source_hash);
        n++;
    }
    return n;
}

/* Edits that remove blocks from a table, or the others, in order. Ends of slots that start again in
 * this step come first in either case. */
static uint32_t
edits_of(const struct batch *b, const struct manifest_owner *o, uint32_t n_owners, uint8_t op,
         bool want, struct kv_edit *to)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_edits; i++) {
        const struct kv_edit *e = &b->edit[i];
        bool is = e->op == op && e->at == SLICE_NONE;

        for (uint32_t k = 0; k < n_owners; k++) is = is && o[k].slot != e->slot;
        if (is == want) to[n++] = *e;
    }
    return n;
}

static void
launching(struct sched_fixture *run, const struct batch *b)
{
    struct manifest_owner o[SLOTS];
    uint32_t n = owners(b, o);
    static struct kv_edit some[EDITS];

    (void)run;
    assert_true(b->n_edits <= EDITS);
    for (uint32_t i = 0; i < b->n_segments; i++)
        if (b->segment[i].flags & SEGMENT_FIRST_CHUNK &&
            !scheduler_seq_at(r.s, b->segment[i].slot)->n_adopted)
            begun[b->segment[i].slot] = 0;
    if (life.mistake != LABELS_LATE) manifest_put_nodes(&m, r.kv);
    if (life.mistake == DROPS_LATE || life.mistake == ENDS_LATE) {
        uint8_t op = life.mistake == ENDS_LATE ? EDIT_CLEAR : EDIT_SET;

        manifest_launch(&m, some, edits_of(b, o, n, op, false, some), o, n);
        manifest_launch(&m, some, edits_of(b, o, n, op, true, some), NULL, 0);
    } else if (life.mistake != LAUNCH_LATE) {
        manifest_launch(&m, b->edit, b->n_edits, o, n);
    }
}

static void
commit(const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_segments; i++)
        manifest_commit(&m, b->segment[i].slot,
                        (uint32_t)b->segment[i].first_pos + b->segment[i].n_tokens);
}

static void
launched(struct sched_fixture *run, const struct batch *b)
{
    struct manifest_owner o[SLOTS];
    uint32_t n = owners(b, o);

    (void)run;
    if (life.mistake == LAUNCH_LATE) manifest_launch(&m, b->edit, b->n_edits, o, n);
    if (life.mistake == LABELS_LATE) manifest_put_nodes(&m, r.kv);
    for (uint32_t i = 0; i < n; i++) written[o[i].slot] = 0;
    if (life.mistake == COMMIT_EARLY) commit(b);
}

static void
finishing(struct sched_fixture *run, const struct batch *b)
{
    (void)run;
    for (uint32_t i = 0; i < b->n_segments; i++)
        written[b->segment[i].slot] = (uint32_t)b->segment[i].first_pos + b->segment[i].n_tokens;
    if (life.mistake != COMMIT_EARLY) commit(b);
    for (uint32_t i = 0; i < b->n_segments; i++)
        begun[b->segment[i].slot] = scheduler_seq_at(r.s, b->segment[i].slot)->id;
}

static void
adopt(struct sched_fixture *run)
{
    slice_id scratch[MAX_GROUPS * ENTRIES + 64];
    struct manifest_adopted a;
    struct err e;

    if (!memory) {
        memory = calloc(1, manifest_bytes(&run->c));
        manifest_make(&m, memory, &run->c, print, kv_id);
        return;
    }
    assert_int_equal(manifest_open(&m, memory, m.h.bytes, &run->c, print, kv_id, &e), 0);
    a = manifest_adopt(&m, run->kv, true, found, scratch);
    kv_check(run->kv);
    assert_int_equal(a.no_nodes, 0);
    assert_int_equal(a.no_rows, 0);
}

static void
submit(struct job *j)
{
    req_id id = j->id;
    struct seq *q = seq_new(id, j->n_reported, j->n_prompt + j->max_new - j->n_reported,
                            j->n_source);
    uint32_t resume;
    int slot = manifest_claim(found, SLOTS, id, 0, q->token, j->n_reported, q->source, j->n_source,
                              &resume);

    if (slot >= 0 && resume > 0) {
        q->n_adopted = resume;
        q->adopted_slot = (uint32_t)slot;
    } else if (slot >= 0) {
        assert_int_equal(j->n_reported, 1); /* hash and encoder input match */
        scheduler_unkeep(r.s, (uint32_t)slot);
    }
    j->q = q;
    run_add(&r, q);
    if (slot < 0) return;
    if (q->n_adopted) manifest_commit(&m, (uint32_t)slot, resume);
    if (q->n_adopted) begun[slot] = id;
    life.again++;
    life.adopted += q->n_adopted > 0;
}

static void
begin(uint32_t shape)
{
    run_defaults(&r);
    memset(&life, 0, sizeof life);
    memset(found, 0, sizeof found);
    memset(begun, 0, sizeof begun);
    memory = NULL;
    r.c.n_slots = r.l.max_seqs = SLOTS;
    r.c.tokens_per_block = BLOCK;
    r.l.max_tokens = 9;
    r.l.max_len = ENTRIES * BLOCK;
    r.c.n_groups = 1 + (shape & WINDOW ? 1 : 0) + (shape & CROSS ? 1 : 0);
    r.c.group[0] = run_group(KV_FULL, 0, 128, 0);
    if (shape & WINDOW) r.c.group[1] = run_group(KV_WINDOW, 6, 256, 0);
    if (shape & CROSS) {
        r.c.group[r.c.n_groups - 1] = run_group(KV_CROSS, 0, 128, 0);
        r.l.max_enc_tokens = 40;
        r.l.n_enc_layers = 2;
    }
    for (uint32_t g = 0; g < r.c.n_groups; g++) r.c.group[g].max_entries = ENTRIES;
    r.c.arena_bytes = (uint64_t)(shape & TINY ? 20 : shape & TIGHT ? 40 : 90) * 256 * r.c.n_groups;
    if (shape & LANES) {
        r.c.n_lanes = r.l.n_lanes = 2;
        r.l.lane_work[0] = WORK_ENCODER | WORK_PREFILL;
        r.l.lane_work[1] = WORK_DECODE;
    }
    if (shape & STEPWISE) r.l.policy = POLICY_MAX_UTILIZATION;
    r.c.reuse = r.c.copy_partial = shape & REUSE;
    if (shape & HOST) r.c.host_bytes = (uint64_t)12 * 512 * r.c.n_groups;
    r.launching = launching;
    r.launched = launched;
    r.finishing = finishing;
    r.adopt = adopt;
    run_open(&r);
    for (uint32_t i = 0; i < JOBS; i++) {
        uint32_t stem = 1 + i % 3;

        job[i] = (struct job){ .id = shape & REUSE ? run_ref(i + 1, stem, test_below(20)) : i + 1,
                               .n_prompt = 1 + test_below(30),
                               .max_new = 1 + test_below(20) };
        if (shape & CROSS) job[i].n_source = shape & REUSE ? 5 * stem : 1 + test_below(20);
        job[i].n_reported = job[i].n_prompt;
        job[i].text = seq_new(job[i].id, job[i].n_prompt + job[i].max_new, 1, job[i].n_source);
    }
}

static void
end(void)
{
    run_close(&r);
    for (uint32_t i = 0; i < JOBS; i++) {
        if (job[i].q) seq_free(TAKE(job[i].q));
        seq_free(TAKE(job[i].text));
    }
    free(memory);
}

static bool
tell(void)
{
    bool all = true;
    struct seq *q;

    for (uint32_t i = 0; i < JOBS; i++) {
        if (job[i].q) job[i].n_reported = job[i].q->n_tokens;
        all = all && job[i].n_reported == job[i].n_prompt + job[i].max_new;
    }
    while ((q = scheduler_reap(r.s))) {
        run_check_tokens(q);
        job_of(q->id)->q = NULL;
        seq_free(q);
    }
    return all;
}

/* As in the engine before the first request. */
static void
again(void)
{
    run_again(&r);
    for (uint32_t i = 0; i < SLOTS; i++)
        if (found[i].owner.id && found[i].row.committed < found[i].owner.n_tokens)
            scheduler_keep_prompt(r.s, i, found[i].owner.n_tokens, found[i].owner.n_cross);
}

static void
die(void)
{
    run_die(&r);
    memset(begun, 0, sizeof begun);
    life.kills++;
    for (uint32_t i = 0; i < JOBS; i++)
        if (job[i].q) seq_free(TAKE(job[i].q));
    again();
    for (uint32_t i = 0; i < JOBS; i++)
        if (job[i].n_reported > job[i].n_prompt ||
            (job[i].n_reported == job[i].n_prompt && test_below(3) == 0))
            if (job[i].n_reported < job[i].n_prompt + job[i].max_new) submit(&job[i]);
    if (test_below(2)) scheduler_unkeep_all(r.s);
}

/* Flushes part of the cache, as the engine does. */
static void
flush(void)
{
    kv_flush(r.kv, 1 + test_below(20), &life.went);
    manifest_put_nodes(&m, r.kv);
}

/* One run, until every request has ended, with a kill every `apart` stores. */
static void
live(uint32_t shape, enum mistake mistake, uint32_t apart)
{
    volatile bool done = false;

    begin(shape);
    life.mistake = mistake;
    life.kill_in = apart ? 1 + test_below(apart) : 0;
    while (!done) {
        if (setjmp(life.dead)) {
            die();
            life.kill_in = 1 + test_below(apart);
        }
        while (!done && !(mistake && life.wrong + life.lost)) {
            uint32_t i = test_below(JOBS), lane = test_below(r.l.n_lanes);

            if (!job[i].q && job[i].n_reported < job[i].n_prompt + job[i].max_new) submit(&job[i]);
            if (test_below(2)) run_plan(&r, lane);
            if (test_below(3) == 0) run_commit(&r, lane);
            if (r.c.reuse && test_below(30) == 0) flush();
            done = tell();
            scheduler_check(r.s);
        }
        if (mistake) break;
    }
    life.kill_in = 0;
    scheduler_unkeep_all(r.s);
    assert_true(!done || run_used(&r) == 0);
    end();
}

static void
replacement_finds_all_written_and_reported_data_at_every_store(void **state)
{
    uint64_t stores = 0;

    (void)state;
    test_seed();
    for (uint32_t shape = 0; shape < SHAPES; shape++) {
        live(shape, NONE, 0);
        assert_int_equal(life.wrong, 0);
        assert_int_equal(life.lost, 0);
        stores += life.stores;
    }
    assert_true(stores > 10000);
}

/* Half of the shapes have a host tier, half have kills; the cache is flushed now and then. */
static void
cached_blocks_hold_their_tokens_at_every_store(void **state)
{
    uint64_t hits = 0, fetched = 0, kills = 0, went[2] = { 0 };

    (void)state;
    test_seed();
    for (uint32_t i = 0; i < SHAPES; i++) {
        live(i | REUSE | (i / 2 % 2 ? HOST : 0), NONE, i % 2 ? 400 : 0);
        assert_int_equal(life.wrong, 0);
        assert_int_equal(life.lost, 0);
        hits += life.found;
        fetched += life.fetched;
        kills += life.kills;
        went[0] += life.went.blocks;
        went[1] += life.went.host_blocks;
    }
    assert_true(hits > 1000 && fetched > 100 && kills > 20);
    assert_true(went[0] > 20 && went[1] > 20);
}

static void
streams_continue_after_a_kill_at_any_store(void **state)
{
    uint64_t kills = 0, again = 0, adopted = 0;

    (void)state;
    test_seed();
    for (uint32_t i = 0; i < 4 * SHAPES; i++) {
        live(i % SHAPES | (i / SHAPES % 2 ? STEPWISE : 0), NONE, 150);
        assert_int_equal(life.wrong, 0);
        assert_int_equal(life.lost, 0);
        kills += life.kills;
        again += life.again;
        adopted += life.adopted;
    }
    assert_true(kills > 100);
    assert_true(adopted > again / 3);
}

/* With step-by-step reservation the first token waits for the prefill steps in flight, or keeps
 * their window. */
static void
window_with_blocks_for_one_step_has_one_in_flight(void **state)
{
    (void)state;
    test_seed();
    for (uint32_t i = 0; i < 10 * SHAPES; i++) {
        live(WINDOW | TIGHT | STEPWISE | (i & (LANES | CROSS)), NONE, 0);
        assert_int_equal(life.wrong, 0);
        assert_int_equal(life.lost, 0);
    }
}

static void
adopted_streams_are_planned_before_prompts(void **state)
{
    const struct batch *b;

    (void)state;
    begin(0);
    job[0].n_prompt = job[0].n_reported = 30;
    job[1].n_prompt = job[1].n_reported = 3;
    job[0].max_new = job[1].max_new = 9;
    submit(&job[1]);
    for (int i = 0; i < 3; i++) run_step(&r, 0);
    tell();
    assert_int_equal(job[1].n_reported, 6);
    run_die(&r);
    seq_free(TAKE(job[1].q));
    run_again(&r);
    submit(&job[0]); /* oldest, with more tokens than a step has */
    submit(&job[1]);
    assert_int_equal(job[1].q->n_adopted, 5);
    b = run_plan(&r, 0);
    assert_true(in_batch(b, job[1].q));
    assert_int_equal(b->segment[0].slot, job[1].q->slot);
    assert_int_equal(b->segment[0].n_tokens, 1);
    while (run_commit(&r, 0) || run_plan(&r, 0)) tell();
    assert_int_equal(job[1].n_reported, 12);
    end();
}

/* A length that fits the cache with windows for one-token chunks, but not for full chunks. */
static uint32_t
longest_in_rows(void)
{
    uint32_t len = ENTRIES * BLOCK;
    struct kv_need n;

    do n = kv_need(r.kv, --len, 0, 1);
    while (kv_fits_alone(r.kv, &n, len, 0, NULL) < 0);
    n = kv_need(r.kv, len, 0, r.l.max_tokens);
    assert_true(kv_fits_alone(r.kv, &n, len, 0, NULL) < 0);
    return len;
}

static void
prompt_that_fits_only_in_small_chunks_resumes_in_them(void **state)
{
    enum { DONE = 12 };

    (void)state;
    begin(WINDOW | TINY);
    job[0].max_new = 3;
    job[0].n_prompt = job[0].n_reported = longest_in_rows() - job[0].max_new;
    submit(&job[0]);
    for (int i = 0; i < DONE; i++) run_step(&r, 0);
    assert_int_equal(job[0].q->n_done, DONE);
    run_die(&r);
    seq_free(TAKE(job[0].q));
    run_again(&r);
    submit(&job[0]);
    assert_int_equal(job[0].q->n_adopted, DONE);
    while (run_commit(&r, 0) || run_plan(&r, 0)) tell();
    assert_int_equal(job[0].n_reported, job[0].n_prompt + job[0].max_new);
    end();
}

static void
kept_slots_are_reclaimed_one_by_one_after_their_time(void **state)
{
    const struct batch *b;

    (void)state;
    begin(8); /* 39 blocks */
    for (uint32_t i = 0; i < 4; i++) {
        job[i].n_prompt = job[i].n_reported = i == 0 ? 30 : i == 3 ? 92 : 5;
        job[i].max_new = 20;
    }
    for (uint32_t i = 0; i < 3; i++) submit(&job[i]);
    for (int i = 0; i < 8; i++) run_step(&r, 0);
    tell();
    run_die(&r);
    for (uint32_t i = 0; i < 3; i++) seq_free(TAKE(job[i].q));
    run_again(&r);
    scheduler_keep(r.s, 100);
    assert_true(run_used(&r) > 39 - 28); /* the fourth request needs 28 */
    submit(&job[3]);
    assert_null(run_plan(&r, 0));
    assert_int_equal(scheduler_wake(r.s), 100);
    r.now = 100;
    b = run_plan(&r, 0);
    assert_true(b && in_batch(b, job[3].q));
    submit(&job[2]); /* freeing the first slot was enough */
    assert_true(job[2].q->n_adopted > 0);
    scheduler_unkeep_all(r.s);
    while (run_commit(&r, 0) || run_plan(&r, 0)) tell();
    assert_int_equal(job[2].n_reported, 25);
    assert_int_equal(job[3].n_reported, 112);
    end();
}

/* The previous worker had reserved the blocks for the rest of the first request. */
static void
new_request_waits_until_those_of_the_previous_worker_have_resumed(void **state)
{
    (void)state;
    begin(8); /* 39 blocks */
    for (uint32_t i = 0; i < 2; i++) {
        job[i].n_prompt = job[i].n_reported = 5;
        job[i].max_new = 85; /* 23 blocks */
    }
    submit(&job[0]);
    for (int i = 0; i < 8; i++) run_step(&r, 0);
    tell();
    run_die(&r);
    seq_free(TAKE(job[0].q));
    run_again(&r);
    scheduler_keep(r.s, 100);
    submit(&job[1]);
    assert_null(run_plan(&r, 0));
    submit(&job[0]);
    assert_true(job[0].q->n_adopted > 0);
    while (run_commit(&r, 0) || run_plan(&r, 0)) tell();
    assert_int_equal(job[0].n_reported, 90);
    assert_int_equal(job[1].n_reported, 90);
    end();
}

/* Every block is used and the next token needs another one: as before the kill, one request waits.
 * One request returns some steps after the others. */
static void
adopted_sequence_resumes_its_next_token_despite_other_needs(void **state)
{
    enum { STORIES = 1000, JOBS_HERE = 3 };
    uint64_t adopted = 0;

    (void)state;
    test_seed();
    for (uint32_t n = 0; n < STORIES; n++) {
        uint32_t late = test_below(2 * JOBS_HERE);
        uint32_t had[JOBS_HERE], after = test_below(8);

        begin(TINY | STEPWISE);
        for (uint32_t i = 0; i < JOBS_HERE; i++) {
            job[i].n_prompt = job[i].n_reported = 5 + test_below(25);
            job[i].max_new = 20;
            submit(&job[i]);
        }
        for (uint32_t i = 1 + test_below(25); i > 0; i--) run_step(&r, 0);
        tell();
        for (uint32_t i = 0; i < JOBS_HERE; i++)
            had[i] = job[i].q ? MIN(job[i].q->n_done, job[i].n_reported - 1) : 0;
        run_die(&r);
        for (uint32_t i = 0; i < JOBS_HERE; i++)
            if (job[i].q) seq_free(TAKE(job[i].q));
        again();
        scheduler_keep(r.s, r.now + 1000);
        for (uint32_t k = 0; k < 2; k++) {
            for (uint32_t i = 0; i < JOBS_HERE; i++) {
                if (job[i].n_reported == job[i].n_prompt + job[i].max_new || (i == late) != k)
                    continue;
                submit(&job[i]);
                assert_int_equal(job[i].q->n_adopted, had[i]);
            }
            for (uint32_t i = 0; k == 0 && i < after; i++) run_step(&r, 0);
            tell();
            scheduler_check(r.s);
        }
        adopted += life.adopted;
        scheduler_unkeep_all(r.s);
        while (run_commit(&r, 0) || run_plan(&r, 0)) tell();
        for (uint32_t i = 0; i < JOBS_HERE; i++)
            assert_int_equal(job[i].n_reported, job[i].n_prompt + job[i].max_new);
        end();
    }
    assert_true(adopted > STORIES);
}

static void
every_wrong_order_of_stores_is_detected(void **state)
{
    (void)state;
    test_seed();
    for (int mistake = NONE + 1; mistake < N_MISTAKES; mistake++) {
        uint64_t seen = 0;

        for (uint32_t shape = 0; shape < 2 * SHAPES && !seen; shape++) {
            live(shape, (enum mistake)mistake, 0);
            seen = life.wrong + life.lost;
        }
        if (!seen) fail_msg("mistake %d was not seen", mistake);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replacement_finds_all_written_and_reported_data_at_every_store),
        cmocka_unit_test(cached_blocks_hold_their_tokens_at_every_store),
        cmocka_unit_test(streams_continue_after_a_kill_at_any_store),
        cmocka_unit_test(window_with_blocks_for_one_step_has_one_in_flight),
        cmocka_unit_test(adopted_streams_are_planned_before_prompts),
        cmocka_unit_test(prompt_that_fits_only_in_small_chunks_resumes_in_them),
        cmocka_unit_test(kept_slots_are_reclaimed_one_by_one_after_their_time),
        cmocka_unit_test(new_request_waits_until_those_of_the_previous_worker_have_resumed),
        cmocka_unit_test(adopted_sequence_resumes_its_next_token_despite_other_needs),
        cmocka_unit_test(every_wrong_order_of_stores_is_detected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
