/* test_stat.c - tests of ipc/stat.h: a copy is complete or not returned. */
#include "tests/test.h"

#include "base/clock.h"
#include "ipc/stat.h"

#include <pthread.h>

static struct shm_ctl ctl;
static _Atomic bool stop;

static int
setup(void **state)
{
    (void)state;
    memset(&ctl, 0, sizeof ctl);
    atomic_store(&stop, false);
    return 0;
}

static struct stats
all(uint64_t v)
{
    struct stats s;

    for (int i = 0; i < STAT_COUNT; i++) s.v[i] = v + (uint64_t)i;
    for (int g = 0; g < SHM_MAX_GROUPS; g++)
        for (int i = 0; i < GROUP_STAT_COUNT; i++) s.group[g][i] = v + (uint64_t)(100 * g + i);
    return s;
}

static void
published_values_are_read(void **state)
{
    struct stats s = all(1000), got;

    (void)state;
    stat_publish(&ctl, &s);
    assert_true(stat_read(&ctl, &got));
    assert_memory_equal(&got, &s, sizeof s);
}

static void
values_are_zero_before_the_first_publish(void **state)
{
    struct stats got = all(1);

    (void)state;
    assert_true(stat_read(&ctl, &got));
    for (int i = 0; i < STAT_COUNT; i++) assert_int_equal(got.v[i], 0);
    for (int g = 0; g < SHM_MAX_GROUPS; g++)
        assert_int_equal(got.group[g][GROUP_STAT_kind], 0); /* no KV group */
}

static void
writer_killed_while_writing_leaves_the_old_copy(void **state)
{
    struct stats s = all(5), got = all(7);

    (void)state;
    stat_publish(&ctl, &s);
    atomic_fetch_add(&ctl.stat_seq, 1); /* as if killed while writing */
    assert_false(stat_read(&ctl, &got));
    assert_int_equal(got.v[0], 7);
}

static void *
publish(void *arg)
{
    for (uint64_t v = 0; !atomic_load(&stop); v++) {
        struct stats s = all(v);

        stat_publish(&ctl, &s);
        /* One loop iteration of the engine, so that a reader finds time between two publishes. */
        for (volatile int i = 0; i < 50; i++) continue;
    }
    return arg;
}

static void
copy_is_never_torn(void **state)
{
    nsec end = clock_now() + NSEC_S / 2, give_up = end + 10 * NSEC_S;
    uint32_t read = 0;
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, publish, NULL), 0);
    while (clock_now() < (read < 1000 ? give_up : end)) {
        struct stats got;

        if (!stat_read(&ctl, &got)) continue;
        read++;
        for (uint64_t k = 0; k < STAT_COUNT && got.v[0]; k++) {
            if (got.v[k] != got.v[0] + k) fail();
        }
        if (got.v[0] && got.group[7][3] != got.v[0] + 703) fail();
    }
    atomic_store(&stop, true);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_true(read >= 1000);
}

static void
every_row_has_name_and_sentence(void **state)
{
    (void)state;
    for (int i = 0; i < STAT_COUNT; i++) {
        assert_true(strlen(stat_rows[i].name) > 0);
        assert_true(strlen(stat_rows[i].sentence) > 5);
    }
    for (int i = 0; i < GROUP_STAT_COUNT; i++) assert_true(strlen(group_stat_rows[i].sentence) > 5);
    assert_string_equal(stat_rows[STAT_steps].name, "steps");
    assert_int_equal(stat_rows[STAT_running].kind, STAT_GAUGE);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(published_values_are_read, setup),
        cmocka_unit_test_setup(values_are_zero_before_the_first_publish, setup),
        cmocka_unit_test_setup(writer_killed_while_writing_leaves_the_old_copy, setup),
        cmocka_unit_test_setup(copy_is_never_torn, setup),
        cmocka_unit_test_setup(every_row_has_name_and_sentence, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
