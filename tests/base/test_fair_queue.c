/* test_fair_queue.c - a deficit round robin whose order is a number: see base/fair_queue.h. */
#include "tests/test.h"

#include "base/fair_queue.h"

static struct fair_queue turns;

static void
begin(uint64_t quantum)
{
    turns = (struct fair_queue){ .quantum = quantum };
}

static void
who_asks_for_little_comes_before_what_was_asked_for_in_a_flood(void **state)
{
    uint64_t last = 0;

    (void)state;
    begin(100);
    for (int i = 0; i < 50; i++) {
        uint64_t turn = fair_queue_give(&turns, 1, 250);

        assert_true(turn > last);
        last = turn;
    }
    assert_int_equal(last, 125);
    fair_queue_take(&turns, 3); /* the first of them goes */
    assert_int_equal(fair_queue_give(&turns, 2, 90), 4);
    assert_int_equal(fair_queue_give(&turns, 2, 90), 5);
}

static void
each_client_is_allowed_a_quantum_in_each_turn(void **state)
{
    uint64_t had[3] = { 0 };

    (void)state;
    begin(100);
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t client = i % 3, cost = client == 0 ? 10 : client == 1 ? 100 : 1000;

        if (fair_queue_give(&turns, client, cost) <= 20) had[client] += cost;
    }
    assert_int_equal(had[0], 1000); /* all it asked for */
    assert_int_equal(had[1], 2000);
    assert_int_equal(had[2], 2000);
}

static void
what_was_asked_for_and_not_used_is_given_back(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(fair_queue_give(&turns, 1, 1000), 10);
    assert_int_equal(fair_queue_give(&turns, 1, 100), 11);
    fair_queue_end(&turns, 1, 900);
    assert_int_equal(fair_queue_give(&turns, 1, 100), 11); /* but not before its own */
    assert_int_equal(fair_queue_give(&turns, 1, 900), 12);
}

static void
who_comes_anew_has_saved_nothing(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(fair_queue_give(&turns, 1, 100), 1);
    fair_queue_end(&turns, 1, 0);
    fair_queue_take(&turns, 40);
    assert_int_equal(fair_queue_give(&turns, 1, 300), 43);
    assert_int_equal(fair_queue_give(&turns, 2, 300), 43);
}

static void
without_a_quantum_everybody_is_in_turn_0(void **state)
{
    (void)state;
    begin(0);
    assert_int_equal(fair_queue_give(&turns, 1, 1000), 0);
    assert_int_equal(fair_queue_give(&turns, 1, 1000), 0);
    fair_queue_end(&turns, 1, 5000);
    assert_int_equal(fair_queue_give(&turns, 2, 1), 0);
}

static void
what_comes_to_more_than_was_said_is_due_before_the_next(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(fair_queue_give(&turns, 1, 100), 1);
    fair_queue_change(&turns, 1, 100, 400);
    assert_int_equal(fair_queue_give(&turns, 1, 100), 5);
    fair_queue_change(&turns, 1, 100, 50);
    fair_queue_end(&turns, 1, 50);
    assert_int_equal(fair_queue_give(&turns, 1, 100), 5);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_asks_for_little_comes_before_what_was_asked_for_in_a_flood),
        cmocka_unit_test(each_client_is_allowed_a_quantum_in_each_turn),
        cmocka_unit_test(what_was_asked_for_and_not_used_is_given_back),
        cmocka_unit_test(who_comes_anew_has_saved_nothing),
        cmocka_unit_test(what_comes_to_more_than_was_said_is_due_before_the_next),
        cmocka_unit_test(without_a_quantum_everybody_is_in_turn_0),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
