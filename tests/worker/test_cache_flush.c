/* test_cache_flush.c - a cache flush blocks the operator and never the engine; the cache is a
 * fake.
 */
#include "worker/ops/cache_flush.h"

#include "tests/test.h"

#include <pthread.h>

static uint32_t left, most; /* cached blocks; most blocks of one call */

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

struct waiter {
    struct cache_flush *f;
    struct kv_flushed went;
    int r;
    pthread_t thread;
};

static void *
wait_thread(void *arg)
{
    struct waiter *a = arg;
    struct err e;

    a->r = cache_flush_wait(a->f, &a->went, &e);
    return NULL;
}

static void
request(struct waiter *a, struct cache_flush *f)
{
    *a = (struct waiter){ .f = f };
    cache_flush_request(f);
    assert_int_equal(pthread_create(&a->thread, NULL, wait_thread, a), 0);
}

static void
no_block_is_dropped_without_a_request(void **state)
{
    struct cache_flush f;

    (void)state;
    cache_flush_open(&f);
    left = 10;
    assert_false(cache_flush_run(&f, NULL));
    assert_int_equal(left, 10);
}

static void
one_flush_takes_several_calls_and_counts_all_blocks(void **state)
{
    struct cache_flush f;
    struct waiter a;
    uint32_t calls = 0;

    (void)state;
    cache_flush_open(&f);
    for (uint32_t round = 1; round < 3; round++) {
        left = round * 5000;
        most = calls = 0;
        request(&a, &f);
        while (cache_flush_run(&f, NULL)) calls++;
        pthread_join(a.thread, NULL);
        assert_int_equal(a.r, 0);
        assert_int_equal(a.went.blocks, round * 5000);
        assert_int_equal(a.went.bytes, round * 10000);
        assert_int_equal(a.went.host_blocks, calls);
        assert_true(most < 5000 && calls > 1);
    }
}

static void
closing_ends_all_waits(void **state)
{
    struct cache_flush f;
    struct waiter a;

    (void)state;
    cache_flush_open(&f);
    request(&a, &f);
    cache_flush_close(&f);
    pthread_join(a.thread, NULL);
    assert_int_equal(a.r, -ECANCELED);
    request(&a, &f); /* after closing */
    pthread_join(a.thread, NULL);
    assert_int_equal(a.r, -ECANCELED);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_block_is_dropped_without_a_request),
        cmocka_unit_test(one_flush_takes_several_calls_and_counts_all_blocks),
        cmocka_unit_test(closing_ends_all_waits),
    };

    return cmocka_run_group_tests_name("flush", tests, NULL, NULL);
}
