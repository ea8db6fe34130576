/* test_lanes.c - lanes and arenas of the CPU device: order, marks, waits, sleep, memory by fd. */
#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include "gpu/cpu/cpu.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void
sleep_ms(long ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

    nanosleep(&t, NULL);
}

/* Jobs that are not ops, to test the lane alone. */
struct note {
    atomic_uint *number;
    uint32_t expect, set;
};

static void
wait_and_set(const void *args, uint32_t part, uint32_t parts, enum cpu_isa isa, void *scratch)
{
    const struct note *n = args;

    (void)parts, (void)isa, (void)scratch;
    if (part) return;
    while (atomic_load(n->number) != n->expect) sleep_ms(1);
    atomic_store(n->number, n->set);
}

static void
two_lanes_run_at_the_same_time(void **state)
{
    atomic_uint word = 0;
    struct note first = { &word, 1, 2 }, second = { &word, 0, 1 };
    struct fixture r;
    struct lane *other;
    struct err e;

    (void)state;
    fixture_open(&r, "auto", 1);
    assert_int_equal(r.op->lane.open(r.gpu, 1, &other, &e), 0);
    /* Lane A's job ends only if lane B's job runs meanwhile. */
    assert_int_equal(cpu_queue(r.lane, wait_and_set, &first, sizeof first, 1), 0);
    assert_int_equal(cpu_queue(other, wait_and_set, &second, sizeof second, 1), 0);
    fixture_wait(&r);
    assert_int_equal(word, 2);
    r.op->lane.close(other);
    fixture_close(&r);
}

static void
a_lane_waits_for_exactly_the_step_of_another_lane(void **state)
{
    (void)state;
    for (int n = 0; n < 50; n++) {
        atomic_uint word = 0;
        struct note gate = { &word, 10, 11 }, end = { &word, 11, 12 }, after = { &word, 12, 13 };
        struct fixture r;
        struct lane *other;
        struct err e;

        fixture_open(&r, "auto", 1 + n % 3);
        assert_int_equal(r.op->lane.open(r.gpu, 2, &other, &e), 0);
        assert_int_equal(cpu_queue(other, wait_and_set, &gate, sizeof gate, 2), 0);
        assert_int_equal(r.op->lane.mark(other, 4), 0);
        assert_int_equal(cpu_queue(other, wait_and_set, &end, sizeof end, 2), 0);
        assert_int_equal(r.op->lane.mark(other, 5), 0);
        assert_int_equal(r.op->lane.after(r.lane, other, 5), 0);
        assert_int_equal(cpu_queue(r.lane, wait_and_set, &after, sizeof after, 1), 0);
        assert_int_equal(r.op->lane.mark(r.lane, 1), 0);
        if (n % 10 == 0) sleep_ms(3);
        assert_int_equal(r.op->lane.done(r.lane), 0);
        assert_int_equal(r.op->lane.done(other), 0);
        atomic_store(&word, 10);
        r.step = 1;
        fixture_wait(&r);
        assert_int_equal(word, 13);
        assert_int_equal(r.op->lane.done(other), 5);
        r.op->lane.close(other);
        fixture_close(&r);
    }
}

static void
the_lane_fd_is_readable_only_after_a_mark(void **state)
{
    struct fixture r;
    atomic_uint word = 0;
    struct note n = { &word, 1, 2 };
    struct pollfd p;
    uint64_t count;

    (void)state;
    fixture_open(&r, "auto", 2);
    p = (struct pollfd){ .fd = r.op->lane.fd(r.lane), .events = POLLIN };
    assert_true(fcntl(p.fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(p.fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(cpu_queue(r.lane, wait_and_set, &n, sizeof n, 1), 0);
    assert_int_equal(r.op->lane.mark(r.lane, 3), 0);
    assert_int_equal(poll(&p, 1, 10), 0);
    atomic_store(&word, 1);
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(r.op->lane.done(r.lane), 3);
    assert_int_equal(read(p.fd, &count, sizeof count), sizeof count);
    assert_int_equal(poll(&p, 1, 0), 0);
    fixture_close(&r);
}

struct tally {
    atomic_uint *parts, *order;
    uint32_t order_no;
};

static void
count_parts(const void *args, uint32_t part, uint32_t parts, enum cpu_isa isa, void *scratch)
{
    const struct tally *t = args;

    (void)isa;
    /* the thread's own scratch: no other thread writes it */
    memset(scratch, (int)part, CPU_SCRATCH);
    check(part < parts);
    /* the previous job is done, the next not started */
    check(atomic_load(t->order) == t->order_no);
    if (atomic_fetch_add(t->parts, 1) + 1 == parts) {
        atomic_store(t->parts, 0);
        atomic_store(t->order, t->order_no + 1);
    }
    check(((unsigned char *)scratch)[CPU_SCRATCH - 1] == (unsigned char)part);
}

static void
ops_run_in_order_and_a_full_queue_blocks(void **state)
{
    enum { JOBS = CPU_QUEUE + 1000 };

    (void)state;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        atomic_uint parts = 0, order = 0;
        struct fixture r;

        fixture_open(&r, "auto", threads);
        for (uint32_t i = 0; i < JOBS; i++) {
            struct tally t = { &parts, &order, i };

            if (i % 100 == 0 || i % 7 == 0)
                assert_int_equal(cpu_queue(r.lane, count_parts, &t, sizeof t, 1 + i % 6), 0);
            else
                assert_int_equal(cpu_queue(r.lane, count_parts, &t, sizeof t, 1), 0);
        }
        fixture_wait(&r);
        assert_int_equal(order, JOBS);
        fixture_close(&r);
    }
}

struct held {
    atomic_uint *go, *gone;
};

/* Waits for permission, with a time limit. */
static void
hold(const void *args, uint32_t part, uint32_t parts, enum cpu_isa isa, void *scratch)
{
    const struct held *h = args;

    (void)part, (void)parts, (void)isa, (void)scratch;
    for (uint32_t ms = 0; ms < 10000 && !atomic_load(h->go); ms++) sleep_ms(1);
    atomic_store(h->gone, 1);
}

static void
nothing(const void *args, uint32_t part, uint32_t parts, enum cpu_isa isa, void *scratch)
{
    (void)args, (void)part, (void)parts, (void)isa, (void)scratch;
}

/* Otherwise the worker's loop would block and its heartbeat would stop. */
static void
two_steps_of_128_layers_are_queued_before_the_first_op_is_done(void **state)
{
    enum { JOBS = 2 * 128 * 32 - 1 };
    atomic_uint go = 0, gone = 0;
    struct held h = { &go, &gone };
    struct fixture r;

    (void)state;
    fixture_open(&r, "auto", 1);
    assert_int_equal(cpu_queue(r.lane, hold, &h, sizeof h, 1), 0);
    for (uint32_t i = 0; i < JOBS; i++)
        assert_int_equal(cpu_queue(r.lane, nothing, &h, sizeof h, 1), 0);
    assert_int_equal(gone, 0);
    atomic_store(&go, 1);
    fixture_wait(&r);
    fixture_close(&r);
}

struct parted {
    uint32_t want;
};

static void
expect_parts(const void *args, uint32_t part, uint32_t parts, enum cpu_isa isa, void *scratch)
{
    (void)part, (void)isa, (void)scratch;
    check(parts == ((const struct parted *)args)->want);
}

static void
lane_part_applies_only_to_later_ops(void **state)
{
    enum { THREADS = 4 };
    struct fixture r;

    (void)state;
    fixture_open(&r, "auto", THREADS);
    for (uint32_t i = 0; i < 2000; i++) {
        uint32_t n = 1 + i * i / 3 % THREADS;
        struct parted all = { n };

        assert_int_equal(r.op->lane.part(r.lane, THREADS - n, n), 0);
        assert_int_equal(cpu_queue(r.lane, expect_parts, &all, sizeof all, 64), 0);
    }
    fixture_wait(&r);
    fixture_close(&r);
}

static void
an_idle_lane_uses_no_cpu_time(void **state)
{
    struct fixture r;
    clock_t before;

    (void)state;
    fixture_open(&r, "auto", 4);
    fixture_wait(&r);
    sleep_ms(20);
    before = clock();
    sleep_ms(300);
    /* Five threads idle for 300 ms use at most 1 % of one core. */
    assert_true((double)(clock() - before) / CLOCKS_PER_SEC < 0.003);
    fixture_close(&r);
}

static void
closing_a_lane_finishes_queued_work(void **state)
{
    atomic_uint word = 0;
    struct fixture r;

    (void)state;
    fixture_open(&r, "auto", 3);
    for (uint32_t i = 0; i < 100; i++) {
        struct note n = { &word, i, i + 1 };

        assert_int_equal(cpu_queue(r.lane, wait_and_set, &n, sizeof n, 3), 0);
    }
    fixture_close(&r);
    assert_int_equal(word, 100);
}

static void
an_arena_survives_by_fd_and_cannot_be_truncated(void **state)
{
    uint64_t bytes = (uint64_t)3 << 30; /* only two bytes are written */
    struct arena a, b;
    struct fixture r;
    struct err e = { 0 };
    struct stat st;
    int fd;

    (void)state;
    fixture_open(&r, "auto", 1);
    assert_int_equal(r.op->mem.arena_make(r.gpu, "test", bytes, &a, &e), 0);
    assert_int_equal(ftruncate(a.fd, 4096), -1);
    assert_int_equal(ftruncate(a.fd, (off_t)bytes + 4096), -1);
    assert_true(fcntl(a.fd, F_GETFD) & FD_CLOEXEC);
    ((char *)a.base)[5] = 55;
    ((char *)a.base)[bytes - 1] = 56;
    fd = dup(a.fd);
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(st.st_blocks < 100); /* allocated on first use */
    r.op->mem.arena_drop(r.gpu, &a);
    assert_int_equal(a.fd, -1);
    assert_int_equal(r.op->mem.arena_adopt(r.gpu, fd, bytes - 1, &b, &e), -EINVAL);
    assert_non_null(strstr(e.text, "bytes"));
    assert_int_equal(r.op->mem.arena_adopt(r.gpu, fd, bytes, &b, &e), 0);
    assert_int_equal(((char *)b.base)[5], 55);
    assert_int_equal(((char *)b.base)[bytes - 1], 56);
    r.op->mem.arena_drop(r.gpu, &b);
    fixture_close(&r);
}

/* The linker redirects calls of the allocator here (--wrap, tests/gpu/Makefile.inc). */
static atomic_uint allocations;
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each);
void *__real_aligned_alloc(size_t to, size_t n);
void *__wrap_aligned_alloc(size_t to, size_t n);

void *
__wrap_malloc(size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __real_malloc(n);
}

void *
__wrap_calloc(size_t n, size_t each)
{
    atomic_fetch_add(&allocations, 1);
    return __real_calloc(n, each);
}

void *
__wrap_aligned_alloc(size_t to, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __real_aligned_alloc(to, n);
}

static void
serving_allocates_nothing_after_a_lane_is_open(void **state)
{
    struct fixture r;
    struct tensor x, w, y;
    unsigned before;

    (void)state;
    fixture_open(&r, "auto", 2);
    assert_true(allocations > 0);
    x = fixture_tensor(&r, DT_F32, 16, 256, 256, 1);
    w = fixture_tensor(&r, DT_BF16, 256, 256, 256, 1);
    y = fixture_output(&r, 16, 256, 256);
    before = allocations;
    for (int i = 0; i < 1500; i++) {
        assert_int_equal(r.op->matmul(r.lane, y, x, w, NO_TENSOR, 0), 0);
        assert_int_equal(r.op->rms_norm(r.lane, y, y, NO_TENSOR, 1e-6f, 0), 0);
    }
    fixture_wait(&r);
    assert_int_equal(allocations, before);
    fixture_close(&r);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_lanes_run_at_the_same_time),
        cmocka_unit_test(a_lane_waits_for_exactly_the_step_of_another_lane),
        cmocka_unit_test(the_lane_fd_is_readable_only_after_a_mark),
        cmocka_unit_test(ops_run_in_order_and_a_full_queue_blocks),
        cmocka_unit_test(two_steps_of_128_layers_are_queued_before_the_first_op_is_done),
        cmocka_unit_test(lane_part_applies_only_to_later_ops),
        cmocka_unit_test(an_idle_lane_uses_no_cpu_time),
        cmocka_unit_test(closing_a_lane_finishes_queued_work),
        cmocka_unit_test(an_arena_survives_by_fd_and_cannot_be_truncated),
        cmocka_unit_test(serving_allocates_nothing_after_a_lane_is_open),
    };

    fixture_args(argc, argv);
    if (fixture_cuda()) return 77; /* CPU lanes only; test_device tests both devices */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
