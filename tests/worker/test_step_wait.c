/* test_step_wait.c - cost and delay of polling for the end of steps, over simulated steps. */
#include "worker/step_wait.h"

#include "base/clock.h"
#include "tests/test.h"

enum { DECODE = 4, PREFILL = 2 };

/* Cost of one step of this length: time polled, number of naps, delay until its end was noticed. A
 * timer wakes up to `slack` late. */
struct cost {
    nsec polled, late;
    uint32_t naps;
    bool observed;
};

static struct cost
run(const struct step_wait *p, uint8_t work, uint32_t n_tokens, nsec length, nsec slack)
{
    struct cost c = { 0 };
    nsec now = 0;

    for (;;) {
        struct step_wait_next w = step_wait_next(p, work, n_tokens, 0, now);

        assert_true(w.until > now);
        c.observed = w.poll;
        if (w.poll) {
            c.polled += MIN(w.until, MAX(length, now)) - now;
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

/* Sums the cost of n steps around a length; each step is learned after its end. */
static struct cost
series(struct step_wait *p, uint32_t n_tokens, uint32_t n, nsec length, nsec noise, nsec slack)
{
    struct cost sum = { 0 };

    for (uint32_t i = 0; i < n; i++) {
        nsec took = length - noise / 2 + (nsec)test_below((uint32_t)noise + 1);
        struct cost c = run(p, DECODE, n_tokens, took, slack);

        sum.polled += c.polled;
        sum.late += c.late;
        sum.naps += c.naps;
        step_wait_learn(p, DECODE, n_tokens, took, c.observed);
    }
    return sum;
}

static void
steady_step_is_noticed_at_once_after_short_polling(void **state)
{
    static const nsec length[] = { 300 * NSEC_US, 4 * NSEC_MS, 6 * NSEC_MS, 18 * NSEC_MS };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(length); i++) {
        struct step_wait p = { 0 };
        struct cost c;

        series(&p, 64, 30, length[i], length[i] / 50, 20 * NSEC_US);
        c = series(&p, 64, 100, length[i], length[i] / 50, 20 * NSEC_US);
        assert_true(c.polled / 100 < MAX(length[i] / 10, 60 * NSEC_US));
        assert_true(c.late / 100 < 10 * NSEC_US);
        assert_true(c.naps < 200 + 100 * length[i] / NSEC_MS);
    }
}

static void
unsteady_step_costs_at_most_20_percent_of_a_core(void **state)
{
    struct step_wait p = { 0 };
    struct cost c;

    (void)state;
    c = series(&p, 64, 300, 6 * NSEC_MS, 6 * NSEC_MS, 50 * NSEC_US);
    assert_true(c.polled < 300 * 6 * NSEC_MS / 5);
    assert_true(c.late / 300 < NSEC_MS / 2);
}

static void
new_kind_of_step_is_noticed_within_an_eighth(void **state)
{
    struct step_wait p = { 0 };

    (void)state;
    for (nsec length = 10 * NSEC_US; length < 5 * NSEC_S; length *= 3) {
        struct cost c = run(&p, PREFILL, 8192, length, 0);

        assert_int_equal(c.polled, 0);
        assert_true(c.late <= MAX(length / 7, 20 * NSEC_US) && c.late <= NSEC_MS);
    }
}

/* The first step also loads kernels. */
static void
slow_first_step_does_not_delay_the_next(void **state)
{
    struct step_wait p = { 0 };

    (void)state;
    step_wait_learn(&p, PREFILL, 1024, 80 * NSEC_MS, false);
    assert_true(run(&p, PREFILL, 1024, 24 * NSEC_MS, 0).late <= NSEC_MS);
}

static void
hanging_device_is_polled_1000_times_per_second(void **state)
{
    struct step_wait p = { 0 };
    struct cost c;

    (void)state;
    series(&p, 1, 50, 4 * NSEC_MS, 1000, 0);
    c = run(&p, DECODE, 1, 3 * NSEC_S, 0);
    assert_true(c.polled < NSEC_MS);
    assert_true(c.naps < 3200);
}

static void
longer_duration_is_learned_in_a_few_steps(void **state)
{
    struct step_wait p = { 0 };
    struct cost c;

    (void)state;
    series(&p, 100, 50, 4 * NSEC_MS, 1000, 0);
    series(&p, 100, 40, 9 * NSEC_MS, 1000, 0);
    c = series(&p, 100, 20, 9 * NSEC_MS, 1000, 0);
    assert_true(c.late / 20 < 10 * NSEC_US);
    assert_true(c.polled / 20 < 300 * NSEC_US);
}

static void
shorter_duration_is_learned(void **state)
{
    struct step_wait p = { 0 };
    struct cost c;

    (void)state;
    series(&p, 100, 50, 9 * NSEC_MS, 1000, 0);
    series(&p, 100, 60, 4 * NSEC_MS, 1000, 0);
    c = series(&p, 100, 20, 4 * NSEC_MS, 1000, 0);
    assert_true(c.late / 20 < 20 * NSEC_US);
    assert_true(c.polled / 20 < 400 * NSEC_US);
}

/* The first step of a kind loads kernels and is 60 times longer; later sleeps must not use its
 * duration. As in the engine, the duration includes the delay until it was noticed. */
static void
slow_first_step_does_not_affect_predictions(void **state)
{
    struct step_wait p = { 0 };
    nsec late = 0;

    (void)state;
    step_wait_learn(&p, DECODE, 1, 60 * NSEC_MS, false);
    for (int i = 0; i < 10; i++) {
        struct cost c = run(&p, DECODE, 1, NSEC_MS, 20 * NSEC_US);

        late += c.late;
        step_wait_learn(&p, DECODE, 1, NSEC_MS + c.late, c.observed);
    }
    assert_true(late < 2 * NSEC_MS);
}

/* Steps become 8 times shorter at once. */
static void
much_shorter_duration_is_learned_in_8_steps(void **state)
{
    struct step_wait p = { 0 };
    nsec late = 0;

    (void)state;
    series(&p, 100, 50, 16 * NSEC_MS, 1000, 0);
    for (int i = 0; i < 8; i++) {
        struct cost c = run(&p, DECODE, 100, 2 * NSEC_MS, 20 * NSEC_US);

        late = c.late;
        step_wait_learn(&p, DECODE, 100, 2 * NSEC_MS + c.late, c.observed);
    }
    assert_true(late < NSEC_MS / 2);
}

static void
durations_are_kept_per_kind_and_size(void **state)
{
    static const struct {
        uint8_t work;
        uint32_t n_tokens;
        nsec took;
    } kind[] = {
        { DECODE, 1, 4 * NSEC_MS },
        { DECODE, 256, 12 * NSEC_MS },
        { DECODE | PREFILL, 256, 30 * NSEC_MS },
        { PREFILL, 1 << 19, NSEC_S },
    };
    struct step_wait p = { 0 };

    (void)state;
    for (int i = 0; i < 20; i++)
        for (size_t k = 0; k < ARRAY_LEN(kind); k++)
            step_wait_learn(&p, kind[k].work, kind[k].n_tokens, kind[k].took, true);
    for (size_t i = 0; i < ARRAY_LEN(kind); i++) {
        nsec left = step_wait_left(&p, kind[i].work, kind[i].n_tokens, 0, 0);

        assert_true(left > kind[i].took * 99 / 100 && left < kind[i].took * 101 / 100);
    }
    /* No step of this size has been measured. */
    assert_int_equal(step_wait_left(&p, DECODE, 64, 0, 0), -1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady_step_is_noticed_at_once_after_short_polling),
        cmocka_unit_test(unsteady_step_costs_at_most_20_percent_of_a_core),
        cmocka_unit_test(new_kind_of_step_is_noticed_within_an_eighth),
        cmocka_unit_test(slow_first_step_does_not_delay_the_next),
        cmocka_unit_test(hanging_device_is_polled_1000_times_per_second),
        cmocka_unit_test(longer_duration_is_learned_in_a_few_steps),
        cmocka_unit_test(shorter_duration_is_learned),
        cmocka_unit_test(slow_first_step_does_not_affect_predictions),
        cmocka_unit_test(much_shorter_duration_is_learned_in_8_steps),
        cmocka_unit_test(durations_are_kept_per_kind_and_size),
    };

    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
