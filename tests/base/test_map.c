/* test_map.c - the table against an array that is searched from end to end. */
#include "tests/test.h"

#include "base/map.h"

#include <errno.h>
#include <string.h>

static void
what_was_put_is_found_until_taken(void **state)
{
    CLEAN(map_free_at) struct map *m = map_new(4);

    (void)state;
    assert_int_equal(map_find(m, 7), MAP_NONE);
    assert_int_equal(map_put(m, 7, 70), 0);
    assert_int_equal(map_find(m, 7), 70);
    assert_int_equal(map_n(m), 1);
    assert_int_equal(map_take(m, 7), 70);
    assert_int_equal(map_take(m, 7), MAP_NONE);
    assert_int_equal(map_find(m, 7), MAP_NONE);
    assert_int_equal(map_n(m), 0);
}

static void
a_key_that_is_there_is_not_replaced(void **state)
{
    CLEAN(map_free_at) struct map *m = map_new(1);

    (void)state;
    assert_int_equal(map_put(m, 7, 70), 0);
    assert_int_equal(map_put(m, 7, 71), -EEXIST);
    assert_int_equal(map_find(m, 7), 70);
}

static void
a_full_map_refuses_one_more_and_takes_it_after_a_take(void **state)
{
    CLEAN(map_free_at) struct map *m = map_new(3);

    (void)state;
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(map_put(m, i, i), 0);
    assert_int_equal(map_put(m, 3, 3), -ENOSPC);
    assert_int_equal(map_take(m, 1), 1);
    assert_int_equal(map_put(m, 3, 3), 0);
    assert_int_equal(map_find(m, 0), 0);
    assert_int_equal(map_find(m, 2), 2);
    assert_int_equal(map_find(m, 3), 3);
}

static void
every_key_is_a_key(void **state)
{
    CLEAN(map_free_at) struct map *m = map_new(2);

    (void)state;
    assert_int_equal(map_put(m, 0, 0), 0);
    assert_int_equal(map_put(m, UINT64_MAX, MAP_NONE - 1), 0);
    assert_int_equal(map_find(m, 0), 0);
    assert_int_equal(map_find(m, UINT64_MAX), MAP_NONE - 1);
    assert_null(map_free(NULL));
}

/* Few keys and a table that is often full make long runs, and removal in the middle of them. */
static void
any_order_of_calls_agrees_with_a_naive_ref(void **state)
{
    enum { MAX = 24, KEYS = 40 };
    CLEAN(map_free_at) struct map *m = map_new(MAX);
    uint32_t ref[KEYS], n = 0;

    (void)state;
    test_seed();
    memset(ref, 0xff, sizeof ref);
    for (uint32_t i = 0; i < 300000; i++) {
        uint32_t k = test_below(KEYS), v = test_below(1000);
        uint64_t key = k * UINT64_C(0x100000000) + (k & 3);

        if (test_below(2)) {
            int want = ref[k] != MAP_NONE ? -EEXIST : n == MAX ? -ENOSPC : 0;

            assert_int_equal(map_put(m, key, v), want);
            if (want == 0) {
                ref[k] = v;
                n++;
            }
        } else {
            assert_int_equal(map_take(m, key), ref[k]);
            n -= ref[k] != MAP_NONE;
            ref[k] = MAP_NONE;
        }
        assert_int_equal(map_n(m), n);
        if (i % 64) continue;
        for (k = 0; k < KEYS; k++) {
            assert_int_equal(map_find(m, k * UINT64_C(0x100000000) + (k & 3)), ref[k]);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_is_found_until_taken),
        cmocka_unit_test(a_key_that_is_there_is_not_replaced),
        cmocka_unit_test(a_full_map_refuses_one_more_and_takes_it_after_a_take),
        cmocka_unit_test(every_key_is_a_key),
        cmocka_unit_test(any_order_of_calls_agrees_with_a_naive_ref),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
