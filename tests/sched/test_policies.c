/* test_policies.c - admission, preemption and resumption by policy, compared with the reference's
 * tables.
 *
 * Ids (C-01 ...) name the scenario: blocks of 10 tokens; an iteration is a step planned and
 * committed at once.
 */
#include "tests/sched/sched_harness.h"
#include "tests/test.h"

#include "include/lagan_wire.h"
#include "worker/sched/sched_internal.h"

enum { MAX = 4 };

static struct sched_fixture r;
static struct seq *q[MAX];
static uint32_t n_seqs;

static void
open_pool(enum policy policy, uint32_t blocks, uint32_t max_seqs)
{
    run_defaults(&r);
    r.l.policy = policy;
    r.c.group[0].max_blocks = blocks;
    r.l.max_seqs = max_seqs;
    r.l.max_len = 90;
    n_seqs = 0;
}

static struct seq *
request(uint32_t n_prompt, uint32_t max_new)
{
    q[n_seqs] = seq_new(n_seqs, n_prompt, max_new, 0);
    return q[n_seqs++];
}

static void
many(int n, uint32_t n_prompt, uint32_t max_new)
{
    for (int i = 0; i < n; i++) request(n_prompt, max_new);
}

/* The sequences (mask) that run from that iteration on; an empty mask ends the table. */
struct span {
    int from;
    unsigned who;
};

/* Request i arrives at iteration arrives[i] (NULL: 0). */
static void
play(const int *arrives, const struct span *span)
{
    uint32_t added = 0;

    for (int it = 0;; it++) {
        const struct batch *b;
        unsigned who = 0;

        while (added < n_seqs && (!arrives || arrives[added] <= it)) run_add(&r, q[added++]);
        if (span->who && span[1].from == it) span++;
        b = run_plan(&r, 0);
        for (uint32_t i = 0; i < added; i++)
            if (q[i]->state > SEQ_WAITING && in_batch(b, q[i])) who |= 1u << i;
        if (who != span->who) print_error("iteration %d: %x run, not %x\n", it, who, span->who);
        assert_int_equal(who, span->who);
        if (!b) return;
        scheduler_check(r.s);
        assert_true(run_commit(&r, 0));
    }
}

static void
every_policy_runs_requests_that_fit(void **state) /* C-01 */
{
    static const struct span span[] = { { 0, 3 }, { 80, 0 } };

    (void)state;
    for (int policy = POLICY_NO_EVICT; policy <= POLICY_STATIC; policy++) {
        open_pool((enum policy)policy, 20, 2);
        run_open(&r);
        many(2, 10, 80);
        play(NULL, span);
        run_end(&r, q, n_seqs);
    }
}

static void
max_utilization_admits_what_fits_and_preempts_the_last(void **state) /* C-07 */
{
    static const struct span span[] = { { 0, 3 }, { 41, 1 }, { 80, 2 }, { 119, 0 } };

    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 10, 2);
    run_open(&r);
    many(2, 10, 80);
    play(NULL, span);
    assert_int_equal(q[0]->n_preemptions, 0);
    assert_int_equal(q[1]->n_preemptions, 1);
    assert_int_equal(q[1]->n_prompt, 51); /* its generated tokens are prompt */
    assert_int_equal(q[1]->max_new, 39);
    run_end(&r, q, n_seqs);
}

static void
lower_priority_is_preempted(void **state) /* C-08 */
{
    static const struct span span[] = { { 0, 3 }, { 41, 2 }, { 80, 1 }, { 119, 0 } };

    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 10, 2);
    run_open(&r);
    request(10, 80);
    request(10, 80)->priority = 0.6f;
    play(NULL, span);
    assert_int_equal(q[0]->n_prompt, 51);
    run_end(&r, q, n_seqs);
}

static void
prompt_that_does_not_fit_waits_without_preemption(void **state) /* C-13 */
{
    static const struct span span[] = { { 0, 1 }, { 21, 2 }, { 42, 0 } };

    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 10, 2);
    r.l.max_tokens = r.l.chunk_unit = 40;
    run_open(&r);
    many(2, 70, 20);
    play(NULL, span);
    assert_int_equal(q[0]->n_preemptions + q[1]->n_preemptions, 0);
    run_end(&r, q, n_seqs);
}

static void
late_arrivals_are_preempted_first_and_resume_in_order(void **state) /* C-15 */
{
    static const int arrives[] = { 0, 0, 10, 10 };
    static const struct span span[] = {
        { 0, 3 },  { 10, 15 },  { 21, 3 },  { 41, 1 },  { 80, 6 },
        { 90, 2 }, { 119, 12 }, { 139, 4 }, { 178, 8 }, { 227, 0 }
    };

    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 10, 4);
    run_open(&r);
    many(4, 10, 80);
    play(arrives, span);
    assert_int_equal(q[3]->n_prompt, 41);
    run_end(&r, q, n_seqs);
}

static void
higher_priority_takes_a_slot(void **state) /* C-17 */
{
    static const int arrives[] = { 0, 0, 2, 2 };
    static const struct span span[] = { { 0, 3 }, { 2, 12 }, { 12, 3 }, { 20, 0 } };

    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 10, 2);
    run_open(&r);
    many(4, 10, 10);
    q[2]->priority = 0.6f;
    q[3]->priority = 0.7f;
    play(arrives, span);
    assert_int_equal(q[0]->n_prompt, 12);
    assert_int_equal(q[1]->max_new, 8);
    run_end(&r, q, n_seqs);
}

static void
static_batch_drains_before_the_next_starts(void **state) /* C-21 */
{
    static const struct span span[] = { { 0, 3 }, { 40, 1 }, { 80, 4 }, { 160, 0 } };

    (void)state;
    open_pool(POLICY_STATIC, 20, 2);
    run_open(&r);
    request(10, 80);
    request(10, 40);
    request(10, 80);
    play(NULL, span);
    run_end(&r, q, n_seqs);
}

static void
static_batch_admits_all_that_fit_even_without_tokens(void **state)
{
    (void)state;
    open_pool(POLICY_STATIC, 0, 3);
    r.l.max_tokens = r.l.chunk_unit = 20; /* a prompt takes two steps */
    run_open(&r);
    request(30, 18);
    request(30, 17);
    request(30, 16);
    request(30, 10);
    for (int i = 0; i < 4; i++) run_add(&r, q[i]);
    assert_non_null(run_step(&r, 0));
    assert_int_equal(scheduler_counts(r.s).running, 3);
    do {
        bool over = q[0]->state == SEQ_ENDED && q[1]->state == SEQ_ENDED &&
                    q[2]->state == SEQ_ENDED;

        assert_true(over || q[3]->state == SEQ_WAITING);
    } while (run_step(&r, 0));
    assert_int_equal(q[3]->state, SEQ_ENDED);
    run_end(&r, q, n_seqs);
}

static void
max_requests_counts_no_blocks_if_all_requests_fit(void **state)
{
    static const struct span span[] = { { 0, 3 }, { 10, 12 }, { 20, 0 } };
    struct scheduler *s;
    struct err e;

    (void)state;
    open_pool(POLICY_MAX_REQUESTS, 18, 2);
    run_open(&r);
    many(4, 10, 10);
    play(NULL, span);
    run_end(&r, q, n_seqs);

    open_pool(POLICY_NO_EVICT, 17, 2); /* two of 90 tokens need 18 blocks */
    run_open(&r);
    r.l.policy = POLICY_MAX_REQUESTS;
    assert_int_equal(scheduler_new(&s, &r.l, r.kv, &e), -EINVAL);
    assert_non_null(strstr(e.text, "2 requests of 90 tokens"));
    run_end(&r, q, n_seqs);
}

static void
sequence_in_flight_is_preempted_after_its_step(void **state) /* A2: no victim has work in flight */
{
    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 4, 2);
    run_open(&r);
    many(2, 18, 20);
    run_add(&r, q[0]);
    run_add(&r, q[1]);
    for (int i = 0; i < 3; i++) { /* positions 18 and 19: the last of two blocks each */
        assert_non_null(run_plan(&r, 0));
        if (i > 0) run_commit(&r, 0);
    }
    assert_null(run_plan(&r, 0)); /* no block for position 20: the last sequence is preempted */
    assert_int_equal(q[1]->state, SEQ_PREEMPTED);
    assert_int_equal(run_used(&r), 4);
    run_commit(&r, 0);
    assert_int_equal(q[1]->state, SEQ_WAITING);
    assert_int_equal(q[1]->n_prompt, 18 + 3); /* the token of the step in flight counts */
    assert_int_equal(run_used(&r), 2);
    assert_true(in_batch(run_plan(&r, 0), q[0]));
    while (run_commit(&r, 0)) run_plan(&r, 0);
    assert_int_equal(q[0]->reason, LAGAN_FINISH_LENGTH);
    assert_int_equal(q[1]->reason, LAGAN_FINISH_LENGTH);
    run_end(&r, q, n_seqs);
}

static void
ending_sequence_is_awaited_before_preemption(void **state)
{
    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 4, 2);
    run_open(&r);
    request(19, 5);
    request(18, 2);
    run_add(&r, q[0]);
    run_add(&r, q[1]);
    run_plan(&r, 0);
    assert_true(in_batch(run_plan(&r, 0), q[1]));
    assert_int_equal(q[1]->state, SEQ_LAST);
    run_commit(&r, 0);
    assert_null(run_plan(&r, 0)); /* no block yet for position 20 of the first */
    while (run_commit(&r, 0)) run_plan(&r, 0);
    assert_int_equal(q[0]->reason, LAGAN_FINISH_LENGTH);
    assert_int_equal(q[0]->n_preemptions + q[1]->n_preemptions, 0);
    run_end(&r, q, n_seqs);
}

static void
preempted_encoder_decoder_resumes_with_its_encoder(
    void **state) /* A2: the cross KV was freed as well */
{
    uint32_t encoded = 0;

    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 4, 2);
    r.c.n_groups = 2;
    r.c.group[1] = run_group(KV_CROSS, 0, 128, 4);
    r.l.n_enc_layers = 2;
    r.l.max_enc_tokens = 100;
    run_open(&r);
    for (int i = 0; i < 2; i++) run_add(&r, q[n_seqs++] = seq_new((req_id)i, 1, 30, 15));
    for (const struct batch *b; (b = run_step(&r, 0));)
        for (uint32_t i = 0; i < b->n_encode; i++) encoded += b->encode[i].n_tokens;
    assert_int_equal(q[0]->n_preemptions, 0);
    assert_true(q[1]->n_preemptions > 0);
    assert_int_equal(encoded, 15 * (2 + q[1]->n_preemptions));
    assert_int_equal(q[1]->reason, LAGAN_FINISH_LENGTH);
    run_end(&r, q, n_seqs);
}

static void
preemption_keeps_min_new_and_end_ids(void **state)
{
    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 10, 2);
    run_open(&r);
    many(2, 10, 80);
    q[1]->min_new = 60;
    q[1]->n_end = q[1]->n_eos = 2;
    q[1]->end_id[0] = fake_token(1, 10 + 50);
    q[1]->end_id[1] = fake_token(1, 10 + 63);
    run_add(&r, q[0]);
    run_add(&r, q[1]);
    while (run_step(&r, 0)) {
    }
    assert_int_equal(q[1]->n_preemptions, 1);
    assert_int_equal(q[1]->n_tokens, 10 + 64);
    assert_int_equal(q[1]->reason, LAGAN_FINISH_EOS);
    run_end(&r, q, n_seqs);
}

static void
preempted_sequence_ends_on_cancel_or_deadline(void **state)
{
    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 10, 3);
    run_open(&r);
    many(2, 10, 80);
    run_add(&r, q[0]);
    run_add(&r, q[1]);
    while (q[1]->n_preemptions == 0) run_step(&r, 0);
    scheduler_cancel(r.s, 1, LAGAN_E_CANCELLED);
    assert_ptr_equal(scheduler_reap(r.s), q[1]);
    assert_int_equal(q[1]->reason, LAGAN_E_CANCELLED);
    run_check_tokens(q[1]);
    while (run_step(&r, 0)) {
    }
    run_end(&r, q, n_seqs);
}

static void
prompt_logprobs_are_reported_once(void **state)
{
    uint32_t n_reported = 0;

    (void)state;
    open_pool(POLICY_MAX_UTILIZATION, 10, 2);
    run_open(&r);
    many(2, 10, 80);
    q[1]->prompt_logprobs = true;
    run_add(&r, q[0]);
    run_add(&r, q[1]);
    for (const struct batch *b; (b = run_step(&r, 0));)
        for (uint32_t i = 0; i < b->n_segments; i++)
            if (b->segment[i].flags & SEGMENT_PROMPT_LOGPROBS) n_reported += b->segment[i].n_tokens;
    assert_int_equal(q[1]->n_preemptions, 1);
    assert_int_equal(n_reported, 10);
    run_end(&r, q, n_seqs);
}

static void
suspended_next_sequence_is_preempted_and_the_walk_continues(void **state)
{
    struct seq *suspended, *last, *first;

    (void)state;
    run_defaults(&r);
    r.l.policy = POLICY_MAX_UTILIZATION;
    r.l.max_seqs = 1;
    run_open(&r);
    suspended = seq_new(1, 5, 30, 0);
    run_add(&r, suspended);
    run_step(&r, 0);
    run_step(&r, 0);
    scheduler_suspend(r.s, 1, true);
    last = seq_new(2, 5, 3, 0);
    last->priority = 0;
    run_add(&r, last);
    first = seq_new(3, 5, 3, 0);
    first->priority = 1;
    run_add(&r, first);
    assert_true(in_batch(run_step(&r, 0), first)); /* looped without end before */
    assert_int_equal(suspended->state, SEQ_WAITING);
    scheduler_suspend(r.s, 1, false);
    while (run_step(&r, 0)) continue;
    for (struct seq *over; (over = scheduler_reap(r.s));) {
        run_check_tokens(over);
        assert_int_equal(over->reason, LAGAN_FINISH_LENGTH);
        seq_free(over);
    }
    run_close(&r);
}

/* The sequence, or the group of n, with m tokens to generate passes the check of the scheduler. */
static bool
fits_with(struct seq *first, uint32_t max_new)
{
    for (struct seq *m = first; m; m = m->next_member) m->max_new = max_new;
    return limits_check_seq(r.s, first, NULL) == 0;
}

static void
most_new_is_the_largest_output_that_fits_alone(void **state)
{
    (void)state;
    for (int policy = 0; policy <= POLICY_STATIC; policy++) {
        for (uint32_t prompt = 1; prompt < 70; prompt += 13) {
            for (uint32_t n = 1; n <= 3; n++) {
                struct seq *one, *m, *next;
                uint32_t most;

                open_pool((enum policy)policy, 6, MAX);
                run_open(&r);
                one = n > 1 ? seq_group_of(1, n, /* beams= */ false, prompt, 90 - prompt, 0)
                            : seq_new(1, prompt, 90 - prompt, 0);
                most = scheduler_most_new(r.s, one);
                for (uint32_t k = 1; k <= 90 - prompt; k++)
                    assert_int_equal(fits_with(one, k), k <= most);
                for (m = one; m; m = next) {
                    next = m->next_member;
                    seq_free(m);
                }
                run_close(&r);
            }
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_runs_requests_that_fit),
        cmocka_unit_test(max_utilization_admits_what_fits_and_preempts_the_last),
        cmocka_unit_test(lower_priority_is_preempted),
        cmocka_unit_test(prompt_that_does_not_fit_waits_without_preemption),
        cmocka_unit_test(late_arrivals_are_preempted_first_and_resume_in_order),
        cmocka_unit_test(higher_priority_takes_a_slot),
        cmocka_unit_test(static_batch_drains_before_the_next_starts),
        cmocka_unit_test(static_batch_admits_all_that_fit_even_without_tokens),
        cmocka_unit_test(max_requests_counts_no_blocks_if_all_requests_fit),
        cmocka_unit_test(sequence_in_flight_is_preempted_after_its_step),
        cmocka_unit_test(ending_sequence_is_awaited_before_preemption),
        cmocka_unit_test(preempted_encoder_decoder_resumes_with_its_encoder),
        cmocka_unit_test(preemption_keeps_min_new_and_end_ids),
        cmocka_unit_test(preempted_sequence_ends_on_cancel_or_deadline),
        cmocka_unit_test(prompt_logprobs_are_reported_once),
        cmocka_unit_test(suspended_next_sequence_is_preempted_and_the_walk_continues),
        cmocka_unit_test(most_new_is_the_largest_output_that_fits_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
