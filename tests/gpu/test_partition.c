/* test_partition.c - lanes on parts of a device: order, waits and graphs work as on the whole
 * device.
 *
 * On a GPU it also measures that parts have their own SMs, and prints the numbers.
 */
#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include "base/clock.h"

#include <math.h>
#include <poll.h>

enum { UNITS = 4, N = 512 };

/* The lane of a fixture and another one; valid sizes of a partition's first part. */
struct two {
    struct fixture r;
    struct lane *lane[2];
    uint32_t units, least, grain;
};

static void
open_two(struct two *t)
{
    struct err e = { 0 };
    struct gpu_parts parts;

    fixture_open(&t->r, "auto", UNITS);
    parts = gpu_facts(t->r.gpu).parts;
    if (parts.grain == 0) {
        fixture_close(&t->r);
        if (parts.why) print_message("%s\n", parts.why);
        skip();
    }
    t->units = fixture_cuda() ? gpu_facts(t->r.gpu).units : UNITS;
    t->least = parts.least;
    t->grain = parts.grain;
    t->lane[0] = t->r.lane;
    if (t->r.op->lane.open(t->r.gpu, t->units, &t->lane[1], &e) < 0) fail_msg("%s", e.text);
}

static void
to_part(struct two *t, int lane, uint32_t first, uint32_t n)
{
    if (t->r.op->lane.part(t->lane[lane], first, n) < 0) fail_msg("%s", gpu_why(t->r.gpu));
}

static void
close_two(struct two *t)
{
    to_part(t, 0, 0, t->units);
    t->r.op->lane.close(t->lane[1]);
    fixture_close(&t->r);
}

/* Units of the first part: a multiple of grain, or the rest of one. */
static uint32_t
some_division(const struct two *t)
{
    uint32_t most = (t->units - t->least) / t->grain;
    uint32_t n = between(CEIL_DIV(t->least, t->grain), most) * t->grain;

    return test_below(4) || t->units - n < t->least ? n : t->units - n;
}

/* Moves the lane to a part of a partition, or to the whole device. */
static void
anywhere(struct two *t, int lane)
{
    uint32_t n = some_division(t);

    switch (test_below(3)) {
    case 0:
        to_part(t, lane, 0, n);
        break;
    case 1:
        to_part(t, lane, n, t->units - n);
        break;
    default:
        to_part(t, lane, 0, t->units);
    }
}

struct sum {
    struct tensor x, one;
    float want;
};

static struct sum
make_sum(struct two *t)
{
    struct sum s = { fixture_empty(&t->r, DT_F32, 1, N, N), fixture_empty(&t->r, DT_F32, 1, N, N),
                     0 };

    for (uint32_t i = 0; i < N; i++)
        HOST((float *)s.x.data)[i] = 0, HOST((float *)s.one.data)[i] = 1;
    fixture_send(&t->r);
    return s;
}

/* x = x * 1.25 + 1, or only a part of it: another order gives another number. */
static void
change(struct two *t, int lane, struct sum *s)
{
    if (test_below(2)) {
        assert_int_equal(t->r.op->scale(t->lane[lane], s->x, .75f, 0), 0);
        s->want *= .75f;
    }
    assert_int_equal(t->r.op->add(t->lane[lane], s->x, s->one), 0);
    s->want += 1;
}

static void
check_sum(struct two *t, const struct sum *s)
{
    fixture_wait(&t->r);
    for (uint32_t i = 0; i < N; i++) assert_true((float)at(s->x, 0, i) == s->want);
}

static void
ops_of_a_lane_stay_in_order_on_any_part(void **state)
{
    struct two t;
    struct sum s;

    (void)state;
    open_two(&t);
    s = make_sum(&t);
    for (int i = 0; i < 400; i++) {
        if (test_below(2)) anywhere(&t, 0);
        for (uint32_t n = test_below(4); n > 0; n--) change(&t, 0, &s);
    }
    check_sum(&t, &s);
    close_two(&t);
}

static void
lanes_on_different_parts_see_each_others_marked_writes(void **state)
{
    struct two t;
    struct sum s;

    (void)state;
    open_two(&t);
    s = make_sum(&t);
    fixture_wait(&t.r);
    for (uint64_t step = 1; step <= 200; step++) {
        uint32_t n = some_division(&t);
        int who = step % 2;

        if (step % 8 == 1) {
            to_part(&t, 0, 0, n);
            to_part(&t, 1, n, t.units - n);
        } else if (step % 8 == 5) {
            anywhere(&t, who);
        }
        for (int i = 0; i < 3; i++) change(&t, who, &s);
        assert_int_equal(t.r.op->lane.mark(t.lane[who], 1000000 + step), 0);
        assert_int_equal(t.r.op->lane.after(t.lane[!who], t.lane[who], 1000000 + step), 0);
    }
    t.r.step = 2000000;
    check_sum(&t, &s);
    close_two(&t);
}

static void
an_invalid_partition_is_refused_without_failing_the_lane(void **state)
{
    struct two t;
    struct sum s;

    (void)state;
    open_two(&t);
    s = make_sum(&t);
    to_part(&t, 0, 0, some_division(&t));
    assert_int_equal(t.r.op->lane.part(t.lane[0], 0, t.units + 1), -EINVAL);
    if (fixture_cuda()) {
        uint32_t n = 2 * t.grain;

        assert_int_equal(t.r.op->lane.part(t.lane[0], t.grain, n), -EINVAL);
        assert_non_null(strstr(gpu_why(t.r.gpu), "neither the first nor the last"));
        n++;
        while (t.grain > 1 && (n % t.grain == 0 || (t.units - n) % t.grain == 0)) n++;
        if (t.grain > 1) assert_int_equal(t.r.op->lane.part(t.lane[0], 0, n), -EINVAL);
    }
    change(&t, 0, &s);
    check_sum(&t, &s);
    close_two(&t);
}

static void
a_graph_stays_on_its_part_and_keeps_the_partition(void **state)
{
    struct graph *g[GPU_PARTITIONS];
    uint32_t at[GPU_PARTITIONS + 1];
    struct two t;
    struct sum s;
    uint64_t bytes;

    (void)state;
    open_two(&t);
    if (!gpu_facts(t.r.gpu).graphs) {
        close_two(&t);
        skip();
    }
    s = make_sum(&t);
    for (uint32_t i = 0; i <= GPU_PARTITIONS; i++) at[i] = t.least + (i + 1) * t.grain;
    for (int i = 0; i < GPU_PARTITIONS; i++) {
        to_part(&t, 0, i % 2 ? at[i] : 0, i % 2 ? t.units - at[i] : at[i]);
        assert_int_equal(t.r.op->graph.begin(t.lane[0]), 0);
        assert_int_equal(t.r.op->lane.part(t.lane[0], 0, t.units), -EINVAL);
        assert_int_equal(t.r.op->add(t.lane[0], s.x, s.one), 0);
        assert_int_equal(t.r.op->graph.end(t.lane[0], &g[i], &bytes), 0);
    }
    for (int round = 0; round < 20; round++) {
        int i = (int)test_below(GPU_PARTITIONS);

        to_part(&t, 0, i % 2 ? at[i] : 0, i % 2 ? t.units - at[i] : at[i]);
        assert_int_equal(t.r.op->graph.launch(t.lane[0], g[i]), 0);
        assert_int_equal(t.r.op->graph.launch(t.lane[0], g[(i + 1) % GPU_PARTITIONS]), -EINVAL);
        assert_non_null(strstr(gpu_why(t.r.gpu), "recorded on a partition"));
        s.want += 1;
    }
    to_part(&t, 0, 0, t.units);
    assert_int_equal(t.r.op->lane.part(t.lane[0], 0, at[GPU_PARTITIONS]), -EBUSY);
    change(&t, 0, &s);
    check_sum(&t, &s);
    t.r.op->graph.drop(t.lane[0], g[0]);
    to_part(&t, 0, 0, at[GPU_PARTITIONS]); /* in the entry of the dropped graph's partition */
    change(&t, 0, &s);
    check_sum(&t, &s);
    for (int i = 1; i < GPU_PARTITIONS; i++) t.r.op->graph.drop(t.lane[0], g[i]);
    close_two(&t);
}

/* ---- own SMs */

struct product {
    struct tensor y, x, w;
};

static struct product
make_product(struct two *t)
{
    enum { ROWS = 4096, WIDE = 4096 };
    struct product p = { fixture_device(&t->r, DT_BF16, ROWS, WIDE),
                         fixture_device(&t->r, DT_BF16, ROWS, WIDE),
                         fixture_device(&t->r, DT_BF16, WIDE, WIDE) };

    assert_int_equal(t->r.op->mem.fill_random(t->lane[0], p.x, 1, 0, 0, 1), 0);
    assert_int_equal(t->r.op->mem.fill_random(t->lane[0], p.w, 2, 0, 0, 1), 0);
    return p;
}

static void
multiply(struct two *t, int lane, const struct product *p, int times)
{
    for (int i = 0; i < times; i++)
        assert_int_equal(t->r.op->matmul(t->lane[lane], p->y, p->x, p->w, NO_TENSOR, 0), 0);
}

/* Milliseconds for that many products in each lane. */
static double
time_of(struct two *t, const struct product p[2], int first, int second)
{
    static uint64_t step = 10000000;
    nsec since;

    multiply(t, 0, &p[0], first > 0);
    multiply(t, 1, &p[1], second > 0);
    for (int timed = 0; timed < 2; timed++) {
        since = clock_now();
        if (timed) multiply(t, 0, &p[0], first);
        if (timed) multiply(t, 1, &p[1], second);
        step++;
        for (int i = 0; i < 2; i++) assert_int_equal(t->r.op->lane.mark(t->lane[i], step), 0);
        for (int i = 0; i < 2; i++) assert_int_equal(gpu_wait(t->lane[i], step, step), 0);
    }
    t->r.step = step;
    return (double)(clock_now() - since) / NSEC_MS;
}

/* The minimum of several runs: other load makes a run longer, never shorter. */
static double
least_of(struct two *t, const struct product p[2], int first, int second)
{
    double least = INFINITY;

    for (int i = 0; i < 7; i++) least = fmin(least, time_of(t, p, first, second));
    return least;
}

/* One measurement of a partition of n[0] and n[1] units: does each part keep its SMs? */
static bool
looks_right(struct two *t, const struct product p[2], const uint32_t n[2])
{
    enum { TIMES = 20 };
    nsec since;
    int times[2];
    double whole, alone[2], both, make;
    bool right;

    to_part(t, 0, 0, t->units);
    to_part(t, 1, 0, t->units);
    whole = least_of(t, p, TIMES, 0);
    since = clock_now();
    to_part(t, 0, 0, n[0]);
    to_part(t, 1, n[0], n[1]);
    make = (double)(clock_now() - since) / NSEC_MS;
    for (int i = 0; i < 2; i++) times[i] = MAX(2, (int)(2 * TIMES * n[i] / t->units));
    alone[0] = least_of(t, p, times[0], 0);
    alone[1] = least_of(t, p, 0, times[1]);
    both = least_of(t, p, times[0], times[1]);
    print_message("%u and %u SMs: made in %.1f ms; %d products %.2f ms, %d products %.2f ms, both "
                  "%.2f ms; %d on all %.2f ms\n",
                  n[0], n[1], make, times[0], alone[0], times[1], alone[1], both, TIMES, whole);
    right = both < 0.85 * (alone[0] + alone[1]);
    for (int i = 0; i < 2; i++) /* a product stays on its part; shared power allows some more */
        right &= alone[i] / times[i] > 0.85 * whole / TIMES &&
                 (n[i] * 3 > t->units || alone[i] / times[i] > 1.8 * whole / TIMES);
    return right;
}

/* Other load makes times longer for seconds: a part that does not keep its SMs fails in every
 * measurement. */
static void
two_parts_run_concurrently_on_their_own_sms(void **state)
{
    enum { LOOKS = 10, APART_MS = 300 };
    struct two t;
    struct product p[2];

    (void)state;
    if (!fixture_cuda()) skip(); /* a CPU lane has its own threads anyway */
    open_two(&t);
    for (int i = 0; i < 2; i++) p[i] = make_product(&t);
    fixture_wait(&t.r);
    for (uint32_t first = t.grain * 2; first + 2 * t.least <= t.units; first += 6 * t.grain) {
        const uint32_t n[2] = { first, t.units - first };
        int looks = 1;

        while (!looks_right(&t, p, n)) {
            assert_true(looks++ < LOOKS);
            poll(NULL, 0, APART_MS);
        }
    }
    close_two(&t);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(ops_of_a_lane_stay_in_order_on_any_part),
        fixture_test(lanes_on_different_parts_see_each_others_marked_writes),
        fixture_test(an_invalid_partition_is_refused_without_failing_the_lane),
        fixture_test(a_graph_stays_on_its_part_and_keeps_the_partition),
        fixture_test(two_parts_run_concurrently_on_their_own_sms),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
