/* test_encoder.c - encoder inputs: encoded whole or by layers, projected once, freed (G). */
#include "tests/sched/sched_harness.h"
#include "tests/test.h"

#include "include/lagan_wire.h"

static struct sched_fixture r;

static void
defaults(uint32_t max_enc_tokens)
{
    run_defaults(&r);
    r.c.n_groups = 2;
    r.c.group[1] = run_group(KV_CROSS, 0, 128, 0);
    r.l.n_enc_layers = 6;
    r.l.max_enc_tokens = max_enc_tokens;
}

static void
decoder_starts_in_the_step_after_its_encoder(void **state) /* G1, B4 */
{
    struct seq *q = seq_new(1, 1, 5, 33);
    const struct batch *b;

    (void)state;
    defaults(100);
    run_open_with(&r, &q, 1);
    b = run_plan(&r, 0);
    assert_int_equal(b->n_segments, 0);
    assert_int_equal(b->n_encode, 1);
    assert_int_equal(b->n_tokens, 33);
    assert_int_equal(b->encode[0].n_layers, 6);
    assert_int_equal(b->work, WORK_ENCODER);
    b = run_plan(&r, 0); /* launched without waiting for the encoder's result */
    assert_int_equal(b->n_encode, 0);
    assert_int_equal(b->n_segments, 1);
    assert_int_equal(b->segment[0].flags, SEGMENT_FIRST_CHUNK | SEGMENT_SAMPLE);
    assert_int_equal(b->segment[0].enc_tokens, 33);
    assert_int_equal(b->segment[0].cross_tokens, 33);
    assert_int_equal(b->n_waits, 0);
    run_commit(&r, 0);
    b = run_plan(&r, 0);
    assert_int_equal(b->segment[0].enc_tokens, 0); /* projected once */
    assert_int_equal(b->segment[0].cross_tokens, 33);
    run_finish(&r, &q, 1);
}

static void
encoder_runs_a_few_layers_per_step_during_decode(void **state)
{
    static const uint32_t first[] = { 0, 4 }, n[] = { 4, 2 };
    struct seq *q[2] = { seq_new(1, 1, 20, 10), seq_new(2, 1, 5, 40) };
    const struct batch *b;

    (void)state;
    defaults(100);
    r.l.enc_layers = 4;
    r.l.n_buckets = 1;
    r.l.bucket[0] = 2;
    run_open_with(&r, q, 1);
    for (int i = 0; i < 3; i++) run_step(&r, 0);
    run_add(&r, q[1]);
    for (int i = 0; i < 2; i++) {
        b = run_step(&r, 0);
        assert_int_equal(b->n_segments, 1);
        assert_int_equal(b->n_encode, 1);
        assert_int_equal(b->encode[0].first_layer, first[i]);
        assert_int_equal(b->encode[0].n_layers, n[i]);
        assert_int_equal(b->encode[0].first_token, 1); /* decoder tokens first */
        assert_int_equal(b->bucket, 2);                /* graphs do not cover encoder tokens */
    }
    b = run_step(&r, 0);
    assert_int_equal(b->n_segments, 2);
    run_finish(&r, q, 2);
}

static void
encoder_rows_are_limited_and_reused_after_projection(void **state) /* G3 */
{
    struct seq *q[5];

    (void)state;
    defaults(50);
    run_open(&r);
    for (int i = 0; i < 5; i++) run_add(&r, q[i] = seq_new((req_id)i, 1, 3, 20));
    assert_int_equal(run_plan(&r, 0)->n_encode, 2);   /* 40 of 50 rows */
    assert_int_equal(run_plan(&r, 0)->n_segments, 2); /* both project */
    run_commit(&r, 0);
    scheduler_check(r.s);
    assert_int_equal(run_plan(&r, 0)->n_encode, 0); /* the projection is in flight */
    run_commit(&r, 0);
    assert_int_equal(run_plan(&r, 0)->n_encode, 2);
    run_finish(&r, q, 5);
}

static void
gap_in_encoder_rows_is_filled_by_a_fitting_input(void **state)
{
    struct seq *q[4];
    const struct batch *b;

    (void)state;
    defaults(50);
    run_open(&r);
    run_add(&r, q[0] = seq_new(0, 1, 3, 10));
    run_add(&r, q[1] = seq_new(1, 1, 3, 40));
    run_plan(&r, 0);
    assert_int_equal(q[1]->enc_token, 10);
    scheduler_cancel(r.s, 0, LAGAN_E_CANCELLED);
    run_commit(&r, 0);
    run_add(&r, q[2] = seq_new(2, 1, 3, 11)); /* one row too many; later inputs wait */
    run_add(&r, q[3] = seq_new(3, 1, 3, 10));
    b = run_plan(&r, 0);
    assert_int_equal(b->n_encode, 0);
    scheduler_cancel(r.s, 2, LAGAN_E_CANCELLED);
    b = run_plan(&r, 0);
    assert_int_equal(b->n_encode, 1);
    assert_int_equal(q[3]->enc_token, 0);
    run_drain(&r);
    run_end(&r, q, 4);
}

static void
chunked_decoder_prompt_projects_with_its_first_chunk(void **state) /* G2 */
{
    struct seq *q = seq_new(1, 25, 4, 12);
    uint32_t projected = 0;

    (void)state;
    defaults(50);
    r.l.max_tokens = r.l.chunk_unit = 10;
    run_open_with(&r, &q, 1);
    for (const struct batch *b; (b = run_step(&r, 0));)
        for (uint32_t i = 0; i < b->n_segments; i++) {
            projected += b->segment[i].enc_tokens;
            assert_int_equal(b->segment[i].enc_tokens > 0, b->segment[i].first_pos == 0);
        }
    assert_int_equal(projected, 12);
    assert_ptr_equal(scheduler_reap(r.s), q);
    run_end(&r, &q, 1);
}

static void
new_and_running_encoder_inputs_share_a_step(void **state) /* */
{
    struct seq *q[2] = { seq_new(1, 1, 20, 5), seq_new(2, 1, 20, 7) };
    const struct batch *b;

    (void)state;
    defaults(50);
    run_open_with(&r, q, 1);
    run_step(&r, 0);
    run_step(&r, 0);
    run_add(&r, q[1]);
    run_step(&r, 0);
    b = run_step(&r, 0);
    assert_int_equal(b->n_segments, 2);
    assert_int_equal(b->segment[0].enc_tokens, 0);
    assert_int_equal(b->segment[0].cross_tokens, 5);
    assert_int_equal(b->segment[1].enc_tokens, 7); /* the new input's 7 rows are projected */
    assert_int_equal(b->segment[1].cross_tokens, 7);
    run_finish(&r, q, 2);
}

static void
ended_encoder_input_frees_both_pools_and_its_rows(void **state) /* */
{
    (void)state;
    for (int when = 0; when < 5; when++) {
        struct seq *q = seq_new(1, 1, 9, 50), *next = seq_new(2, 1, 2, 50);
        struct seq *both[2] = { q, next };

        defaults(50);
        r.l.enc_layers = 2;
        run_open_with(&r, &q, 1);
        if (when == 0) run_drain(&r);   /* finished */
        if (when == 1) run_plan(&r, 0); /* cancelled while the encoder runs */
        for (int i = 0; when == 2 && i < 3; i++) run_step(&r, 0); /* between encoder and decoder */
        for (int i = 0; when >= 3 && i < 5; i++) run_step(&r, 0); /* while it decodes */
        if (when == 4) {
            r.failing = true;
            run_step(&r, 0); /* errored */
            r.failing = false;
        }
        scheduler_cancel(r.s, 1, LAGAN_E_CANCELLED);
        run_drain(&r);
        assert_ptr_equal(scheduler_reap(r.s), q);
        assert_int_equal(run_used(&r), 0);
        run_add(&r, next); /* needs every encoder row */
        run_drain(&r);
        assert_ptr_equal(scheduler_reap(r.s), next);
        run_end(&r, both, 2);
    }
}

static void
pending_encoders_start_at_once_if_no_sequence_decodes(void **state) /* M-38 */
{
    struct seq *q[4];

    (void)state;
    defaults(100);
    run_open(&r);
    for (int i = 0; i < 4; i++) run_add(&r, q[i] = seq_new((req_id)i, 1, 3, 20));
    assert_int_equal(run_plan(&r, 0)->n_encode, 4);
    run_finish(&r, q, 4);
}

static void
encoder_input_longer_than_the_buffer_is_refused_with_numbers(void **state) /* L-05 */
{
    struct seq *q = seq_new(1, 1, 5, 51), *none = seq_new(2, 1, 5, 0);
    struct err e;

    (void)state;
    defaults(50);
    run_open(&r);
    assert_int_equal(scheduler_add(r.s, q, 0, &e), -EMSGSIZE);
    assert_non_null(strstr(e.text, "51"));
    assert_non_null(strstr(e.text, "50"));
    assert_int_equal(scheduler_add(r.s, none, 0, &e), -EINVAL);
    assert_non_null(strstr(e.text, "no encoder input"));
    seq_free(none);
    run_end(&r, &q, 1);
}

static void
encoder_input_that_fits_no_pool_is_refused(void **state)
{
    struct seq *q = seq_new(1, 1, 5, 41);
    struct err e;

    (void)state;
    defaults(100);
    r.c.group[1].max_blocks = 4;
    run_open(&r);
    assert_int_equal(scheduler_add(r.s, q, 0, &e), -EMSGSIZE);
    assert_non_null(strstr(e.text, "41 encoder input tokens"));
    run_end(&r, &q, 1);
}

static void
samples_forked_after_a_failed_encoder_end_with_it(void **state)
{
    struct seq *first = seq_group_of(1, 3, /* beams= */ false, 1, 4, 20), *q;

    (void)state;
    defaults(100);
    run_open(&r);
    run_add(&r, first);
    assert_int_equal(run_plan(&r, 0)->n_encode, 1);
    assert_int_equal(run_plan(&r, 0)->n_segments,
                     1); /* the first's segment; the others fork in this step */
    assert_true(first->has_forked);
    r.failing = true;
    run_commit(&r, 0);
    r.failing = false;
    run_drain(&r);
    for (int i = 0; i < 3; i++) {
        q = scheduler_reap(r.s);
        assert_non_null(q);
        assert_int_equal(q->reason, LAGAN_E_INTERNAL);
        seq_free(q);
    }
    run_end(&r, NULL, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoder_starts_in_the_step_after_its_encoder),
        cmocka_unit_test(encoder_runs_a_few_layers_per_step_during_decode),
        cmocka_unit_test(encoder_rows_are_limited_and_reused_after_projection),
        cmocka_unit_test(gap_in_encoder_rows_is_filled_by_a_fitting_input),
        cmocka_unit_test(chunked_decoder_prompt_projects_with_its_first_chunk),
        cmocka_unit_test(new_and_running_encoder_inputs_share_a_step),
        cmocka_unit_test(ended_encoder_input_frees_both_pools_and_its_rows),
        cmocka_unit_test(pending_encoders_start_at_once_if_no_sequence_decodes),
        cmocka_unit_test(encoder_input_longer_than_the_buffer_is_refused_with_numbers),
        cmocka_unit_test(encoder_input_that_fits_no_pool_is_refused),
        cmocka_unit_test(samples_forked_after_a_failed_encoder_end_with_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
