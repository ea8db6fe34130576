/* test_tuning.c - when the worker measures matmuls, what it keeps and what ends a pass; the device
 * is a fake.
 */
#include "worker/ops/tuning.h"

#include "base/clock.h"
#include "tests/test.h"

enum { PAIRS = 5 };
static uint32_t n_asked, n_measured, fails_at, left; /* left: requested pairs not measured yet */
static int fails_with, tunes_with;

uint32_t
exec_n_matmuls(const struct exec *x)
{
    (void)x;
    return PAIRS;
}

int
exec_matmul(struct exec *x, uint32_t i, struct err *e)
{
    (void)x;
    if (fails_with && i == fails_at) return err_set(e, fails_with, "error set by the test");
    assert_int_equal(i, n_asked % PAIRS);
    n_asked++;
    left = i != 1; /* pair 1 is already in the tuning file */
    return 0;
}

int
exec_tune(struct exec *x, struct tune_result *ret)
{
    (void)x;
    if (tunes_with) return tunes_with;
    if (!left) return 0;
    left--;
    n_measured++;
    *ret = (struct tune_result){ .n = n_asked, .rows = 16, .first = 2, .best = 1 };
    return 1;
}

const char *
exec_why(const struct exec *x)
{
    (void)x;
    return "";
}

static struct tuning
open_tuning(const char *refuse)
{
    struct tuning t;
    struct err e;

    n_asked = n_measured = left = 0;
    fails_with = tunes_with = 0;
    assert_int_equal(tuning_open(&t, NULL, refuse, NSEC_S, &e), 0);
    return t;
}

static void
tuning_is_refused_with_the_reason(void **state)
{
    struct tuning t = open_tuning("no matmuls");
    struct err e;

    (void)state;
    assert_int_equal(tuning_start(&t, &e), -ENOTSUP);
    assert_string_equal(e.text, "no matmuls");
    assert_int_equal(tuning_run(&t, true, NSEC_S, &e), 0);
    assert_int_equal(n_measured, 0);
    tuning_close(&t);
}

static void
one_matmul_per_iteration_and_only_while_idle(void **state)
{
    struct tuning t = open_tuning(NULL);
    struct tuning_state s;
    struct tune_result result[PAIRS];
    struct err e;

    (void)state;
    assert_int_equal(tuning_run(&t, true, NSEC_S, &e), 0); /* no pass was started */
    for (uint32_t pass = 0; pass < 2; pass++) {
        uint32_t n = 0;

        n_measured = 0;
        assert_int_equal(tuning_start(&t, &e), PAIRS);
        do {
            assert_int_equal(tuning_run(&t, false, NSEC_S, &e), 0);
            assert_int_equal(tuning_run(&t, true, NSEC_S, &e), 1);
            assert_true(n_measured <= n + 1);
            n = n_measured;
            tuning_read(&t, &s, 0, result, 0);
            if (s.running) assert_int_equal(tuning_start(&t, &e), PAIRS); /* the pass continues */
        } while (s.running);
        assert_int_equal(n_asked, PAIRS * (pass + 1));
        assert_int_equal(n, PAIRS - 1);
        assert_int_equal(s.done, PAIRS);
        assert_int_equal(s.n_results, PAIRS - 1);
    }
    assert_int_equal(tuning_run(&t, true, NSEC_S, &e), 0);
    tuning_close(&t);
}

/* Runs a pass to its end; returns the result of its last iteration. */
static int
run_pass(struct tuning *t)
{
    struct tuning_state s;
    struct err e;
    int r;

    assert_int_equal(tuning_start(t, &e), PAIRS);
    do {
        r = tuning_run(t, true, NSEC_S, &e);
        tuning_read(t, &s, 0, NULL, 0);
    } while (s.running);
    assert_int_equal(tuning_run(t, true, NSEC_S, &e), 0);
    return r;
}

static void
results_are_read_from_an_index(void **state)
{
    struct tuning t = open_tuning(NULL);
    struct tuning_state s;
    struct tune_result result[PAIRS];

    (void)state;
    assert_int_equal(run_pass(&t), 1);
    assert_int_equal(tuning_read(&t, &s, 1, result, 2), 2);
    assert_int_equal(result[0].n, 3);
    assert_int_equal(result[1].n, 4);
    assert_int_equal(tuning_read(&t, &s, 3, result, PAIRS), 1);
    assert_int_equal(tuning_read(&t, &s, 4, result, PAIRS), 0);
    assert_int_equal(tuning_read(&t, &s, UINT32_MAX, result, PAIRS), 0);
    assert_string_equal(s.why, "");
    tuning_close(&t);
}

static void
unsupported_pair_is_skipped_other_errors_end_the_pass(void **state)
{
    static const struct {
        int fails_with, last;
        uint32_t done, rows;
        const char *why;
    } cases[] = {
        { -ENOTSUP, 1, PAIRS, PAIRS - 2, "" },
        { -EACCES, 1, PAIRS - 1, PAIRS - 2, "error set by the test" },
        { -EIO, -EIO, PAIRS - 1, PAIRS - 2, "error set by the test" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tuning t = open_tuning(NULL);
        struct tuning_state s;
        struct tune_result result[PAIRS];

        fails_with = cases[i].fails_with;
        fails_at = PAIRS - 1;
        assert_int_equal(run_pass(&t), cases[i].last);
        assert_int_equal(tuning_read(&t, &s, 0, result, PAIRS), cases[i].rows);
        assert_int_equal(s.done, cases[i].done);
        assert_string_equal(s.why, cases[i].why);
        tuning_close(&t);
    }
}

static void
matmuls_of_requests_are_measured_after_2_idle_seconds(void **state)
{
    struct tuning t = open_tuning(NULL);
    nsec now = NSEC_S;
    struct err e;

    (void)state;
    left = 3;
    assert_int_equal(tuning_run(&t, true, now + 1999 * NSEC_MS, &e), 0);
    now += 2 * NSEC_S;
    assert_int_equal(tuning_run(&t, true, now, &e), 1);
    assert_int_equal(tuning_run(&t, true, now, &e), 1);
    assert_int_equal(tuning_run(&t, false, now, &e), 0); /* a request arrived */
    assert_int_equal(tuning_run(&t, true, now + NSEC_S, &e), 0);
    assert_int_equal(n_measured, 2);
    tunes_with = -EINVAL;
    assert_int_equal(tuning_run(&t, true, now + 2 * NSEC_S, &e), 0);
    tunes_with = 0;
    assert_int_equal(tuning_run(&t, true, now + 9 * NSEC_S, &e), 0); /* not repeated */
    assert_int_equal(n_measured, 2);
    tuning_close(&t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tuning_is_refused_with_the_reason),
        cmocka_unit_test(one_matmul_per_iteration_and_only_while_idle),
        cmocka_unit_test(results_are_read_from_an_index),
        cmocka_unit_test(matmuls_of_requests_are_measured_after_2_idle_seconds),
        cmocka_unit_test(unsupported_pair_is_skipped_other_errors_end_the_pass),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
