/* test_copy_order.c - copies of a batch in launches: as if one after another, in as few as that allows. */
#include "worker/exec/copy_order.h"

#include "tests/test.h"

static const struct copy_order_bytes BYTES = { .slice = { 64, 64 }, .block = { 128, 320 } };

static bool
together(const struct kv_copy *c, uint32_t n)
{
    uint64_t place[8];

    copy_order_sort(c, n, &BYTES, place);
    for (uint32_t i = 1; i < n; i++)
        if (copy_order_launch(place[i]) != copy_order_launch(place[0])) return false;
    return true;
}

/* Whether copy a is in an earlier launch than copy b. */
static bool
earlier(const struct kv_copy *c, uint32_t n, uint32_t a, uint32_t b)
{
    uint32_t at[8];
    uint64_t place[8];

    copy_order_sort(c, n, &BYTES, place);
    for (uint32_t i = 0; i < n; i++) at[copy_order_index(place[i])] = i;
    return at[a] < at[b] && copy_order_launch(place[at[a]]) != copy_order_launch(place[at[b]]);
}

static void
what_is_saved_of_a_slab_is_read_before_blocks_of_another_size_are_fetched_there(void **state)
{
    struct kv_copy c[] = {
        { .group = 1, .to_tier = TIER_HOST, .from = 5, .to = 0 },   /* slices 5 .. 9 */
        { .group = 0, .from_tier = TIER_HOST, .from = 40, .to = 8 } /* slices 8 .. 9 */
    };

    (void)state;
    assert_true(earlier(c, 2, 0, 1));
    c[1].to = 10;
    assert_false(earlier(c, 2, 0, 1)); /* beside it: by group */
}

static void
what_is_fetched_where_two_were_saved_comes_after_both(void **state)
{
    const struct kv_copy c[] = { { .group = 0, .to_tier = TIER_HOST, .from = 0, .to = 0 },
                                 { .group = 0, .to_tier = TIER_HOST, .from = 2, .to = 5 },
                                 { .group = 1, .from_tier = TIER_HOST, .from = 10, .to = 0 },
                                 { .group = 1, .from_tier = TIER_HOST, .from = 15, .to = 5 } };

    (void)state;
    assert_true(earlier(c, 4, 0, 2) && earlier(c, 4, 1, 2));
    assert_true(together(c, 2));
}

static void
what_has_nothing_to_do_with_each_other_goes_at_once(void **state)
{
    const struct kv_copy same[] = { { .from = 0, .to = 2 },
                                    { .from = 0, .to = 4 },
                                    { .from = 6, .to = 8 } };
    const struct kv_copy host[] = { { .to_tier = TIER_HOST, .from = 4, .to = 0 },
                                    { .to_tier = TIER_HOST, .from = 0, .to = 4 } };

    (void)state;
    assert_true(together(same, 3));
    assert_true(together(host, 2)); /* the same numbers, of another tier */
}

static void
a_copy_of_a_copy_comes_after_it_and_one_after_the_step_last(void **state)
{
    const struct kv_copy c[] = { { .from = 0, .to = 2, .after = 1 },
                                 { .from = 2, .to = 4 },
                                 { .from = 4, .to = 6 },
                                 { .from = 6, .to = 4 } };

    (void)state;
    assert_true(earlier(c, 4, 1, 2) && earlier(c, 4, 2, 3) && earlier(c, 4, 3, 0));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            what_is_saved_of_a_slab_is_read_before_blocks_of_another_size_are_fetched_there),
        cmocka_unit_test(what_is_fetched_where_two_were_saved_comes_after_both),
        cmocka_unit_test(what_has_nothing_to_do_with_each_other_goes_at_once),
        cmocka_unit_test(a_copy_of_a_copy_comes_after_it_and_one_after_the_step_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
