/* test_scenarios.c - who runs when, beside a reference: numbers of published unit tests.
 *
 * Ids (C-01 ...) name the scenario. Blocks of 10 tokens; an iteration is a step planned and committed
 * at once. Where a scenario has no encoder step of its own, ours comes in front: one iteration more.
 */
#include "tests/sched/run.h"
#include "tests/test.h"

enum { MAX = 16 };

struct life { /* iterations that carried it, first to last without a gap; end: after the last */
    int first, end;
};

/* Run until nothing runs. request i arrives at iteration arrives[i] (NULL: 0). Returns the number of
 * iterations until idle. */
static int
play(struct run *r, struct seq **q, int n, const int *arrives, struct life *life)
{
    int it, added = 0;

    for (int i = 0; i < n; i++) life[i] = (struct life){ -1, -1 };
    for (it = 0; it < 1000; it++) {
        const struct batch *b;
        bool in[MAX];

        while (added < n && (!arrives || arrives[added] <= it)) run_add(r, q[added++]);
        b = run_plan(r, 0);
        if (!b && added == n) break;
        for (int i = 0; i < n; i++) {
            in[i] = q[i]->state > SEQ_WAITING && in_batch(b, q[i]);
            if (!in[i]) continue;
            if (life[i].first < 0) life[i].first = life[i].end = it;
            assert_int_equal(life[i].end, it); /* no gap */
            life[i].end = it + 1;
        }
        scheduler_check(r->s);
        if (b) assert_true(run_commit(r, 0));
    }
    for (struct seq *s; (s = scheduler_reap(r->s));) {
        run_check_tokens(s);
        assert_int_equal(s->n_tokens, s->n_prompt + s->max_new);
    }
    assert_int_equal(run_used(r), 0);
    return it;
}

static void
expect(const struct life *l, int first, int last)
{
    assert_int_equal(l->first, first);
    assert_int_equal(l->end, last + 1);
}

static void
many(struct seq **q, int n, uint32_t n_prompt, uint32_t max_new, uint32_t n_source)
{
    for (int i = 0; i < n; i++) q[i] = seq_new((req_id)i, n_prompt, max_new, n_source);
}

static void
open_pool(struct run *r, uint32_t blocks, uint32_t max_seqs)
{
    run_defaults(r);
    r->c.group[0].max_blocks = blocks;
    r->l.max_seqs = max_seqs;
    r->l.max_len = 90;
}

static void
done(struct run *r, struct seq **q, int n)
{
    run_close(r);
    for (int i = 0; i < n; i++) seq_free(q[i]);
}

static void
two_that_fit_run_together(void **state) /* C-01 */
{
    struct life life[MAX];
    struct seq *q[2];
    struct run r;

    (void)state;
    open_pool(&r, 20, 2);
    run_open(&r);
    many(q, 2, 10, 80, 0);
    assert_int_equal(play(&r, q, 2, NULL, life), 80);
    expect(&life[0], 0, 79);
    expect(&life[1], 0, 79);
    done(&r, q, 2);
}

static void
add_cross(struct run *r, uint32_t blocks)
{
    r->c.n_groups = 2;
    r->c.group[1] = run_group(KV_CROSS, 0, 128, blocks);
    r->l.n_enc_layers = 2;
    r->l.max_enc_rows = 100;
}

static void
two_that_fit_both_pools_run_together(void **state) /* C-02 */
{
    struct life life[MAX];
    struct seq *q[2];
    struct run r;

    (void)state;
    open_pool(&r, 20, 2);
    add_cross(&r, 2);
    run_open(&r);
    many(q, 2, 10, 80, 10);
    assert_int_equal(play(&r, q, 2, NULL, life), 1 + 80);
    expect(&life[0], 0, 80);
    expect(&life[1], 0, 80);
    done(&r, q, 2);
}

static void
the_cross_pool_alone_holds_the_second_back(void **state) /* C-03 */
{
    struct seq *q[2];
    struct run r;
    int it;

    (void)state;
    open_pool(&r, 20, 2);
    add_cross(&r, 1);
    run_open(&r);
    many(q, 2, 10, 80, 10);
    run_add(&r, q[0]);
    run_add(&r, q[1]);
    for (it = 0; it < 1 + 160; it++) {
        const struct batch *b = run_plan(&r, 0);

        assert_non_null(b);
        assert_int_equal(in_batch(b, q[0]), it <= 80);
        assert_int_equal(in_batch(b, q[1]), it == 0 || it > 80); /* its encoder does not wait */
        run_commit(&r, 0);
    }
    assert_null(run_plan(&r, 0));
    while (scheduler_reap(r.s)) {
    }
    done(&r, q, 2);
}

static void
guaranteed_no_evict_runs_one_where_two_might_run_out(void **state) /* C-09 */
{
    struct life life[MAX];
    struct seq *q[2];
    struct run r;

    (void)state;
    open_pool(&r, 10, 2);
    run_open(&r);
    many(q, 2, 10, 80, 0);
    assert_int_equal(play(&r, q, 2, NULL, life), 160);
    expect(&life[0], 0, 79);
    expect(&life[1], 80, 159);
    done(&r, q, 2);
}

static void
a_chunked_prompt_takes_an_iteration_a_chunk(void **state) /* C-12 */
{
    static const int positions[] = { 20, 30, 31 };
    struct life life[MAX];
    struct seq *q[2];
    struct run r;

    (void)state;
    open_pool(&r, 10, 2);
    r.l.max_rows = r.l.chunk_unit = 20;
    run_open(&r);
    many(q, 2, 30, 60, 0);
    assert_int_equal(play(&r, q, 2, NULL, life), 122);
    expect(&life[0], 0, 60);
    expect(&life[1], 61, 121);
    run_add(&r, q[0]);
    for (int it = 0; it < 3; it++) {
        assert_non_null(run_plan(&r, 0));
        assert_int_equal(q[0]->n_planned, positions[it]);
        run_commit(&r, 0);
        assert_int_equal(q[0]->n_tokens, 30 + it); /* generated 1 with the last chunk */
    }
    scheduler_cancel(r.s, 0, 4);
    assert_ptr_equal(scheduler_reap(r.s), q[0]);
    done(&r, q, 2);
}

static void
list_order_is_priority_then_arrival(void **state) /* C-18 */
{
    static const float priority[] = { .5f, .5f, .6f, .6f, .6f, 1, .3f, .3f, .3f, .6f, 1, .5f };
    static const int order[] = { 5, 10, 2, 3, 4, 9, 0, 1, 11, 6, 7, 8 };
    struct seq *q[12], *ended;
    struct run r;

    (void)state;
    open_pool(&r, 0, 1);
    run_open(&r);
    many(q, 12, 3, 1, 0);
    for (int i = 0; i < 12; i++) {
        q[i]->priority = priority[i];
        run_add(&r, q[i]);
    }
    for (int i = 0; i < 12; i++) {
        assert_non_null(run_step(&r, 0));
        ended = scheduler_reap(r.s);
        assert_ptr_equal(ended, q[order[i]]);
    }
    done(&r, q, 12);
}

static void
late_arrivals_run_one_at_a_time_in_order(void **state) /* C-19 */
{
    static const int arrives[] = { 0, 0, 10, 10 };
    struct life life[MAX];
    struct seq *q[4];
    struct run r;

    (void)state;
    open_pool(&r, 10, 4);
    run_open(&r);
    many(q, 4, 10, 80, 0);
    assert_int_equal(play(&r, q, 4, arrives, life), 320);
    for (int i = 0; i < 4; i++) expect(&life[i], 80 * i, 80 * i + 79);
    done(&r, q, 4);
}

static void
chunked_late_arrivals_run_one_at_a_time(void **state) /* C-20 */
{
    static const int arrives[] = { 0, 0, 10, 10 };
    struct life life[MAX];
    struct seq *q[4];
    struct run r;

    (void)state;
    open_pool(&r, 10, 4);
    r.l.max_rows = r.l.chunk_unit = 20;
    run_open(&r);
    many(q, 4, 30, 60, 0);
    assert_int_equal(play(&r, q, 4, arrives, life), 244);
    for (int i = 0; i < 4; i++) expect(&life[i], 61 * i, 61 * i + 60);
    done(&r, q, 4);
}

static void
the_head_of_the_queue_is_not_overtaken_for_want_of_blocks(void **state) /* A2, pass 2 */
{
    struct life life[MAX];
    struct seq *q[3];
    struct run r;

    (void)state;
    open_pool(&r, 10, 3);
    run_open(&r);
    q[0] = seq_new(0, 10, 50, 0); /* six blocks */
    q[1] = seq_new(1, 10, 60, 0); /* seven: must wait */
    q[2] = seq_new(2, 10, 10, 0); /* two: would fit, and waits behind it */
    play(&r, q, 3, NULL, life);
    expect(&life[0], 0, 49);
    expect(&life[1], 50, 109);
    expect(&life[2], 50, 59);
    done(&r, q, 3);
}

static void
seats_are_handed_on_in_pairs(void **state) /* M-01 */
{
    struct life life[MAX];
    struct seq *q[4];
    struct run r;

    (void)state;
    open_pool(&r, 0, 2);
    run_open(&r);
    many(q, 4, 10, 80, 0);
    assert_int_equal(play(&r, q, 4, NULL, life), 160);
    expect(&life[0], 0, 79);
    expect(&life[1], 0, 79);
    expect(&life[2], 80, 159);
    expect(&life[3], 80, 159);
    done(&r, q, 4);
}

static void
a_token_budget_admits_prompts_one_by_one(void **state) /* M-02: whole prompts only */
{
    struct life life[MAX];
    struct seq *q[4];
    struct run r;

    (void)state;
    open_pool(&r, 0, 4);
    r.l.max_rows = 12;
    r.l.chunk_unit = 10;
    run_open(&r);
    many(q, 4, 10, 10, 0);
    assert_int_equal(play(&r, q, 4, NULL, life), 20);
    expect(&life[0], 0, 9);
    expect(&life[1], 1, 10);
    expect(&life[2], 2, 11);
    expect(&life[3], 10, 19);
    done(&r, q, 4);
}

static void
chunks_go_first_come_first_served(void **state)
{
    static const struct {
        const char *id;
        uint32_t len[2], unit, capacity, at[4][2];
        int n;
    } row[] = {
        { "M-11", { 25, 25 }, 20, 1000, { { 25, 25 } }, 1 },
        { "M-14", { 25, 25 }, 20, 20, { { 20, 0 }, { 25, 0 }, { 25, 20 }, { 25, 25 } }, 4 },
        { "M-15", { 25, 25 }, 5, 30, { { 25, 5 }, { 25, 25 } }, 2 },
        { "M-16", { 25, 15 }, 5, 30, { { 25, 5 }, { 25, 15 } }, 2 },
        { "M-18", { 25, 25 }, 5, 15, { { 15, 0 }, { 25, 5 }, { 25, 20 }, { 25, 25 } }, 4 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct seq *q[2];
        struct run r;

        print_message("%s\n", row[i].id);
        open_pool(&r, 0, 2);
        r.l.max_rows = row[i].capacity;
        r.l.chunk_unit = row[i].unit;
        run_open(&r);
        for (int n = 0; n < 2; n++) {
            q[n] = seq_new((req_id)n, row[i].len[n], 1, 0); /* over with its last chunk */
            run_add(&r, q[n]);
        }
        for (int it = 0; it < row[i].n; it++) {
            assert_non_null(run_step(&r, 0));
            assert_int_equal(q[0]->n_planned, row[i].at[it][0]);
            assert_int_equal(q[1]->n_planned, row[i].at[it][1]);
        }
        assert_null(run_step(&r, 0));
        while (scheduler_reap(r.s)) {
        }
        done(&r, q, 2);
    }
}

static void
a_split_counts_generating_sequences_against_the_limit(void **state) /* C-27 */
{
    struct seq *q[5];
    struct run r;

    (void)state;
    open_pool(&r, 0, 4);
    r.c.n_lanes = r.l.n_lanes = 2;
    r.l.lane_work[0] = WORK_ENCODER | WORK_CONTEXT;
    r.l.lane_work[1] = WORK_GENERATION;
    run_open(&r);
    many(q, 5, 10, 40, 0);
    for (int i = 0; i < 3; i++) run_add(&r, q[i]);
    assert_non_null(run_step(&r, 0));
    assert_non_null(run_step(&r, 1));
    run_add(&r, q[3]);
    run_add(&r, q[4]);
    assert_non_null(run_step(&r, 0)); /* three generate: one more, not four more */
    assert_int_equal(scheduler_n_running(r.s), 4);
    assert_int_equal(scheduler_n_waiting(r.s), 1);
    assert_null(run_step(&r, 0));
    for (int i = 0; i < 5; i++) scheduler_cancel(r.s, (req_id)i, 4);
    while (scheduler_reap(r.s)) {
    }
    done(&r, q, 5);
}

static void
an_encoder_is_admitted_where_its_decoder_does_not_fit_yet(void **state) /* C-28 */
{
    struct seq *q[2];
    struct kv_count before, after;
    struct run r;

    (void)state;
    open_pool(&r, 20, 2);
    add_cross(&r, 3);
    run_open(&r);
    q[0] = seq_new(0, 1, 50, 20);
    q[1] = seq_new(1, 1, 50, 20);
    run_add(&r, q[0]);
    run_step(&r, 0);
    run_step(&r, 0); /* its decoder has begun: one cross block is left */
    run_add(&r, q[1]);
    kv_count(r.kv, 0, &before);
    assert_true(in_batch(run_step(&r, 0), q[1]));
    kv_count(r.kv, 0, &after);
    assert_int_equal(before.used, after.used);
    for (int i = 0; i < 10; i++) assert_false(in_batch(run_step(&r, 0), q[1]));
    scheduler_cancel(r.s, 0, 4);
    assert_true(in_batch(run_step(&r, 0), q[1]));
    scheduler_cancel(r.s, 1, 4);
    while (scheduler_reap(r.s)) {
    }
    done(&r, q, 2);
}

static void
of_two_decoders_exactly_the_first_gets_the_last_cross_block(void **state) /* C-29 */
{
    struct seq *q[2];
    struct run r;
    const struct batch *b;

    (void)state;
    open_pool(&r, 100, 2);
    add_cross(&r, 1);
    run_open(&r);
    many(q, 2, 1, 5, 7);
    run_add(&r, q[0]);
    run_add(&r, q[1]);
    run_step(&r, 0);
    b = run_step(&r, 0);
    assert_true(in_batch(b, q[0]));
    assert_false(in_batch(b, q[1]));
    assert_int_equal(run_used(&r), 2);
    scheduler_cancel(r.s, 0, 4);
    scheduler_cancel(r.s, 1, 4);
    while (scheduler_reap(r.s)) {
    }
    done(&r, q, 2);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_that_fit_run_together),
        cmocka_unit_test(two_that_fit_both_pools_run_together),
        cmocka_unit_test(the_cross_pool_alone_holds_the_second_back),
        cmocka_unit_test(guaranteed_no_evict_runs_one_where_two_might_run_out),
        cmocka_unit_test(a_chunked_prompt_takes_an_iteration_a_chunk),
        cmocka_unit_test(list_order_is_priority_then_arrival),
        cmocka_unit_test(late_arrivals_run_one_at_a_time_in_order),
        cmocka_unit_test(chunked_late_arrivals_run_one_at_a_time),
        cmocka_unit_test(the_head_of_the_queue_is_not_overtaken_for_want_of_blocks),
        cmocka_unit_test(seats_are_handed_on_in_pairs),
        cmocka_unit_test(a_token_budget_admits_prompts_one_by_one),
        cmocka_unit_test(chunks_go_first_come_first_served),
        cmocka_unit_test(a_split_counts_generating_sequences_against_the_limit),
        cmocka_unit_test(an_encoder_is_admitted_where_its_decoder_does_not_fit_yet),
        cmocka_unit_test(of_two_decoders_exactly_the_first_gets_the_last_cross_block),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
