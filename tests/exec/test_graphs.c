/* test_graphs.c - capture and eviction of graphs, without a device. */
#include "tests/test.h"
#include "worker/exec/graphs.h"

/* Graphs are distinguished by address and never read. */
static char mark[GRAPHS_MOST];

static struct graph *
graph_no(uint32_t i)
{
    return (struct graph *)(void *)&mark[i];
}

/* Uses a bucket in a step and captures it if due. Returns true if captured. */
static bool
use(struct graphs *g, uint32_t rows, uint64_t step, uint64_t bytes, uint64_t done,
    struct graph **dropped)
{
    struct graphs_slot *s = graphs_use(g, GRAPHS_DECODE, rows, 0, step);
    struct graph *drop;
    int r;

    assert_non_null(s);
    if (s->graph || !graphs_may_capture(g, s, 0)) return false;
    do {
        r = graphs_keep(g, s, graph_no((uint32_t)(s - g->slot)), bytes, 1000, done, &drop);
        if (drop && dropped) *dropped = drop;
    } while (r == -EAGAIN);
    return r == 0;
}

static void
buckets_ascend_and_end_at_the_largest_step(void **state)
{
    uint32_t bucket[GRAPHS_BUCKETS];

    (void)state;
    for (uint32_t most = 1; most < 1200; most++) {
        uint32_t n = graphs_buckets(bucket, most);

        assert_in_range(n, 1, GRAPHS_BUCKETS);
        assert_int_equal(bucket[0], 1);
        assert_int_equal(bucket[n - 1], MIN(most, (uint32_t)GRAPHS_ROWS));
        for (uint32_t i = 1; i < n; i++) {
            assert_true(bucket[i] > bucket[i - 1]);
            assert_true(bucket[i] <= 2 * bucket[i - 1]);
        }
    }
    assert_int_equal(graphs_buckets(bucket, 0), 0);
}

static void
bucket_runs_plain_first_and_is_captured_at_second_use(void **state)
{
    struct graphs g = { .capacity = 1000 };

    (void)state;
    assert_false(use(&g, 8, 1, 10, 0, NULL));
    assert_false(use(&g, 16, 2, 10, 0, NULL));
    assert_true(use(&g, 8, 3, 10, 0, NULL));
    assert_true(graphs_use(&g, GRAPHS_DECODE, 8, 0, 4)->graph == graph_no(0));
    assert_int_equal(g.bytes, 10);
}

static void
each_kind_has_its_own_graph_in_a_bucket(void **state)
{
    struct graphs g = { .capacity = 1000 };
    struct graphs_slot *one = graphs_use(&g, GRAPHS_DECODE, 8, 0, 1),
                       *other = graphs_use(&g, GRAPHS_PREFILL, 8, 0, 2);

    (void)state;
    assert_ptr_not_equal(one, other);
    assert_true(one->kind == GRAPHS_DECODE && other->kind == GRAPHS_PREFILL);
    assert_ptr_equal(graphs_use(&g, GRAPHS_DECODE, 8, 0, 3), one);
    assert_ptr_equal(graphs_use(&g, GRAPHS_PREFILL, 8, 0, 4), other);
}

static void
graphs_of_a_partition_are_separate_and_dropped_separately(void **state)
{
    struct graphs g = { .capacity = 1000 };
    struct graph *drop;

    (void)state;
    for (uint32_t partition = 0; partition < GRAPHS_MAX_PARTITIONS; partition++) {
        struct graphs_slot *s = graphs_use(&g, GRAPHS_DECODE, 8, partition, 1 + partition);

        assert_null(s->graph);
        assert_int_equal(graphs_keep(&g, s, graph_no(partition), 10, 1, partition, &drop), 0);
    }
    assert_true(graphs_use(&g, GRAPHS_DECODE, 8, 2, 9)->graph == graph_no(2));
    assert_true(graphs_take(&g, 2) == graph_no(2));
    assert_null(graphs_take(&g, 2));
    assert_null(graphs_use(&g, GRAPHS_DECODE, 8, 2, 10)->graph);
    assert_true(graphs_use(&g, GRAPHS_DECODE, 8, 3, 11)->graph == graph_no(3));
    assert_int_equal(g.bytes, 10 * (GRAPHS_MAX_PARTITIONS - 1));
}

static void
evicted_graph_is_least_recently_used_and_waits_before_capture(void **state)
{
    struct graphs g = { .capacity = 100 };
    struct graph *dropped = NULL;
    uint64_t step = 0;

    (void)state;
    for (uint32_t rows = 1; rows <= 3; rows++)
        for (int i = 0; i < 2; i++, step++) use(&g, rows, step, 30, step, NULL);
    assert_int_equal(g.bytes, 90);
    assert_non_null(graphs_use(&g, GRAPHS_DECODE, 1, 0, ++step)->graph); /* now 2 is the oldest */
    step++;
    use(&g, 4, step, 30, step - 1, &dropped);
    assert_true(use(&g, 4, step + 1, 30, step, &dropped));
    assert_true(dropped == graph_no(1));
    assert_int_equal(g.bytes, 90);
    for (int i = 0; i < GRAPHS_AGAIN; i++) assert_false(use(&g, 2, 90, 30, 89, NULL));
    assert_true(use(&g, 2, 90, 30, 89, NULL));
}

static void
graph_that_may_be_running_is_not_dropped(void **state)
{
    struct graphs g = { .capacity = 50 };
    struct graph *dropped = NULL;

    (void)state;
    use(&g, 1, 1, 30, 0, NULL);
    assert_true(use(&g, 1, 2, 30, 1, NULL));
    use(&g, 2, 3, 30, 1, NULL);
    assert_false(use(&g, 2, 4, 30, 1, &dropped)); /* step 2 is in flight */
    assert_null(dropped);
    assert_int_equal(g.bytes, 30);
    for (uint64_t step = 5; step < 5 + GRAPHS_AGAIN; step++)
        assert_false(use(&g, 2, step, 30, 4, NULL));
    assert_true(use(&g, 2, 100, 30, 99, &dropped));
    assert_true(dropped == graph_no(0));
}

static void
graph_larger_than_the_capacity_is_never_captured_again(void **state)
{
    struct graphs g = { .capacity = 50 };

    (void)state;
    for (uint64_t step = 1; step < 300; step++) assert_false(use(&g, 4, step, 51, step, NULL));
    assert_int_equal(g.bytes, 0);
    assert_int_equal(g.slot[0].wait, UINT32_MAX);
}

static void
capture_is_allowed_while_the_device_is_busy(void **state)
{
    struct graphs g = { .capacity = 1000 };
    struct graph *drop;
    struct graphs_slot *s = graphs_use(&g, GRAPHS_DECODE, 1, 0, 1);

    (void)state;
    assert_false(graphs_may_capture(&g, s, 0));
    assert_true(graphs_may_capture(&g, s, 0)); /* no capture has been measured */
    assert_int_equal(graphs_keep(&g, s, graph_no(0), 1, 2 * GRAPHS_DELAY, 1, &drop), 0);
    s = graphs_use(&g, GRAPHS_DECODE, 2, 0, 2);
    assert_false(graphs_may_capture(&g, s, NSEC_NEVER));
    assert_false(graphs_may_capture(&g, s, GRAPHS_DELAY / 2));
    assert_true(graphs_may_capture(&g, s, GRAPHS_DELAY));
}

static void
step_captures_one_piece_only(void **state)
{
    struct graphs g = { .capacity = 1000 };
    struct graphs_slot *encode, *decode;
    struct graph *drop;

    (void)state;
    for (uint64_t step = 1; step <= 2; step++) {
        encode = graphs_use(&g, GRAPHS_ENCODE, 64, 0, step);
        decode = graphs_use(&g, GRAPHS_DECODE, 8, 0, step);
        assert_int_equal(graphs_may_capture(&g, encode, 0), step == 2);
        if (step == 2) assert_int_equal(graphs_keep(&g, encode, graph_no(0), 10, 1, 1, &drop), 0);
        assert_false(graphs_may_capture(&g, decode, 0));
    }
    decode = graphs_use(&g, GRAPHS_DECODE, 8, 0, 3);
    assert_true(graphs_may_capture(&g, decode, 0));
}

static void
encoder_bucket_fits_its_rows_and_has_a_limit(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= GRAPHS_SOURCE_ROWS; rows++) {
        uint32_t bucket = graphs_source_bucket(rows);

        assert_in_range(bucket, rows, MIN(2 * rows, (uint32_t)GRAPHS_SOURCE_ROWS));
    }
    assert_int_equal(graphs_source_bucket(GRAPHS_SOURCE_ROWS + 1), 0);
}

static void
buckets_beyond_the_graph_slots_run_plain(void **state)
{
    struct graphs g = { .capacity = 1000 };

    (void)state;
    for (uint32_t i = 1; i <= GRAPHS_MOST; i++)
        assert_non_null(graphs_use(&g, GRAPHS_DECODE, i, 0, i));
    assert_null(graphs_use(&g, GRAPHS_DECODE, GRAPHS_MOST + 1, 0, 99));
    assert_non_null(graphs_use(&g, GRAPHS_DECODE, GRAPHS_MOST, 0, 100));
}

static void
removed_graphs_are_captured_again(void **state)
{
    struct graphs g = { .capacity = 1000 };
    struct graph *drop;

    (void)state;
    for (uint32_t i = 1; i <= 2; i++)
        assert_int_equal(
            graphs_keep(&g, graphs_use(&g, GRAPHS_DECODE, i, 0, i), graph_no(i), 10, 1, i, &drop),
            0);
    assert_true(graphs_take(&g, GRAPHS_ALL) == graph_no(1));
    assert_true(graphs_take(&g, GRAPHS_ALL) == graph_no(2));
    assert_null(graphs_take(&g, GRAPHS_ALL));
    assert_int_equal(g.bytes, 0);
    assert_false(
        graphs_may_capture(&g, graphs_use(&g, GRAPHS_DECODE, 1, 0, 3), 0)); /* plain once again */
    assert_true(graphs_may_capture(&g, graphs_use(&g, GRAPHS_DECODE, 1, 0, 4), 0));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_ascend_and_end_at_the_largest_step),
        cmocka_unit_test(bucket_runs_plain_first_and_is_captured_at_second_use),
        cmocka_unit_test(each_kind_has_its_own_graph_in_a_bucket),
        cmocka_unit_test(graphs_of_a_partition_are_separate_and_dropped_separately),
        cmocka_unit_test(evicted_graph_is_least_recently_used_and_waits_before_capture),
        cmocka_unit_test(graph_that_may_be_running_is_not_dropped),
        cmocka_unit_test(graph_larger_than_the_capacity_is_never_captured_again),
        cmocka_unit_test(capture_is_allowed_while_the_device_is_busy),
        cmocka_unit_test(step_captures_one_piece_only),
        cmocka_unit_test(encoder_bucket_fits_its_rows_and_has_a_limit),
        cmocka_unit_test(buckets_beyond_the_graph_slots_run_plain),
        cmocka_unit_test(removed_graphs_are_captured_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
