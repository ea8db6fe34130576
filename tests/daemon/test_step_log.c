/* test_step_log.c - step records are copied once, in order, whatever the worker does. */
#include "daemon/supervise/step_log.h"

#include "tests/test.h"

static struct step_records of;
static struct step_log l;

static void
put(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t k = atomic_load(&of.n);
        struct step_record *r = &of.entry[k % STEP_RECORDS];

        r->step = k + 1;
        atomic_store(&r->seq, 2 * k + 2);
        atomic_store(&of.n, k + 1);
    }
}

static int
set_up(void **state)
{
    (void)state;
    memset(&of, 0, sizeof of);
    memset(&l, 0, sizeof l);
    return 0;
}

static void
steps_continue_their_numbers_in_the_next_process(void **state)
{
    (void)state;
    put(3);
    assert_int_equal(step_log_read(&l, &of), 1);
    assert_int_equal(step_log_read(&l, &of), 4); /* nothing new */
    put(2);
    assert_int_equal(step_log_read(&l, &of), 4);
    set_up(NULL);
    put(3);
    step_log_read(&l, &of);
    memset(&of, 0, sizeof of);
    step_log_restart(&l);
    put(2);
    assert_int_equal(step_log_read(&l, &of), 4);
    assert_int_equal(step_log_at(&l, 3)->r.step, 3);
    assert_int_equal(step_log_at(&l, 4)->r.step, 1);
    assert_int_equal(l.next, 5);
    assert_null(step_log_at(&l, 6));
}

static void
overwritten_steps_have_numbers_and_are_missing(void **state)
{
    (void)state;
    put(2);
    step_log_read(&l, &of);
    put(STEP_RECORDS + 10);
    step_log_read(&l, &of);
    assert_int_equal(l.next, STEP_RECORDS + 12);
    assert_int_equal(step_log_at(&l, 1)->number, 13);
    assert_int_equal(step_log_at(&l, 1)->r.step, 13);
}

static void
incomplete_step_is_left_out(void **state)
{
    (void)state;
    put(3);
    atomic_store(&of.entry[1].seq, 3); /* being written again */
    of.entry[2].n_pools = 255;
    step_log_read(&l, &of);
    assert_int_equal(step_log_at(&l, 2)->number, 3);
    assert_int_equal(step_log_at(&l, 3)->r.n_pools, SHM_MAX_GROUPS);
}

static void
any_counter_of_a_worker_is_survived(void **state)
{
    static const uint64_t counters[] = { UINT64_MAX, 0, 1u << 31, 5, UINT64_MAX / 2, 4096 };

    (void)state;
    put(3);
    step_log_read(&l, &of);
    for (size_t i = 0; i < ARRAY_LEN(counters); i++) {
        atomic_store(&of.n, counters[i]);
        step_log_read(&l, &of);
        assert_true(l.next < UINT32_MAX);
        step_log_at(&l, 1);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(steps_continue_their_numbers_in_the_next_process, set_up),
        cmocka_unit_test_setup(overwritten_steps_have_numbers_and_are_missing, set_up),
        cmocka_unit_test_setup(incomplete_step_is_left_out, set_up),
        cmocka_unit_test_setup(any_counter_of_a_worker_is_survived, set_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
