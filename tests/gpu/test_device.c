/* test_device.c - memory, copies, marks and graphs of any device: the guarantees of lanes and
 * arenas in gpu.h. */
#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* The formula of gpu.h. */
static uint64_t
checksum_of(const uint8_t *p, size_t bytes)
{
    uint64_t sum = 0;

    for (size_t i = 0; i * 8 < bytes; i++) {
        uint64_t z = 0;

        for (size_t k = 0; k < 8 && i * 8 + k < bytes; k++) z |= (uint64_t)p[i * 8 + k] << 8 * k;
        z += 0x9e3779b97f4a7c15u * (i + 1);
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        sum += z ^ z >> 31;
    }
    return sum;
}

/* After gpu_begin() a process may open the device later, or never. */
static void
a_device_opens_after_gpu_begin(void **state)
{
    const struct gpu_options nobodys = { .device = "nobody's" },
                             ours = { .device = fixture_cuda() ? "cuda" : "cpu" };
    struct err e = { 0 };
    struct fixture r;

    (void)state;
    assert_int_equal(gpu_begin(&nobodys, &e), -EINVAL);
    assert_int_equal(gpu_begin(&ours, &e), 0);
    assert_int_equal(gpu_begin(&ours, &e), 0);
    fixture_open(&r, "auto", 1);
    fixture_close(&r);
}

static void
checksums_cover_every_byte_and_ignore_thread_count(void **state)
{
    static const size_t size[] = { 0, 1, 8, 9, 4095, 4096, (3 << 20) + 5 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(size); i++)
        for (uint32_t threads = 1; threads <= 4; threads++) {
            struct fixture r;
            uint64_t *sum, first;
            uint8_t *p;

            fixture_open(&r, "auto", threads);
            p = fixture_bytes(&r, size[i] + 16);
            sum = fixture_bytes(&r, 2 * sizeof *sum);
            for (size_t k = 0; k < size[i]; k++) HOST(p)[k] = (uint8_t)test_below(256);
            fixture_send(&r);
            assert_int_equal(r.op->mem.checksum(r.lane, sum, p, size[i]), 0);
            fixture_wait(&r);
            first = HOST(sum)[0];
            assert_true(first == checksum_of(HOST(p), size[i]));
            if (size[i]) {
                HOST(p)[test_below((uint32_t)size[i])] ^= 1;
                fixture_send(&r);
                assert_int_equal(r.op->mem.checksum(r.lane, sum + 1, p, size[i]), 0);
                fixture_wait(&r);
                assert_true(first != HOST(sum)[1]);
            }
            fixture_close(&r);
        }
}

/* Whole blocks, or the first bytes of every pitch; other bytes keep their content. */
static void
copy_blocks_writes_only_the_blocks(void **state)
{
    enum { BLOCKS = 40 };
    static const struct block_size size[] = {
        { 16, 0, 0 },
        { 4096, 0, 0 },
        { 48 << 10, 0, 0 },
        { (48 << 10) + 16, 0, 0 },
        { 48 << 10, 8 << 10, 16 },
        { 48 << 10, 8 << 10, 5 << 10 },
        { 72 << 10, 24 << 10, (16 << 10) + 16 },
        { 4096, 4096, 4080 },
    };

    (void)state;
    for (size_t k = 0; k < 2 * ARRAY_LEN(size); k++) {
        struct block_size s = size[k / 2];
        size_t bytes = s.bytes, pitch = s.pitch ? s.pitch : bytes, used = s.pitch ? s.used : bytes;
        struct block_copy copy[BLOCKS], *there;
        char *from, *to;
        struct fixture r;

        fixture_open(&r, "auto", 3);
        from = fixture_bytes(&r, BLOCKS * bytes);
        to = fixture_bytes(&r, BLOCKS * bytes);
        for (size_t i = 0; i < BLOCKS * bytes; i++) HOST(from)[i] = (char)test_below(256);
        for (size_t i = 0; i < BLOCKS; i++) /* backwards; without the last */
            copy[i] = (struct block_copy){ to + (BLOCKS - 1 - i) * bytes, from + i * bytes };
        there = fixture_copy(&r, copy, sizeof copy);
        fixture_send(&r);
        assert_int_equal(r.op->mem.copy_blocks(r.lane, there, k % 2 ? NULL : copy, BLOCKS - 1, s),
                         0);
        fixture_wait(&r);
        for (size_t i = 0; i < (BLOCKS - 1) * bytes; i += pitch) {
            const char *got = HOST((char *)copy[i / bytes].to) + i % bytes;

            assert_memory_equal(got, HOST(from) + i, used);
            for (size_t j = used; j < pitch; j++) assert_int_equal((unsigned char)got[j], 0xff);
        }
        for (size_t i = 0; i < bytes; i++) assert_int_equal((unsigned char)HOST(to)[i], 0xff);
        fixture_close(&r);
    }
}

/* Blocks are copied to pinned memory and back (host tier). Large ones cross pins. */
static void
blocks_are_copied_to_the_host_and_back(void **state)
{
    enum { BLOCKS = 70, MOST = 1 << 20 };
    static const size_t size[] = { 16, 128 << 10, MOST, MOST - 48 };
    struct block_copy out[BLOCKS], in[BLOCKS], *outs, *ins;
    char *host = aligned_alloc(4096, (size_t)BLOCKS * MOST);

    (void)state;
    assert_non_null(host);
    for (size_t k = 0; k < 2 * ARRAY_LEN(size); k++) {
        size_t bytes = size[k / 2];
        char *a, *b;
        struct fixture r;

        fixture_open(&r, "auto", 2);
        assert_int_equal(r.op->mem.host_pin(r.gpu, host, (size_t)BLOCKS * MOST), 0);
        memset(host, 0xaa, (size_t)BLOCKS * MOST);
        a = fixture_bytes(&r, BLOCKS * bytes);
        b = fixture_bytes(&r, BLOCKS * bytes);
        for (size_t i = 0; i < BLOCKS * bytes / 4; i++)
            HOST((uint32_t *)a)[i] = test_below(UINT32_MAX);
        for (int i = 0; i < BLOCKS; i++) {
            char *between = host + (size_t)(BLOCKS - 1 - i) * bytes;

            out[i] = (struct block_copy){ between, a + (size_t)i * bytes };
            in[i] = (struct block_copy){ b + (size_t)i * bytes, between };
        }
        outs = fixture_copy(&r, out, sizeof out);
        ins = fixture_copy(&r, in, sizeof in);
        fixture_send(&r);
        assert_int_equal(r.op->mem.copy_blocks(r.lane, outs, k % 2 ? out : NULL, BLOCKS,
                                               (struct block_size){ .bytes = bytes }),
                         0);
        assert_int_equal(r.op->mem.copy_blocks(r.lane, ins, k % 2 ? in : NULL, BLOCKS,
                                               (struct block_size){ .bytes = bytes }),
                         0);
        fixture_wait(&r);
        assert_memory_equal(HOST(a), HOST(b), BLOCKS * bytes);
        assert_memory_equal(HOST(a), host + (BLOCKS - 1) * bytes, bytes);
        r.op->mem.host_unpin(r.gpu, host, (size_t)BLOCKS * MOST);
        fixture_close(&r);
    }
    free(host);
}

/* Host memory of the host tier, in pieces, with copies across most boundaries: written through one
 * mapping, read through another. */
static void
host_memory_contents_survive_mapping_by_another_device(void **state)
{
    enum { BLOCKS = 24, MOST = (1 << 20) + 48 };
    static const size_t size[] = { 48, 128 << 10, MOST };
    struct block_copy out[BLOCKS], in[BLOCKS], *outs, *ins;

    (void)state;
    for (size_t k = 0; k < 2 * ARRAY_LEN(size); k++) {
        size_t bytes = size[k / 2], all = (size_t)BLOCKS * MOST;
        struct host_memory made, taken, other;
        struct err e = { 0 };
        struct fixture r;
        char *a, *b;

        fixture_open(&r, "auto", 2);
        if (r.op->mem.host_open(r.gpu, all, &made, &e) < 0) fail_msg("%s", e.text);
        if (r.op->mem.host_open(r.gpu, all, &taken, &e) < 0) fail_msg("%s", e.text);
        assert_true(made.n > 1 && made.bytes >= all);
        for (uint32_t i = 0; i < made.n; i++) {
            if (r.op->mem.host_make(r.gpu, &made, i, &e) < 0) fail_msg("%s", e.text);
            if (r.op->mem.host_map(r.gpu, &made, &e) < 0) fail_msg("%s", e.text);
            taken.fd[i] = dup(made.fd[i]);
            if (r.op->mem.host_map(r.gpu, &taken, &e) < 0) fail_msg("%s", e.text);
        }
        a = fixture_bytes(&r, BLOCKS * bytes);
        b = fixture_bytes(&r, BLOCKS * bytes);
        for (size_t i = 0; i < BLOCKS * bytes / 4; i++)
            HOST((uint32_t *)a)[i] = test_below(UINT32_MAX);
        for (size_t i = 0; i < BLOCKS; i++) {
            size_t at = (BLOCKS - 1 - i) * bytes;

            out[i] = (struct block_copy){ (char *)made.base + at, a + i * bytes };
            in[i] = (struct block_copy){ b + i * bytes, (char *)taken.base + at };
        }
        outs = fixture_copy(&r, out, sizeof out);
        ins = fixture_copy(&r, in, sizeof in);
        fixture_send(&r);
        assert_int_equal(r.op->mem.copy_blocks(r.lane, outs, k % 2 ? out : NULL, BLOCKS,
                                               (struct block_size){ .bytes = bytes }),
                         0);
        fixture_wait(&r);
        if (!fixture_cuda()) /* on a GPU only the device can access it */
            assert_memory_equal(HOST(a), (char *)taken.base + (BLOCKS - 1) * bytes, bytes);
        r.op->mem.host_close(r.gpu, &made);
        assert_null(made.base);
        assert_int_equal(r.op->mem.copy_blocks(r.lane, ins, k % 2 ? in : NULL, BLOCKS,
                                               (struct block_size){ .bytes = bytes }),
                         0);
        fixture_wait(&r);
        assert_memory_equal(HOST(a), HOST(b), BLOCKS * bytes);
        if (r.op->mem.host_open(r.gpu, all + HOST_PIECES * (4 << 20), &other, &e) < 0)
            fail_msg("%s", e.text);
        other.fd[0] = dup(taken.fd[0]); /* it is smaller */
        assert_true(r.op->mem.host_map(r.gpu, &other, &e) < 0);
        assert_int_equal(other.n_mapped, 0);
        r.op->mem.host_close(r.gpu, &other);
        r.op->mem.host_close(r.gpu, &taken);
        fixture_close(&r);
    }
}

static void
an_arena_is_adopted_by_fd_with_its_contents(void **state)
{
    uint64_t bytes = (uint64_t)48 << 20;
    struct arena a, b;
    struct fixture r;
    struct err e = { 0 };
    uint64_t *sum;
    int fd;

    (void)state;
    fixture_open(&r, "auto", 1);
    sum = fixture_bytes(&r, 2 * sizeof *sum);
    assert_int_equal(r.op->mem.arena_make(r.gpu, "test", bytes, &a, &e), 0);
    assert_true(a.bytes == bytes);
    assert_true(fcntl(a.fd, F_GETFD) & FD_CLOEXEC);
    fixture_send(&r);
    assert_int_equal(
        r.op->mem.fill_random(r.lane, tensor_2d(a.base, DT_F32, 1 << 10, 12 << 10), 7, 0, 0, 1), 0);
    assert_int_equal(r.op->mem.checksum(r.lane, sum, a.base, bytes), 0);
    fixture_wait(&r);
    fd = dup(a.fd);
    r.op->mem.arena_drop(r.gpu, &a);
    assert_int_equal(a.fd, -1);
    assert_int_equal(r.op->mem.arena_adopt(r.gpu, fd, bytes, &b, &e), 0);
    assert_int_equal(r.op->mem.checksum(r.lane, sum + 1, b.base, bytes), 0);
    fixture_wait(&r);
    assert_true(HOST(sum)[0] == HOST(sum)[1]);
    assert_int_equal(b.fd, fd);
    r.op->mem.arena_drop(r.gpu, &b);
    fixture_close(&r);
}

static void
dropping_an_arena_frees_its_memory(void **state)
{
    uint64_t free_1, free_2, free_3, own, total, bytes = (uint64_t)1 << 30;
    struct arena a;
    struct fixture r;
    struct err e = { 0 };

    (void)state;
    /* a memfd allocates on first use, and other processes use this host */
    if (!fixture_cuda()) skip();
    fixture_open(&r, "auto", 1);
    assert_int_equal(gpu_memory(r.gpu, &free_1, &own, &total), 0);
    assert_true(own > 0 && free_1 + own <= total);
    assert_int_equal(r.op->mem.arena_make(r.gpu, "test", bytes, &a, &e), 0);
    assert_int_equal(gpu_memory(r.gpu, &free_2, &own, &total), 0);
    assert_true(free_2 + bytes <= free_1 + (16 << 20));
    r.op->mem.arena_drop(r.gpu, &a);
    assert_int_equal(gpu_memory(r.gpu, &free_3, &own, &total), 0);
    assert_true(free_3 + (16 << 20) >= free_1);
    assert_true(r.op->mem.arena_make(r.gpu, "too large", total + bytes, &a, &e) < 0);
    assert_non_null(strstr(e.text, "too large"));
    fixture_close(&r);
}

static void
inspection_needs_no_memory_of_a_full_gpu(void **state)
{
    uint64_t free, own, total;
    char exe[256], command[700];
    struct arena a;
    struct fixture r;
    struct err e = { 0 };
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    (void)state;
    if (!fixture_cuda() || !nvml) skip();
    test_program(exe, sizeof exe, "lagan-worker");
    fixture_open(&r, "auto", 1);
    assert_int_equal(gpu_memory(r.gpu, &free, &own, &total), 0);
    assert_true(free > 200 << 20);
    assert_int_equal(r.op->mem.arena_make(r.gpu, "all", (free - (100 << 20)) >> 21 << 21, &a, &e),
                     0);
    snprintf(
        command, sizeof command,
        "%s --inspect --device=cuda --held=1024GiB --path=%s/tests/data/golden/llama2 >/dev/null",
        exe, getenv("srcdir") ? getenv("srcdir") : ".");
    assert_int_equal(system(command), 0);
    r.op->mem.arena_drop(r.gpu, &a);
    fixture_close(&r);
}

static struct lane *
another_lane(struct fixture *r)
{
    struct lane *other;
    struct err e = { 0 };

    if (r->op->lane.open(r->gpu, fixture_cuda() ? gpu_facts(r->gpu).units : 2, &other, &e) < 0)
        fail_msg("%s", e.text);
    return other;
}

/* Two lanes write one buffer alternately, each after waiting for the other's mark. */
static void
a_lane_sees_writes_before_the_mark_it_waits_for(void **state)
{
    enum { TIMES = 60, N = 1 << 18 };
    struct fixture r;
    struct lane *lane[2];
    struct tensor x, one;

    (void)state;
    fixture_open(&r, "auto", 1);
    lane[0] = r.lane;
    lane[1] = another_lane(&r);
    x = fixture_empty(&r, DT_F32, 64, N / 64, N / 64);
    one = fixture_empty(&r, DT_F32, 64, N / 64, N / 64);
    for (uint32_t i = 0; i < N; i++) HOST((float *)x.data)[i] = 0, HOST((float *)one.data)[i] = 1;
    fixture_send(&r);
    fixture_wait(&r);
    for (uint64_t i = 1; i <= TIMES; i++) {
        struct lane *l = lane[i % 2], *other = lane[(i + 1) % 2];

        assert_int_equal(r.op->add(l, x, one), 0);
        assert_int_equal(r.op->lane.mark(l, 1000000 + i), 0);
        assert_int_equal(r.op->lane.after(other, l, 1000000 + i), 0);
    }
    r.step = 2000000;
    fixture_wait(&r);
    for (uint32_t i = 0; i < N; i++) assert_true(HOST((float *)x.data)[i] == TIMES);
    r.op->lane.close(lane[1]);
    fixture_close(&r);
}

/* A worker's warm-up marks steps of its own, then restarts at 1. */
static void
a_wait_ignores_marks_of_the_previous_numbering(void **state)
{
    enum { TIMES = 300, N = 1 << 20 };
    struct fixture r;
    struct lane *other;
    struct tensor x, y, one;

    (void)state;
    fixture_open(&r, "auto", 1);
    other = another_lane(&r);
    x = fixture_empty(&r, DT_F32, 64, N / 64, N / 64);
    y = fixture_empty(&r, DT_F32, 64, N / 64, N / 64);
    one = fixture_empty(&r, DT_F32, 64, N / 64, N / 64);
    for (uint32_t i = 0; i < N; i++) {
        HOST((float *)x.data)[i] = HOST((float *)y.data)[i] = 0;
        HOST((float *)one.data)[i] = 1;
    }
    fixture_send(&r);
    fixture_wait(&r);
    assert_int_equal(r.op->lane.mark(other, 5), 0);
    while (r.op->lane.done(other) != 5) assert_int_equal(r.op->lane.error(other), 0);
    assert_int_equal(r.op->lane.mark(other, 0), 0);
    while (r.op->lane.done(other) != 0) assert_int_equal(r.op->lane.error(other), 0);
    for (int i = 0; i < TIMES; i++) assert_int_equal(r.op->add(other, x, one), 0);
    assert_int_equal(r.op->lane.mark(other, 1), 0);
    assert_int_equal(r.op->lane.after(r.lane, other, 1), 0);
    assert_int_equal(r.op->add(r.lane, y, x), 0);
    fixture_wait(&r);
    for (uint32_t i = 0; i < N; i++) assert_true(HOST((float *)y.data)[i] == TIMES);
    r.op->lane.close(other);
    fixture_close(&r);
}

static void
waiting_for_an_unmarked_step_is_refused(void **state)
{
    struct fixture r;
    struct lane *other;

    (void)state;
    fixture_open(&r, "auto", 1);
    other = another_lane(&r);
    assert_int_equal(r.op->lane.after(r.lane, other, 1), -EINVAL);
    assert_non_null(strstr(gpu_why(r.gpu), "step 1"));
    assert_int_equal(r.op->lane.mark(other, 1), 0);
    assert_int_equal(r.op->lane.after(r.lane, other, 1), 0);
    assert_int_equal(r.op->lane.after(r.lane, other, 2), -EINVAL);
    assert_int_equal(r.op->lane.after(r.lane, r.lane, 1 << 20), 0); /* queue order suffices */
    fixture_wait(&r);
    r.op->lane.close(other);
    fixture_close(&r);
}

static void
a_step_is_done_when_its_mark_is(void **state)
{
    struct fixture r;
    struct tensor x;

    (void)state;
    fixture_open(&r, "auto", 1);
    x = fixture_tensor(&r, DT_F32, 512, 4096, 4096, 1);
    fixture_send(&r);
    fixture_wait(&r);
    for (uint64_t i = 1; i <= 200; i++) {
        uint64_t last = 0;

        assert_int_equal(r.op->scale(r.lane, x, 1.0f, 0), 0);
        assert_int_equal(r.op->lane.mark(r.lane, 3000000 + i), 0);
        while (i % 20 == 0 && r.op->lane.done(r.lane) < 3000000 + i) {
            uint64_t now = r.op->lane.done(r.lane);

            assert_true(now >= last && now <= 3000000 + i);
            last = now;
        }
    }
    r.step = 4000000;
    fixture_wait(&r);
    assert_int_equal(r.op->lane.error(r.lane), 0);
    fixture_close(&r);
}

/* A graph uses the contents at launch. */
static void
a_graph_runs_on_current_buffer_contents(void **state)
{
    enum { ROWS = 7, K = 192, OUT = 320 };
    struct fixture r;
    struct tensor x, w, y, plain, norm;
    struct graph *g;
    uint64_t bytes = 1;

    (void)state;
    fixture_open(&r, "auto", 1);
    if (!gpu_facts(r.gpu).graphs) {
        assert_int_equal(r.op->graph.begin(r.lane), -ENOTSUP);
        fixture_close(&r);
        skip();
    }
    x = fixture_tensor(&r, r.act, ROWS, K, K, 1);
    w = fixture_tensor(&r, r.act, OUT, K, K, 1);
    norm = fixture_tensor(&r, DT_F32, 1, K, K, 1);
    y = fixture_output(&r, ROWS, OUT, OUT);
    plain = fixture_output(&r, ROWS, OUT, OUT);
    fixture_send(&r);
    fixture_wait(&r);
    assert_int_equal(r.op->graph.begin(r.lane), 0);
    assert_int_equal(r.op->rms_norm(r.lane, x, x, norm, 1e-6f, 1), 0);
    assert_int_equal(r.op->matmul(r.lane, y, x, w, NO_TENSOR, 0), 0);
    assert_int_equal(r.op->graph.end(r.lane, &g, &bytes), 0);
    fixture_wait(&r);
    assert_true(at(y, 0, 0) != at(y, 0, 0)); /* recorded, not run: still poison */
    for (int n = 0; n < 5; n++) {
        struct tensor again = fixture_tensor(&r, r.act, ROWS, K, K, 1);

        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t j = 0; j < K; j++) set(x, i, j, (float)at(again, i, j));
        fixture_send(&r);
        assert_int_equal(r.op->graph.launch(r.lane, g), 0);
        assert_int_equal(r.op->rms_norm(r.lane, again, again, norm, 1e-6f, 1), 0);
        assert_int_equal(r.op->matmul(r.lane, plain, again, w, NO_TENSOR, 0), 0);
        fixture_wait(&r);
        assert_true(same_bits(plain, y));
    }
    r.op->graph.drop(r.lane, g);
    fixture_close(&r);
}

/* Above about 4,000 the driver's queue is full, and the lane fails with "unspecified launch
 * failure". */
static void
a_graph_above_2048_ops_is_refused_without_failing_the_lane(void **state)
{
    enum { MOST = 2048, N = 256 };
    struct fixture r;
    struct tensor x, one;
    struct graph *g;
    uint64_t bytes;

    (void)state;
    fixture_open(&r, "auto", 1);
    if (!gpu_facts(r.gpu).graphs) {
        fixture_close(&r);
        skip();
    }
    x = fixture_empty(&r, DT_F32, 1, N, N);
    one = fixture_empty(&r, DT_F32, 1, N, N);
    for (uint32_t i = 0; i < N; i++) HOST((float *)x.data)[i] = 0, HOST((float *)one.data)[i] = 1;
    fixture_send(&r);
    for (int more = 1; more >= 0; more--) {
        assert_int_equal(r.op->graph.begin(r.lane), 0);
        for (int i = 0; i < MOST + more; i++) assert_int_equal(r.op->add(r.lane, x, one), 0);
        assert_int_equal(r.op->graph.end(r.lane, &g, &bytes), more ? -E2BIG : 0);
    }
    for (int i = 0; i < 20; i++) assert_int_equal(r.op->graph.launch(r.lane, g), 0);
    fixture_wait(&r);
    for (uint32_t i = 0; i < N; i++) assert_true(HOST((float *)x.data)[i] == 20 * MOST);
    r.op->graph.drop(r.lane, g);
    fixture_close(&r);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(a_device_opens_after_gpu_begin),
        fixture_test(checksums_cover_every_byte_and_ignore_thread_count),
        fixture_test(copy_blocks_writes_only_the_blocks),
        fixture_test(blocks_are_copied_to_the_host_and_back),
        fixture_test(host_memory_contents_survive_mapping_by_another_device),
        fixture_test(an_arena_is_adopted_by_fd_with_its_contents),
        fixture_test(dropping_an_arena_frees_its_memory),
        fixture_test(inspection_needs_no_memory_of_a_full_gpu),
        fixture_test(a_lane_sees_writes_before_the_mark_it_waits_for),
        fixture_test(a_wait_ignores_marks_of_the_previous_numbering),
        fixture_test(waiting_for_an_unmarked_step_is_refused),
        fixture_test(a_step_is_done_when_its_mark_is),
        fixture_test(a_graph_runs_on_current_buffer_contents),
        fixture_test(a_graph_above_2048_ops_is_refused_without_failing_the_lane),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
