/* test_copy_order.c - grouping of copies into few launches with the result of sequential copies. */
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

/* True if copy a is in an earlier launch than copy b. */
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
    assert_false(earlier(c, 2, 0, 1)); /* no conflict: another group */
}

static void
onboarding_follows_both_offloads_of_the_same_bytes(void **state)
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
independent_copies_share_a_launch(void **state)
{
    const struct kv_copy same[] = { { .from = 0, .to = 2 },
                                    { .from = 0, .to = 4 },
                                    { .from = 6, .to = 8 } };
    const struct kv_copy host[] = { { .to_tier = TIER_HOST, .from = 4, .to = 0 },
                                    { .to_tier = TIER_HOST, .from = 0, .to = 4 } };

    (void)state;
    assert_true(together(same, 3));
    assert_true(together(host, 2)); /* the same numbers in another tier */
}

static void
dependent_copies_are_ordered_and_late_copies_come_last(void **state)
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
        cmocka_unit_test(onboarding_follows_both_offloads_of_the_same_bytes),
        cmocka_unit_test(independent_copies_share_a_launch),
        cmocka_unit_test(dependent_copies_are_ordered_and_late_copies_come_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
