/* test_drafts.c - draft tokens: what a step carries, what is accepted, what is planned again. */
#include "tests/sched/sched_harness.h"
#include "tests/test.h"

#include "include/lagan_wire.h"

static struct sched_fixture r;

static struct seq *
guessing(req_id id, uint32_t n_prompt, uint32_t max_new)
{
    struct seq *q = seq_new(id, n_prompt, max_new, 0);

    q->n_draft = MAX_DRAFT;
    run_add(&r, q);
    return q;
}

/* Opens the defaults with n_draft drafts in a step. */
static void
begin(uint32_t n_draft)
{
    run_defaults(&r);
    r.l.n_draft = (uint8_t)n_draft;
    run_open(&r);
}

static void
reap(struct seq *q, uint16_t reason)
{
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(q->reason, reason);
    run_check_tokens(q);
    seq_free(q);
}

/* Ends the test with its last sequence. */
static void
end(struct seq *q, uint16_t reason)
{
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(q->reason, reason);
    run_end(&r, &q, 1);
}

static void
draft_tokens_follow_the_token_that_they_continue(void **state)
{
    const struct batch *b;
    struct seq *q;
    uint32_t taken;

    (void)state;
    begin(3);
    q = guessing(7, 5, 30);
    b = run_step(&r, 0);
    assert_int_equal(b->segment[0].n_draft, 0); /* prompt tokens are known */
    b = run_step(&r, 0);
    assert_int_equal(b->n_tokens, 4);
    assert_int_equal(b->n_logits, 4);
    assert_int_equal(b->n_masks, 0); /* a chain needs none */
    assert_int_equal(b->segment[0].n_draft, 3);
    assert_int_equal(b->segment[0].first_pos, 5);
    assert_int_equal(b->token[0], TOKEN_FROM_LAST);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(b->token[i], TOKEN_DRAFT(i));
        assert_int_equal(b->pos[i], 5 + i);
    }
    taken = fake_taken(&r.l, 7, 5, 3);
    assert_int_equal(q->n_tokens, 6 + taken);
    assert_int_equal(q->n_done, 5 + taken);
    while (run_step(&r, 0)) continue;
    assert_int_equal(q->n_tokens, 35);
    end(q, LAGAN_FINISH_LENGTH);
}

static void
step_planned_ahead_counts_drafts_as_accepted_and_moves_back(void **state)
{
    uint32_t first = 5, behind = 0, refused = 0;
    const struct batch *b;
    struct seq *q;

    (void)state;
    begin(4);
    q = guessing(3, first, 60);
    run_step(&r, 0);
    assert_non_null(run_plan(&r, 0));
    while ((b = run_plan(&r, 0))) { /* sched_harness.c compares positions with the device's */
        behind += (b->segment[0].flags & SEGMENT_AFTER_DRAFTS) != 0;
        refused += (uint32_t)b->segment[0].first_pos - q->n_done - 1 - b->segment[0].n_draft > 0;
        run_commit(&r, 0);
    }
    assert_true(behind > 5 && refused > 0);
    while (run_commit(&r, 0)) run_plan(&r, 0);
    assert_int_equal(q->n_tokens, 65);
    end(q, LAGAN_FINISH_LENGTH);
}

static void
tree_token_attends_only_to_drafts_that_it_continues(void **state)
{
    /* two drafts for the next position, two that continue the second of them */
    static const uint8_t back[] = { 0, 1, 0, 1 };
    static const uint32_t sees[] = { 1, 3, 5, 13, 21 }, depth[] = { 0, 1, 1, 2, 2 };
    const struct batch *b;
    struct seq *q, *plain;

    (void)state;
    run_defaults(&r);
    r.l.n_draft = 4;
    memcpy(r.l.draft_back, back, sizeof back);
    run_open(&r);
    plain = seq_new(8, 4, 9, 0);
    run_add(&r, plain);
    q = guessing(7, 5, 40);
    run_step(&r, 0);
    b = run_step(&r, 0);
    assert_int_equal(b->n_masks, 6);
    assert_int_equal(b->mask[0], 0);
    assert_false(b->segment[0].flags & SEGMENT_MASK);
    assert_true(b->segment[1].flags & SEGMENT_MASK);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(b->mask[1 + i], sees[i]);
        assert_int_equal(b->pos[1 + i], 5 + depth[i]);
    }
    while (run_step(&r, 0)) continue;
    assert_int_equal(q->n_tokens, 45);
    reap(plain, LAGAN_FINISH_LENGTH);
    end(q, LAGAN_FINISH_LENGTH);
}

static void
drafts_never_exceed_the_length_limit(void **state)
{
    struct seq *q;
    const struct batch *b;

    (void)state;
    for (uint32_t max_new = 1; max_new < 20; max_new++) {
        begin(5);
        q = guessing(max_new, 3, max_new);
        while (run_plan(&r, 0)) {
            b = run_plan(&r, 0);
            if (b)
                assert_true((uint32_t)b->segment[0].first_pos + b->segment[0].n_tokens <
                            3 + max_new);
            while (run_commit(&r, 0)) continue;
        }
        assert_int_equal(q->n_tokens, 3 + max_new);
        end(q, LAGAN_FINISH_LENGTH);
    }
}

static void
end_id_among_the_drafts_ends_the_sequence_there(void **state)
{
    struct seq *q;

    (void)state;
    for (uint32_t at = 0; at < 20; at++) {
        begin(6);
        q = seq_new(at, 3, 30, 0);
        q->n_draft = 6;
        q->n_end = q->n_eos = 1;
        q->end_id[0] = fake_token(at, 3 + at);
        run_add(&r, q);
        while (run_plan(&r, 0) || run_commit(&r, 0))
            if (r.planned[0] - r.done[0] == 2) run_commit(&r, 0);
        assert_true(q->n_tokens <= 4 + at);
        end(q, LAGAN_FINISH_EOS);
    }
}

static void
drafts_follow_tokens_and_leave_half_to_prompts(void **state)
{
    struct seq *q[3], *prompt;
    const struct batch *b;

    (void)state;
    run_defaults(&r);
    r.l.n_draft = 8;
    r.l.max_tokens = 13;
    run_open(&r);
    for (uint32_t i = 0; i < 3; i++) q[i] = guessing(i, 4, 100);
    run_step(&r, 0);
    b = run_step(&r, 0);
    assert_int_equal(b->n_segments, 3);
    assert_int_equal(b->segment[0].n_draft, 8); /* the first in the list gets all */
    assert_int_equal(b->segment[1].n_draft, 2);
    assert_int_equal(b->segment[2].n_draft, 0);
    prompt = seq_new(9, 50, 1, 0);
    run_add(&r, prompt);
    b = run_step(&r, 0);
    assert_int_equal(b->n_segments, 4);
    assert_int_equal(b->segment[0].n_draft, 5);
    assert_int_equal(b->segment[3].n_tokens, 5);
    while (run_step(&r, 0)) continue;
    reap(prompt, LAGAN_FINISH_LENGTH);
    for (struct seq *e; (e = scheduler_reap(r.s));) {
        run_check_tokens(e);
        seq_free(e);
    }
    (void)q;
    run_close(&r);
}

static void
max_utilization_plans_drafts_only_in_reserved_blocks(void **state)
{
    const struct batch *b;
    struct seq *q;

    (void)state;
    run_defaults(&r);
    r.l.policy = POLICY_MAX_UTILIZATION;
    r.l.n_draft = 8;
    run_open(&r);
    q = guessing(1, 6, 60);
    run_step(&r, 0);
    while ((b = run_step(&r, 0))) { /* blocks of 10 tokens */
        uint32_t last = (uint32_t)b->segment[0].first_pos + b->segment[0].n_tokens - 1;

        assert_int_equal(last / 10, b->segment[0].first_pos / 10);
    }
    end(q, LAGAN_FINISH_LENGTH);
}

static void
sequence_that_does_not_fit_with_drafts_runs_without(void **state)
{
    struct seq *q;

    (void)state;
    run_defaults(&r);
    r.c.tokens_per_block = 1;
    r.c.group[0] = run_group(KV_WINDOW, 4, 128, 8); /* window, one token, and two steps in flight */
    r.l.n_draft = 4;
    run_open(&r);
    q = guessing(1, 2, 20);
    assert_int_equal(q->n_draft, 0);
    while (run_step(&r, 0)) continue;
    end(q, LAGAN_FINISH_LENGTH);
}

static void
drafts_after_a_failed_prompt_are_not_cached(void **state)
{
    struct seq *q, *next;

    (void)state;
    run_defaults(&r);
    r.c.tokens_per_block = 2;
    r.c.reuse = true;
    r.c.n_lanes = r.l.n_lanes = 2;
    r.l.lane_work[0] = WORK_PREFILL;
    r.l.lane_work[1] = WORK_DECODE;
    r.l.n_draft = 6;
    run_open(&r);
    q = guessing(run_ref(0, 5, 40), 9, 30);
    assert_non_null(run_plan(&r, 0));
    assert_non_null(run_plan(&r, 1));
    assert_int_equal(run_plan(&r, 1)->segment[0].flags & SEGMENT_AFTER_DRAFTS,
                     SEGMENT_AFTER_DRAFTS);
    r.failing = true;
    run_commit(&r, 0);
    r.failing = false;
    run_commit(&r, 1);
    run_commit(&r, 1);
    assert_int_equal(q->n_done, 0);
    reap(q, LAGAN_E_INTERNAL);
    next = seq_new(run_ref(1, 5, 40), 9, 1, 0);
    run_add(&r, next);
    run_step(&r, 0);
    assert_int_equal(next->n_cached, 0);
    end(next, LAGAN_FINISH_LENGTH);
}

static void
sequence_changes_lanes_after_its_drafts_are_committed(void **state)
{
    const struct batch *b;
    struct seq *q;

    (void)state;
    run_defaults(&r);
    r.c.n_lanes = r.l.n_lanes = 2;
    r.l.lane_work[0] = WORK_PREFILL;
    r.l.lane_work[1] = WORK_DECODE;
    r.l.n_draft = 3;
    run_open(&r);
    scheduler_set_partition(r.s, 1, 0);
    r.divided = true;
    q = guessing(7, 5, 30);
    run_step(&r, 0);
    for (int i = 0; i < 2; i++) assert_int_equal(run_plan(&r, 1)->segment[0].n_draft, 3);
    scheduler_set_partition(r.s, 0, 0); /* lane 0 decodes from here on */
    assert_null(run_plan(&r, 0));
    run_commit(&r, 1);
    assert_null(run_plan(&r, 0));
    run_commit(&r, 1);
    b = run_plan(&r, 0);
    assert_int_equal(b->segment[0].first_pos, q->n_done);
    assert_int_equal(b->segment[0].flags & SEGMENT_AFTER_DRAFTS, 0);
    run_commit(&r, 0);
    while (run_step(&r, 0)) continue;
    end(q, LAGAN_FINISH_LENGTH);
}

static void
limits_without_a_valid_draft_tree_are_refused(void **state)
{
    struct scheduler *s;
    struct err e;

    (void)state;
    run_defaults(&r);
    run_open(&r);
    r.l.n_draft = MAX_DRAFT + 1;
    assert_int_equal(scheduler_new(&s, &r.l, r.kv, &e), -EINVAL);
    r.l.n_draft = 3;
    r.l.draft_back[1] = 2;
    assert_int_equal(scheduler_new(&s, &r.l, r.kv, &e), -EINVAL);
    assert_string_equal(e.text, "draft token 2 has no token 3 before it to continue");
    run_close(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draft_tokens_follow_the_token_that_they_continue),
        cmocka_unit_test(step_planned_ahead_counts_drafts_as_accepted_and_moves_back),
        cmocka_unit_test(tree_token_attends_only_to_drafts_that_it_continues),
        cmocka_unit_test(drafts_never_exceed_the_length_limit),
        cmocka_unit_test(end_id_among_the_drafts_ends_the_sequence_there),
        cmocka_unit_test(drafts_follow_tokens_and_leave_half_to_prompts),
        cmocka_unit_test(max_utilization_plans_drafts_only_in_reserved_blocks),
        cmocka_unit_test(sequence_that_does_not_fit_with_drafts_runs_without),
        cmocka_unit_test(drafts_after_a_failed_prompt_are_not_cached),
        cmocka_unit_test(sequence_changes_lanes_after_its_drafts_are_committed),
        cmocka_unit_test(limits_without_a_valid_draft_tree_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
