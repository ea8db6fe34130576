/* test_fair_queue.c - tests of deficit round robin tags, base/fair_queue.h. */
#include "tests/test.h"

#include "base/fair_queue.h"

static struct fair_queue queue;

static void
begin(uint64_t quantum)
{
    queue = (struct fair_queue){ .quantum = quantum };
}

static void
small_request_precedes_a_burst_of_another_client(void **state)
{
    uint64_t last = 0;

    (void)state;
    begin(100);
    for (int i = 0; i < 50; i++) {
        uint64_t tag = fair_queue_give(&queue, 1, 250);

        assert_true(tag > last);
        last = tag;
    }
    assert_int_equal(last, 125);
    fair_queue_take(&queue, 3); /* the first request is scheduled */
    assert_int_equal(fair_queue_give(&queue, 2, 90), 4);
    assert_int_equal(fair_queue_give(&queue, 2, 90), 5);
}

static void
each_client_gets_one_quantum_in_each_round(void **state)
{
    uint64_t had[3] = { 0 };

    (void)state;
    begin(100);
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t client = i % 3, cost = client == 0 ? 10 : client == 1 ? 100 : 1000;

        if (fair_queue_give(&queue, client, cost) <= 20) had[client] += cost;
    }
    assert_int_equal(had[0], 1000); /* all requested tokens */
    assert_int_equal(had[1], 2000);
    assert_int_equal(had[2], 2000);
}

static void
unused_tokens_are_credited(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(fair_queue_give(&queue, 1, 1000), 10);
    assert_int_equal(fair_queue_give(&queue, 1, 100), 11);
    fair_queue_end(&queue, 1, 900);
    assert_int_equal(fair_queue_give(&queue, 1, 100), 11); /* not before its own requests */
    assert_int_equal(fair_queue_give(&queue, 1, 900), 12);
}

static void
client_without_requests_accumulates_no_credit(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(fair_queue_give(&queue, 1, 100), 1);
    fair_queue_end(&queue, 1, 0);
    fair_queue_take(&queue, 40);
    assert_int_equal(fair_queue_give(&queue, 1, 300), 43);
    assert_int_equal(fair_queue_give(&queue, 2, 300), 43);
}

static void
all_tags_are_0_without_a_quantum(void **state)
{
    (void)state;
    begin(0);
    assert_int_equal(fair_queue_give(&queue, 1, 1000), 0);
    assert_int_equal(fair_queue_give(&queue, 1, 1000), 0);
    fair_queue_end(&queue, 1, 5000);
    assert_int_equal(fair_queue_give(&queue, 2, 1), 0);
}

static void
underestimated_request_delays_the_next_one_of_its_client(void **state)
{
    (void)state;
    begin(100);
    assert_int_equal(fair_queue_give(&queue, 1, 100), 1);
    fair_queue_change(&queue, 1, 100, 400);
    assert_int_equal(fair_queue_give(&queue, 1, 100), 5);
    fair_queue_change(&queue, 1, 100, 50);
    fair_queue_end(&queue, 1, 50);
    assert_int_equal(fair_queue_give(&queue, 1, 100), 5);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_request_precedes_a_burst_of_another_client),
        cmocka_unit_test(each_client_gets_one_quantum_in_each_round),
        cmocka_unit_test(unused_tokens_are_credited),
        cmocka_unit_test(client_without_requests_accumulates_no_credit),
        cmocka_unit_test(underestimated_request_delays_the_next_one_of_its_client),
        cmocka_unit_test(all_tags_are_0_without_a_quantum),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
