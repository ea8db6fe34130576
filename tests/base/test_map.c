/* test_map.c - tests of base/map.h against a linear array. */
#include "tests/test.h"

#include "base/map.h"

static void
key_is_found_until_it_is_removed(void **state)
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
existing_key_is_not_replaced(void **state)
{
    CLEAN(map_free_at) struct map *m = map_new(1);

    (void)state;
    assert_int_equal(map_put(m, 7, 70), 0);
    assert_int_equal(map_put(m, 7, 71), -EEXIST);
    assert_int_equal(map_find(m, 7), 70);
}

static void
full_map_accepts_a_key_after_a_removal(void **state)
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
every_uint64_is_a_valid_key(void **state)
{
    CLEAN(map_free_at) struct map *m = map_new(2);

    (void)state;
    assert_int_equal(map_put(m, 0, 0), 0);
    assert_int_equal(map_put(m, UINT64_MAX, MAP_NONE - 1), 0);
    assert_int_equal(map_find(m, 0), 0);
    assert_int_equal(map_find(m, UINT64_MAX), MAP_NONE - 1);
    assert_null(map_free(NULL));
}

/* Few keys in a nearly full table make long runs with removals inside. */
static void
random_calls_agree_with_a_reference(void **state)
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
        cmocka_unit_test(key_is_found_until_it_is_removed),
        cmocka_unit_test(existing_key_is_not_replaced),
        cmocka_unit_test(full_map_accepts_a_key_after_a_removal),
        cmocka_unit_test(every_uint64_is_a_valid_key),
        cmocka_unit_test(random_calls_agree_with_a_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
