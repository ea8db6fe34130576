/* test_route.c - the promises of route.h. */
#include "route/route.h"

#include "tests/test.h"

static void
the_least_loaded_by_tokens_is_taken(void **state)
{
    const struct route_worker w[] = {
        { true, 0, 1, 10, 500 },
        { true, 0, 9, 10, 100 },
        { true, 0, 2, 10, 300 },
    };

    (void)state;
    assert_int_equal(route_pick(w, 3, 0), 1);
}

static void
of_equals_fewer_requests_then_the_lower_index(void **state)
{
    struct route_worker w[] = { { true, 0, 3, 10, 100 },
                                { true, 0, 2, 10, 100 },
                                { true, 0, 2, 10, 100 } };

    (void)state;
    assert_int_equal(route_pick(w, 3, 0), 1);
    w[0].rows = 2;
    assert_int_equal(route_pick(w, 3, 0), 0);
}

static void
closed_full_and_other_models_workers_are_not_taken(void **state)
{
    const struct route_worker w[] = {
        { false, 0, 0, 10, 0 },
        { true, 1, 0, 10, 0 },
        { true, 0, 10, 10, 0 },
        { true, 0, 9, 10, 900 },
    };

    (void)state;
    assert_int_equal(route_pick(w, 4, 0), 3);
    assert_int_equal(route_pick(w, 3, 0), ROUTE_NONE);
    assert_int_equal(route_pick(w, 4, 1), 1);
    assert_int_equal(route_pick(w, 4, 2), ROUTE_NONE);
    assert_int_equal(route_pick(NULL, 0, 0), ROUTE_NONE);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_loaded_by_tokens_is_taken),
        cmocka_unit_test(of_equals_fewer_requests_then_the_lower_index),
        cmocka_unit_test(closed_full_and_other_models_workers_are_not_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
