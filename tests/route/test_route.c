/* test_route.c - tests of route.h and block_holders.h. */
#include "route/route.h"

#include "route/block_holders.h"

#include "tests/test.h"

static void
worker_with_the_fewest_tokens_is_selected(void **state)
{
    const struct route_worker w[] = {
        { true, 0, 1, 10, 500, false },
        { true, 0, 9, 10, 100, false },
        { true, 0, 2, 10, 300, false },
    };

    (void)state;
    assert_int_equal(route_pick(w, 3, 0), 1);
}

static void
equal_load_selects_fewer_requests_then_lower_index(void **state)
{
    struct route_worker w[] = { { true, 0, 3, 10, 100, false },
                                { true, 0, 2, 10, 100, false },
                                { true, 0, 2, 10, 100, false } };

    (void)state;
    assert_int_equal(route_pick(w, 3, 0), 1);
    w[0].n_seqs = 2;
    assert_int_equal(route_pick(w, 3, 0), 0);
}

static void
closed_full_and_other_models_workers_are_skipped(void **state)
{
    const struct route_worker w[] = {
        { false, 0, 0, 10, 0, false },
        { true, 1, 0, 10, 0, false },
        { true, 0, 10, 10, 0, false },
        { true, 0, 9, 10, 900, false },
    };

    (void)state;
    assert_int_equal(route_pick(w, 4, 0), 3);
    assert_int_equal(route_pick(w, 3, 0), ROUTE_NONE);
    assert_int_equal(route_pick(w, 4, 1), 1);
    assert_int_equal(route_pick(w, 4, 2), ROUTE_NONE);
    assert_int_equal(route_pick(NULL, 0, 0), ROUTE_NONE);
}

static void
resumed_request_prefers_or_waits_for_its_home_worker(void **state)
{
    struct route_worker w[] = {
        { false, 0, 0, 10, 0, true },
        { true, 0, 5, 10, 500, false },
    };

    (void)state;
    assert_int_equal(route_home(w, 2, 0, 0), ROUTE_WAIT);
    assert_int_equal(route_home(w, 2, 0, 1), 1);
    w[1].n_seqs = 10;
    /* full at the moment; its KV is still there */
    assert_int_equal(route_home(w, 2, 0, 1), ROUTE_WAIT);
    w[1].n_seqs = 5;
    w[0].comes = false; /* failed to start */
    assert_int_equal(route_home(w, 2, 0, 0), 1);
    assert_int_equal(route_home(w, 2, 0, 7), 1);
    assert_int_equal(route_home(w, 2, 1, 0), ROUTE_NONE);
    w[0].open = true;
    assert_int_equal(route_home(w, 2, 0, 0), 0);
}

static void
request_waits_at_home_if_recompute_takes_longer(void **state)
{
    (void)state;
    assert_true(route_stays(500000000, 4000, 7000)); /* 0.57 s */
    assert_false(route_stays(500000000, 4000, 9000));
    assert_false(route_stays(500000000, 0, 1));
    assert_false(route_stays(0, UINT64_MAX, 0));
    assert_true(route_stays(500000000, UINT64_MAX, 1));
}

static void
prefix_hit_counts_as_the_tokens_it_saves(void **state)
{
    struct route_worker w[] = { { true, 0, 1, 10, 500, false, 0 },
                                { true, 0, 1, 10, 700, false, 300 } };

    (void)state;
    assert_int_equal(route_pick(w, 2, 0), 1);
    w[1].found = 199;
    assert_int_equal(route_pick(w, 2, 0), 0);
    w[0].tokens = 0;
    w[1].found = 5000; /* more than the load of any worker */
    assert_int_equal(route_pick(w, 2, 0), 1);
}

static void
add(struct block_holders *h, uint32_t worker, const uint64_t name[2], uint8_t group)
{
    block_holders_add(h, worker,
                      &(struct held_block){ .name = { name[0], name[1] }, .group = group });
}

static void
worker_with_the_longest_prefix_is_found_first(void **state)
{
    static const uint64_t name[][2] = { { 1, 10 }, { 2, 10 }, { 3, 10 }, { 66, 10 } };
    CLEAN(block_holders_free_at) struct block_holders *h = block_holders_new(16);
    uint32_t worker[2], found[2];

    (void)state;
    assert_int_equal(block_holders_find(h, name, 4, worker, found, 2), 0);
    for (int i = 0; i < 3; i++) add(h, 7, name[i], 0);
    add(h, 7, name[2], 0); /* present already */
    add(h, 5, name[0], 0);
    assert_int_equal(block_holders_find(h, name, 4, worker, found, 2), 2);
    assert_int_equal(worker[0], 7);
    assert_int_equal(found[0], 3);
    assert_int_equal(worker[1], 5);
    assert_int_equal(found[1], 1);
    assert_int_equal(block_holders_find(h, name, 1, worker, found, 1),
                     0); /* both have it: it does not distinguish them */
    block_holders_remove(h, 7, name[2], 0);
    block_holders_remove(h, 7, name[2], 0);
    add(h, 3, name[3], 0); /* same bucket as name[1] */
    assert_int_equal(block_holders_find(h, name, 3, worker, found, 2), 2);
    assert_int_equal(found[0], 2);
    block_holders_forget(h, 7);
    assert_int_equal(block_holders_find(h, name, 4, worker, found, 2), 2);
    assert_int_equal(worker[0], 3);
    assert_int_equal(found[0], 4);
    assert_int_equal(worker[1], 5);
}

static void
full_table_ignores_further_blocks(void **state)
{
    static const uint64_t name[][2] = { { 1, 1 }, { 2, 1 }, { 3, 1 } };
    CLEAN(block_holders_free_at) struct block_holders *h = block_holders_new(2);
    uint32_t worker, found;

    (void)state;
    for (int i = 0; i < 3; i++) add(h, 0, name[i], 0);
    assert_int_equal(block_holders_find(h, &name[2], 1, &worker, &found, 1), 0);
    block_holders_remove(h, 0, name[0], 0);
    add(h, 0, name[2], 0);
    assert_int_equal(block_holders_find(h, &name[2], 1, &worker, &found, 1), 1);
}

static void
block_is_held_while_one_group_has_it(void **state)
{
    static const uint64_t name[][2] = { { 1, 1 } };
    CLEAN(block_holders_free_at) struct block_holders *h = block_holders_new(2);
    uint32_t worker, found, at = 0;
    struct held_block b[16];

    (void)state;
    add(h, 4, name[0], 0);
    block_holders_add(h, 4, &(struct held_block){ { 1, 1 }, { 5, 6 }, 16, 3, true, 35 });
    assert_int_equal(block_holders_list(h, 4, &at, b, 16), 2);
    assert_int_equal(b[0].group, 0);
    assert_false(b[0].on_host);
    assert_int_equal(b[1].group, 3);
    assert_true(b[1].on_host);
    assert_int_equal(b[1].parent[1], 6);
    assert_int_equal(block_holders_list(h, 4, &at, b, 16), 0);
    block_holders_remove(h, 4, name[0], 0);
    assert_int_equal(block_holders_find(h, name, 1, &worker, &found, 1), 1);
    block_holders_remove(h, 4, name[0], 3);
    assert_int_equal(block_holders_find(h, name, 1, &worker, &found, 1), 0);
    at = 0;
    assert_int_equal(block_holders_list(h, 4, &at, b, 16), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefix_hit_counts_as_the_tokens_it_saves),
        cmocka_unit_test(worker_with_the_longest_prefix_is_found_first),
        cmocka_unit_test(full_table_ignores_further_blocks),
        cmocka_unit_test(block_is_held_while_one_group_has_it),
        cmocka_unit_test(worker_with_the_fewest_tokens_is_selected),
        cmocka_unit_test(equal_load_selects_fewer_requests_then_lower_index),
        cmocka_unit_test(closed_full_and_other_models_workers_are_skipped),
        cmocka_unit_test(resumed_request_prefers_or_waits_for_its_home_worker),
        cmocka_unit_test(request_waits_at_home_if_recompute_takes_longer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
