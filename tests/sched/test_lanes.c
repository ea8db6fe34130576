/* test_lanes.c - prompts on one lane, generation on another (E): hand-over, waits, no stalls. */
#include "tests/sched/run.h"
#include "tests/test.h"

#include "include/lagan_wire.h"

static struct run r;

static void
split(void)
{
    run_defaults(&r);
    r.c.n_lanes = r.l.n_lanes = 2;
    r.l.lane_work[0] = WORK_ENCODER | WORK_CONTEXT;
    r.l.lane_work[1] = WORK_GENERATION;
    r.l.max_rows = 40;
    r.l.chunk_unit = 10;
}

static void
run_out(void)
{
    for (bool more = true; more;) {
        more = run_plan(&r, 0) != NULL;
        more = run_plan(&r, 1) || more;
        more = run_commit(&r, 0) || more;
        more = run_commit(&r, 1) || more;
    }
}

static void
close_all(struct seq **q, int n)
{
    for (int i = 0; i < n; i++) {
        run_check_tokens(q[i]);
        assert_int_equal(q[i]->n_tokens, q[i]->n_prompt + q[i]->max_new);
        seq_free(q[i]);
    }
    assert_null(scheduler_reap(r.s));
    assert_int_equal(run_used(&r), 0);
    run_close(&r);
}

static void
a_seat_is_handed_over_behind_its_last_chunk(void **state) /* E1, D3 */
{
    struct seq *q = seq_new(1, 50, 5, 0);
    const struct batch *b;

    (void)state;
    split();
    run_open(&r);
    run_add(&r, q);
    assert_null(run_plan(&r, 1));
    assert_non_null(run_plan(&r, 0));
    assert_null(run_plan(&r, 1)); /* its prompt is not whole */
    b = run_plan(&r, 0);
    assert_int_equal(b->run[0].n_rows, 10);
    b = run_plan(&r, 1); /* launched while the last chunk runs */
    assert_non_null(b);
    assert_int_equal(b->token[0], TOKEN_FROM_LAST);
    assert_int_equal(b->n_waits, 1);
    assert_int_equal(b->wait[0].lane, 0);
    assert_int_equal(b->wait[0].step, 2);
    assert_null(run_plan(&r, 0)); /* generation is not its work */
    run_out();
    assert_ptr_equal(scheduler_reap(r.s), q);
    close_all(&q, 1);
}

static void
nobody_who_generates_waits_for_somebody_elses_prompt(void **state)
{
    struct seq *q[2] = { seq_new(1, 10, 30, 0), seq_new(2, 40, 5, 0) };
    const struct batch *b;

    (void)state;
    split();
    run_open(&r);
    run_add(&r, q[0]);
    run_step(&r, 0);
    run_step(&r, 1);
    run_add(&r, q[1]);
    assert_non_null(run_plan(&r, 0)); /* all of its prompt, not done */
    b = run_plan(&r, 1);
    assert_int_equal(b->n_runs, 1); /* q[0] alone */
    assert_int_equal(b->n_waits, 0);
    run_commit(&r, 0);
    b = run_plan(&r, 1);
    assert_int_equal(b->n_runs, 2);
    assert_int_equal(b->n_waits, 0);
    run_out();
    for (int i = 0; i < 2; i++) assert_non_null(scheduler_reap(r.s));
    close_all(q, 2);
}

static void
an_encoder_on_a_lane_of_its_own_is_waited_for(void **state)
{
    struct seq *q = seq_new(1, 1, 5, 30);
    const struct batch *b;

    (void)state;
    split();
    r.c.n_groups = 2;
    r.c.group[1] = run_group(KV_CROSS, 0, 128, 0);
    r.l.n_enc_layers = 4;
    r.l.enc_layers = 2;
    r.l.max_enc_rows = 64;
    r.l.lane_work[0] = WORK_ENCODER;
    r.l.lane_work[1] = WORK_CONTEXT | WORK_GENERATION;
    run_open(&r);
    run_add(&r, q);
    assert_non_null(run_plan(&r, 0));
    assert_null(run_plan(&r, 1)); /* half its layers */
    assert_non_null(run_plan(&r, 0));
    b = run_plan(&r, 1);
    assert_int_equal(b->run[0].flags, RUN_FIRST_CHUNK | RUN_SAMPLE);
    assert_int_equal(b->n_waits, 1);
    assert_int_equal(b->wait[0].lane, 0);
    assert_int_equal(b->wait[0].step, 2);
    run_out();
    assert_ptr_equal(scheduler_reap(r.s), q);
    close_all(&q, 1);
}

static void
a_context_waits_for_blocks_and_goes_on_when_one_is_free(void **state) /* D-06 */
{
    struct seq *q[3] = { seq_new(1, 10, 30, 0), seq_new(2, 10, 30, 0), seq_new(3, 10, 10, 0) };

    (void)state;
    split();
    r.c.group[0].max_blocks = 8; /* exactly the first two */
    run_open(&r);
    run_add(&r, q[0]);
    run_add(&r, q[1]);
    run_step(&r, 0);
    run_add(&r, q[2]);
    for (int i = 0; i < 29; i++) {
        assert_null(run_plan(&r, 0)); /* nothing until a commit */
        assert_non_null(run_step(&r, 1));
    }
    assert_non_null(run_plan(&r, 0));
    run_out();
    for (int i = 0; i < 3; i++) assert_non_null(scheduler_reap(r.s));
    close_all(q, 3);
}

static void
one_token_more_never_visits_the_generation_lane(void **state)
{
    struct seq *q = seq_new(1, 10, 1, 0);

    (void)state;
    split();
    run_open(&r);
    run_add(&r, q);
    assert_non_null(run_plan(&r, 0));
    assert_null(run_plan(&r, 1));
    run_commit(&r, 0);
    assert_ptr_equal(scheduler_reap(r.s), q);
    close_all(&q, 1);
}

static void
a_seat_cancelled_between_its_lanes_leaves_both(void **state)
{
    struct seq *q = seq_new(1, 10, 9, 0);

    (void)state;
    split();
    run_open(&r);
    run_add(&r, q);
    run_plan(&r, 0);
    run_plan(&r, 1);
    scheduler_cancel(r.s, 1, LAGAN_E_CANCELLED);
    run_commit(&r, 0);
    assert_null(scheduler_reap(r.s));
    scheduler_check(r.s);
    run_commit(&r, 1);
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(run_used(&r), 0);
    seq_free(q);
    run_close(&r);
}

static void
a_lane_found_done_names_the_one_to_commit_first(void **state)
{
    struct seq *q = seq_new(1, 10, 9, 0);
    const struct batch *b;

    (void)state;
    split();
    run_open(&r);
    run_add(&r, q);
    run_plan(&r, 0);
    b = run_plan(&r, 1);
    assert_int_equal(scheduler_turn(r.s, b), 0);
    run_commit(&r, 0);
    assert_int_equal(scheduler_turn(r.s, b), 1);
    run_out();
    assert_ptr_equal(scheduler_reap(r.s), q);
    close_all(&q, 1);
}

static void
many_prompts_pass_through_both_lanes(
    void **state) /* D-08: the device checks every token and block */
{
    struct seq *q[20];

    (void)state;
    split();
    r.l.max_seqs = 5;
    r.c.n_groups = 2;
    r.c.group[0].max_blocks = 30;
    r.c.group[1] = run_group(KV_WINDOW, 13, 384, 0);
    run_open(&r);
    for (int i = 0; i < 20; i++) {
        q[i] = seq_new((req_id)i, 1 + 37 * (uint32_t)i % 90, 1 + (uint32_t)i, 0);
        run_add(&r, q[i]);
    }
    run_out();
    for (int i = 0; i < 20; i++) assert_non_null(scheduler_reap(r.s));
    close_all(q, 20);
}

static void
the_lane_of_prompts_has_bounds_of_its_own(
    void **state) /* split.context_max_tokens, context_max_seqs */
{
    struct seq *q[4];
    const struct batch *b;

    (void)state;
    split();
    r.l.lane_rows[0] = 30;
    r.l.lane_seqs[0] = 2;
    run_open(&r);
    for (int i = 0; i < 4; i++) run_add(&r, q[i] = seq_new(1 + (req_id)i, i == 3 ? 60 : 10, 5, 0));
    b = run_plan(&r, 0);
    assert_int_equal(b->n_runs, 2); /* of the three that fit into 40 rows, and into 30 */
    run_commit(&r, 0);
    b = run_plan(&r, 0);
    assert_int_equal(b->n_runs, 2);
    assert_int_equal(b->n_rows, 30);
    run_out();
    while (scheduler_reap(r.s)) {
    }
    close_all(q, 4);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seat_is_handed_over_behind_its_last_chunk),
        cmocka_unit_test(nobody_who_generates_waits_for_somebody_elses_prompt),
        cmocka_unit_test(an_encoder_on_a_lane_of_its_own_is_waited_for),
        cmocka_unit_test(a_context_waits_for_blocks_and_goes_on_when_one_is_free),
        cmocka_unit_test(one_token_more_never_visits_the_generation_lane),
        cmocka_unit_test(a_seat_cancelled_between_its_lanes_leaves_both),
        cmocka_unit_test(a_lane_found_done_names_the_one_to_commit_first),
        cmocka_unit_test(many_prompts_pass_through_both_lanes),
        cmocka_unit_test(the_lane_of_prompts_has_bounds_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
