/* test_cache_flush.c - a cache flush blocks the operator and never the engine; the cache is a fake. */
#include "worker/ops/cache_flush.h"

#include "tests/test.h"

#include <errno.h>
#include <pthread.h>

static uint32_t left, most; /* blocks that nobody holds; of one part */

uint32_t
kv_flush(struct kv *kv, uint32_t max, struct kv_flushed *ret)
{
    uint32_t n = MIN(left, max);

    (void)kv;
    left -= n;
    most = MAX(most, n);
    ret->blocks += n;
    ret->bytes += 2 * n;
    ret->host_blocks += n > 0;
    return n;
}

struct asker {
    struct cache_flush *f;
    uint64_t number;
    struct kv_flushed went;
    int r;
    pthread_t thread;
};

static void *
wait_for_it(void *arg)
{
    struct asker *a = arg;
    struct err e;

    a->r = cache_flush_wait(a->f, a->number, &a->went, &e);
    return NULL;
}

static void
ask(struct asker *a, struct cache_flush *f)
{
    *a = (struct asker){ .f = f, .number = cache_flush_request(f) };
    assert_int_equal(pthread_create(&a->thread, NULL, wait_for_it, a), 0);
}

static void
nothing_goes_unless_it_is_asked_for(void **state)
{
    struct cache_flush f;

    (void)state;
    cache_flush_open(&f);
    left = 10;
    assert_false(cache_flush_run(&f, NULL));
    assert_int_equal(left, 10);
}

static void
a_turn_takes_a_part_and_the_answer_is_of_all(void **state)
{
    struct cache_flush f;
    struct asker a;
    uint32_t turns = 0;

    (void)state;
    cache_flush_open(&f);
    for (uint32_t round = 1; round < 3; round++) {
        left = round * 5000;
        most = turns = 0;
        ask(&a, &f);
        while (cache_flush_run(&f, NULL)) turns++;
        pthread_join(a.thread, NULL);
        assert_int_equal(a.r, 0);
        assert_int_equal(a.went.blocks, round * 5000);
        assert_int_equal(a.went.bytes, round * 10000);
        assert_int_equal(a.went.host_blocks, turns);
        assert_true(most < 5000 && turns > 1);
    }
}

static void
an_engine_that_ends_lets_go_of_who_waits(void **state)
{
    struct cache_flush f;
    struct asker a;

    (void)state;
    cache_flush_open(&f);
    ask(&a, &f);
    cache_flush_close(&f);
    pthread_join(a.thread, NULL);
    assert_int_equal(a.r, -ECANCELED);
    ask(&a, &f); /* too late */
    pthread_join(a.thread, NULL);
    assert_int_equal(a.r, -ECANCELED);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_goes_unless_it_is_asked_for),
        cmocka_unit_test(a_turn_takes_a_part_and_the_answer_is_of_all),
        cmocka_unit_test(an_engine_that_ends_lets_go_of_who_waits),
    };

    return cmocka_run_group_tests_name("flush", tests, NULL, NULL);
}
