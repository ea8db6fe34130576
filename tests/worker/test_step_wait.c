/* test_step_wait.c - cost and delay of polling for the end of steps, over simulated steps. */
#include "worker/step_wait.h"

#include "base/clock.h"
#include "tests/test.h"

#include <string.h>

enum { GENERATION = 4, CONTEXT = 2 };

/* What one step of that length costs: how long we looked, how many times we slept, how late we saw it. A
 * timer wakes up to slack late. */
struct cost {
    nsec looked, late;
    uint32_t naps;
    bool seen;
};

static struct cost
run(const struct step_wait *p, uint8_t work, uint32_t rows, nsec length, nsec slack)
{
    struct cost c = { 0 };
    nsec now = 0;

    for (;;) {
        struct step_wait_next w = step_wait_next(p, work, rows, 0, now);

        assert_true(w.until > now);
        c.seen = w.poll;
        if (w.poll) {
            c.looked += MIN(w.until, MAX(length, now)) - now;
            now = MIN(w.until, MAX(length, now + 1));
        } else {
            c.naps++;
            now = w.until + (slack ? (nsec)test_below((uint32_t)slack) : 0);
        }
        if (now >= length) break;
    }
    c.late = now - length;
    return c;
}

/* Steps around a length, each learned after it was waited for; the sums of what they cost. */
static struct cost
series(struct step_wait *p, uint32_t rows, uint32_t n, nsec length, nsec noise, nsec slack)
{
    struct cost sum = { 0 };

    for (uint32_t i = 0; i < n; i++) {
        nsec took = length - noise / 2 + (nsec)test_below((uint32_t)noise + 1);
        struct cost c = run(p, GENERATION, rows, took, slack);

        sum.looked += c.looked;
        sum.late += c.late;
        sum.naps += c.naps;
        step_wait_learn(p, GENERATION, rows, took, c.seen);
    }
    return sum;
}

static void
a_steady_step_is_seen_at_once_and_looked_for_shortly(void **state)
{
    static const nsec length[] = { 300 * NSEC_US, 4 * NSEC_MS, 6 * NSEC_MS, 18 * NSEC_MS };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(length); i++) {
        struct step_wait p = { 0 };
        struct cost c;

        series(&p, 64, 30, length[i], length[i] / 50, 20 * NSEC_US);
        c = series(&p, 64, 100, length[i], length[i] / 50, 20 * NSEC_US);
        assert_true(c.looked / 100 < MAX(length[i] / 10, 60 * NSEC_US));
        assert_true(c.late / 100 < 10 * NSEC_US);
        assert_true(c.naps < 200 + 100 * length[i] / NSEC_MS);
    }
}

static void
an_unsteady_step_costs_a_fifth_of_a_core_at_most(void **state)
{
    struct step_wait p = { 0 };
    struct cost c;

    (void)state;
    c = series(&p, 64, 300, 6 * NSEC_MS, 6 * NSEC_MS, 50 * NSEC_US);
    assert_true(c.looked < 300 * 6 * NSEC_MS / 5);
    assert_true(c.late / 300 < NSEC_MS / 2);
}

static void
a_step_never_seen_before_is_found_within_an_eighth_of_its_length(void **state)
{
    struct step_wait p = { 0 };

    (void)state;
    for (nsec length = 10 * NSEC_US; length < 5 * NSEC_S; length *= 3) {
        struct cost c = run(&p, CONTEXT, 8192, length, 0);

        assert_int_equal(c.looked, 0);
        assert_true(c.late <= MAX(length / 7, 20 * NSEC_US) && c.late <= NSEC_MS);
    }
}

/* As the first step is whose kernels were not on the device yet. */
static void
a_first_step_that_took_long_does_not_make_the_next_one_late(void **state)
{
    struct step_wait p = { 0 };

    (void)state;
    step_wait_learn(&p, CONTEXT, 1024, 80 * NSEC_MS, false);
    assert_true(run(&p, CONTEXT, 1024, 24 * NSEC_MS, 0).late <= NSEC_MS);
}

static void
a_device_that_hangs_is_looked_at_a_thousand_times_a_second(void **state)
{
    struct step_wait p = { 0 };
    struct cost c;

    (void)state;
    series(&p, 1, 50, 4 * NSEC_MS, 1000, 0);
    c = run(&p, GENERATION, 1, 3 * NSEC_S, 0);
    assert_true(c.looked < NSEC_MS);
    assert_true(c.naps < 3200);
}

static void
a_new_length_is_learned_in_a_few_steps(void **state)
{
    struct step_wait p = { 0 };
    struct cost c;

    (void)state;
    series(&p, 100, 50, 4 * NSEC_MS, 1000, 0);
    series(&p, 100, 40, 9 * NSEC_MS, 1000, 0);
    c = series(&p, 100, 20, 9 * NSEC_MS, 1000, 0);
    assert_true(c.late / 20 < 10 * NSEC_US);
    assert_true(c.looked / 20 < 300 * NSEC_US);
}

static void
a_step_that_became_shorter_is_found_out(void **state)
{
    struct step_wait p = { 0 };
    struct cost c;

    (void)state;
    series(&p, 100, 50, 9 * NSEC_MS, 1000, 0);
    series(&p, 100, 60, 4 * NSEC_MS, 1000, 0);
    c = series(&p, 100, 20, 4 * NSEC_MS, 1000, 0);
    assert_true(c.late / 20 < 20 * NSEC_US);
    assert_true(c.looked / 20 < 400 * NSEC_US);
}

/* The first step of a kind loads kernels and makes plans: sixty times as long as the others. Nobody sleeps
 * as long again because of it. What is learned is when we noticed, as the engine does. */
static void
a_first_step_that_took_long_says_nothing_of_the_next(void **state)
{
    struct step_wait p = { 0 };
    nsec late = 0;

    (void)state;
    step_wait_learn(&p, GENERATION, 1, 60 * NSEC_MS, false);
    for (int i = 0; i < 10; i++) {
        struct cost c = run(&p, GENERATION, 1, NSEC_MS, 20 * NSEC_US);

        late += c.late;
        step_wait_learn(&p, GENERATION, 1, NSEC_MS + c.late, c.seen);
    }
    assert_true(late < 2 * NSEC_MS);
}

/* From one step to the next they are an eighth as long: found out in a few. */
static void
a_step_that_became_much_shorter_is_found_out_soon(void **state)
{
    struct step_wait p = { 0 };
    nsec late = 0;

    (void)state;
    series(&p, 100, 50, 16 * NSEC_MS, 1000, 0);
    for (int i = 0; i < 8; i++) {
        struct cost c = run(&p, GENERATION, 100, 2 * NSEC_MS, 20 * NSEC_US);

        late = c.late;
        step_wait_learn(&p, GENERATION, 100, 2 * NSEC_MS + c.late, c.seen);
    }
    assert_true(late < NSEC_MS / 2);
}

static void
kinds_and_sizes_of_work_are_kept_apart(void **state)
{
    static const struct {
        uint8_t work;
        uint32_t rows;
        nsec took;
    } kind[] = {
        { GENERATION, 1, 4 * NSEC_MS },
        { GENERATION, 256, 12 * NSEC_MS },
        { GENERATION | CONTEXT, 256, 30 * NSEC_MS },
        { CONTEXT, 1 << 19, NSEC_S },
    };
    struct step_wait p = { 0 };

    (void)state;
    for (int i = 0; i < 20; i++)
        for (size_t k = 0; k < ARRAY_LEN(kind); k++)
            step_wait_learn(&p, kind[k].work, kind[k].rows, kind[k].took, true);
    for (size_t i = 0; i < ARRAY_LEN(kind); i++) {
        nsec left = step_wait_left(&p, kind[i].work, kind[i].rows, 0, 0);

        assert_true(left > kind[i].took * 99 / 100 && left < kind[i].took * 101 / 100);
    }
    /* A size without a step of its own is unknown. */
    assert_int_equal(step_wait_left(&p, GENERATION, 64, 0, 0), -1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_steady_step_is_seen_at_once_and_looked_for_shortly),
        cmocka_unit_test(an_unsteady_step_costs_a_fifth_of_a_core_at_most),
        cmocka_unit_test(a_step_never_seen_before_is_found_within_an_eighth_of_its_length),
        cmocka_unit_test(a_first_step_that_took_long_does_not_make_the_next_one_late),
        cmocka_unit_test(a_device_that_hangs_is_looked_at_a_thousand_times_a_second),
        cmocka_unit_test(a_new_length_is_learned_in_a_few_steps),
        cmocka_unit_test(a_step_that_became_shorter_is_found_out),
        cmocka_unit_test(a_first_step_that_took_long_says_nothing_of_the_next),
        cmocka_unit_test(a_step_that_became_much_shorter_is_found_out_soon),
        cmocka_unit_test(kinds_and_sizes_of_work_are_kept_apart),
    };

    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
