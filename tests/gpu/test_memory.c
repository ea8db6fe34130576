/* test_memory.c - device memory that outlives a process or a failure, and errors of opening.
 *
 * Arenas, copies, marks, graphs of copies, and one kernel with a wrong address. The processes that
 * are killed are this program again, started with a descriptor number instead of options.
 */
#include "base/clock.h"
#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAKE = 2 }; /* arguments of the other process: "--child", action, descriptor, device */
#define BYTES ((uint64_t)200 << 20)
#define ODD (BYTES + 12345) /* not a multiple of a page */

static const char *device = "cpu";

static uint64_t
word_of(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;

    return z ^ z >> 29;
}

static void
must(int r, const char *what, const char *why)
{
    if (r >= 0) return;
    fprintf(stderr, "%s: %s (%s)\n", what, why, strerror(-r));
    _exit(3);
}

/* ---- the other process */

static void
send_fd(int to, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = { 0 }, byte = 1;
    struct iovec v = { &byte, 1 };
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
    };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    must(sendmsg(to, &m, 0) == 1 ? 0 : -errno, "send the fd", "sendmsg");
}

static int
take_fd(int from)
{
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec v = { &byte, 1 };
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
    };
    int fd;

    if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&m)) return -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

static void
wait_done(const struct gpu_ops *op, struct lane *l, uint64_t step)
{
    must(op->lane.mark(l, step), "mark", "");
    while (op->lane.done(l) < step && op->lane.error(l) == 0) usleep(100);
}

/* "make": fills an arena, sends its fd, then copies without end inside a second one; "fault": the
 * same, then a kernel that reads an unmapped address. */
static int
child(const char *what, int to, const char *on)
{
    struct gpu_options o = { .device = on };
    struct arena a, b;
    struct err e = { 0 };
    const struct gpu_ops *op;
    struct lane *l;
    struct gpu *g;
    uint64_t *host = malloc(ODD + 8);

    must(gpu_open(&g, &o, &e), "open", e.text);
    op = gpu_ops(g);
    must(op->lane.open(g, 1, &l, &e), "lane", e.text);
    must(op->mem.arena_make(g, "words", ODD, &a, &e), "make", e.text);
    must(op->mem.arena_make(g, "others", BYTES, &b, &e), "make", e.text);
    for (uint64_t i = 0; i * 8 < ODD; i++) host[i] = word_of(i);
    must(op->mem.put(l, a.base, host, ODD), "put", gpu_why(g));
    wait_done(op, l, 1);
    send_fd(to, a.fd);
    if (strcmp(what, "fault") == 0) {
        struct block_copy wrong = { b.base, (char *)a.base + ((uint64_t)1 << 40) };

        must(op->mem.put(l, b.base, &wrong, sizeof wrong), "put", gpu_why(g));
        must(op->mem.copy_blocks(l, b.base, NULL, 1, (struct block_size){ .bytes = 4096 }),
             "copy_blocks", gpu_why(g));
        must(op->lane.mark(l, 2), "mark", gpu_why(g));
        for (int n = 0; n < 20000 && op->lane.error(l) == 0; n++) usleep(100);
        fprintf(stderr, "    printed: %s\n", gpu_why(g));
        return op->lane.error(l) == -EIO && *gpu_why(g) ? 0 : 4;
    }
    for (uint64_t step = 2;; step++) {
        op->mem.copy(l, b.base, (char *)b.base + BYTES / 2, BYTES / 2);
        if (step % 8 == 0) wait_done(op, l, step);
    }
}

static pid_t
start(const char *what, int *from)
{
    int pair[2];
    char number[16];
    pid_t pid;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int to = dup(pair[1]);

        snprintf(number, sizeof number, "%d", to);
        execl("/proc/self/exe", "test_memory", "--child", what, number, device, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    *from = pair[0];
    return pid;
}

/* Checks every word of an arena that the other process filled. */
static void
expect_words(struct fixture *r, const struct arena *a)
{
    uint64_t *back, wrong = 0;

    back = mmap(NULL, ODD + 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(back != MAP_FAILED);
    assert_int_equal(r->op->mem.get(r->lane, back, a->base, ODD), 0);
    fixture_wait(r);
    for (uint64_t i = 0; i < ODD / 8; i++) wrong += back[i] != word_of(i);
    assert_int_equal(wrong, 0);
    munmap(back, ODD + 8);
}

/* ---- tests */

static void
an_arena_is_intact_after_its_process_was_killed(void **state)
{
    (void)state;
    for (int n = 0; n < 3; n++) {
        nsec killed, reaped, adopted;
        struct err e = { 0 };
        struct arena a;
        struct fixture r;
        int from, fd, status;
        pid_t pid;

        fixture_open(&r, "auto", 1); /* alive at the same time, like a standby */
        pid = start("make", &from);
        fd = take_fd(from);
        if (fd < 0) fail_msg("the maker sent no descriptor");
        usleep(20000);
        killed = clock_now();
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        reaped = clock_now();
        if (r.op->mem.arena_adopt(r.gpu, fd, ODD, &a, &e) < 0) fail_msg("%s", e.text);
        adopted = clock_now();
        assert_true(a.fd == fd && a.bytes == ODD);
        expect_words(&r, &a);
        print_message("    killed to reaped %lld us, adopted %lld us later\n",
                      (long long)(reaped - killed) / 1000, (long long)(adopted - reaped) / 1000);
        r.op->mem.arena_drop(r.gpu, &a);
        close(from);
        fixture_close(&r);
    }
}

static void
an_arena_is_intact_after_a_device_fault_of_its_process(void **state)
{
    struct err e = { 0 };
    struct arena a;
    struct fixture r;
    int from, fd, status;
    pid_t pid;

    (void)state;
    if (!fixture_cuda()) skip(); /* a wrong address ends a CPU process: see the test above */
    fixture_open(&r, "auto", 1);
    pid = start("fault", &from);
    fd = take_fd(from);
    if (fd < 0) fail_msg("the maker sent no descriptor");
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    if (r.op->mem.arena_adopt(r.gpu, fd, ODD, &a, &e) < 0) fail_msg("%s", e.text);
    expect_words(&r, &a);
    r.op->mem.arena_drop(r.gpu, &a);
    close(from);
    fixture_close(&r);
}

static void
adopting_a_wrong_fd_or_size_is_refused(void **state)
{
    uint64_t wrong[] = { BYTES - ((uint64_t)8 << 20), BYTES + ((uint64_t)8 << 20) };
    struct err e = { 0 };
    struct arena a, b;
    struct fixture r;
    int fd;

    (void)state;
    fixture_open(&r, "auto", 1);
    assert_int_equal(r.op->mem.arena_make(r.gpu, "test", BYTES, &a, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        e.text[0] = '\0';
        if (r.op->mem.arena_adopt(r.gpu, a.fd, wrong[i], &b, &e) != -EINVAL)
            fail_msg("%llu of %llu bytes: %s", (unsigned long long)wrong[i],
                     (unsigned long long)BYTES, e.text);
        assert_non_null(strstr(e.text, "bytes"));
    }
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (r.op->mem.arena_adopt(r.gpu, fd, BYTES, &b, &e) != -EINVAL)
        fail_msg("/dev/null: %s", e.text);
    print_message("    %s\n", e.text);
    close(fd);
    r.op->mem.arena_drop(r.gpu, &a);
    fixture_close(&r);
}

static void
out_of_memory_errors_name_requested_and_free_bytes(void **state)
{
    uint64_t free, own, total;
    struct err e = { 0 };
    struct arena a;
    struct fixture r;

    (void)state;
    if (!fixture_cuda()) skip(); /* a memfd may have any size */
    fixture_open(&r, "auto", 1);
    assert_int_equal(gpu_memory(r.gpu, &free, &own, &total), 0);
    print_message("    free %.2f, own %.2f, total %.2f GiB\n", (double)free / 0x1p30,
                  (double)own / 0x1p30, (double)total / 0x1p30);
    assert_int_equal(r.op->mem.arena_make(r.gpu, "kv", total, &a, &e), -ENOMEM);
    print_message("    %s\n", e.text);
    assert_non_null(strstr(e.text, "arena kv"));
    assert_non_null(strstr(e.text, "are free"));
    /* and the device stays usable */
    assert_int_equal(r.op->mem.arena_make(r.gpu, "kv", BYTES, &a, &e), 0);
    r.op->mem.arena_drop(r.gpu, &a);
    fixture_close(&r);
}

static void
no_child_inherits_the_device(void **state)
{
    struct fixture r;
    int n = 0;

    (void)state;
    fixture_open(&r, "auto", 1);
    for (int fd = 3; fd < 1024; fd++) {
        char name[32], target[256];
        ssize_t len;

        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        len = readlink(name, target, sizeof target - 1);
        if (len < 0) continue;
        target[len] = '\0';
        if (strncmp(target, "/dev/nvidia", 11) != 0) continue;
        n++;
        if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC)) fail_msg("%d (%s) stays open", fd, target);
    }
    assert_true(n > 0 || !fixture_cuda());
    fixture_close(&r);
}

static void
an_unavailable_device_is_named_in_the_error(void **state)
{
    static const struct {
        const char *device, *kernels, *says;
    } c[] = {
        { "cuda:999", NULL, NULL },
        { "gpu", NULL, "is not cpu, cuda or cuda:N" },
        { "cuda:", NULL, "is not cpu, cuda or cuda:N" },
        { "cuda", "attend=none", "has no candidate \"none\"" },
        { "cuda", "atend=generic", "unknown op \"atend\"" },
        { "cuda", "attend", "does not have the form op=candidate" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        struct gpu_options o = { .device = c[i].device, .kernels = c[i].kernels };
        struct err e = { 0 };
        struct gpu *g;

        assert_true(gpu_open(&g, &o, &e) < 0);
        assert_true(strlen(e.text) > 20);
        print_message("    %s\n", e.text);
        if (c[i].says && (fixture_cuda() || !c[i].kernels))
            assert_non_null(strstr(e.text, c[i].says));
    }
}

/* 150 MiB from the middle of a page: crosses pin boundaries. */
static void
pinned_memory_is_copied_in_one_piece(void **state)
{
    size_t n = (size_t)150 << 20, from = 4096 + 24;
    static unsigned char *host;
    struct err e = { 0 };
    struct arena a;
    struct fixture r;

    (void)state;
    fixture_open(&r, "auto", 1);
    if (!host) {
        host = mmap(NULL, 3 * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(host != MAP_FAILED);
        assert_int_equal(r.op->mem.host_pin(r.gpu, host, 3 * n), 0);
    }
    assert_int_equal(r.op->mem.arena_make(r.gpu, "test", n, &a, &e), 0);
    for (size_t i = 0; i < n / 8 - 1024; i++) {
        uint64_t w = word_of(i);
        memcpy(host + from + 8 * i, &w, 8);
    }
    n -= 8192;
    assert_int_equal(r.op->mem.put(r.lane, a.base, host + from, n), 0);
    assert_int_equal(r.op->mem.get(r.lane, host + 2 * from + n, a.base, n), 0);
    fixture_wait(&r);
    assert_memory_equal(host + from, host + 2 * from + n, n);
    for (int way = 0; way < 2; way++) {
        nsec t = clock_now();

        for (int i = 0; i < 10; i++)
            assert_int_equal(way ? r.op->mem.get(r.lane, host, a.base, n)
                                 : r.op->mem.put(r.lane, a.base, host, n),
                             0);
        if (fixture_cuda())
            print_message("    %s: queued in %lld us", way ? "get" : "put",
                          (long long)(clock_now() - t) / 1000);
        r.step += 10;
        assert_int_equal(r.op->lane.mark(r.lane, r.step), 0);
        while (r.op->lane.done(r.lane) < r.step)
            ;
        if (fixture_cuda())
            print_message(", %.1f GB/s\n", 10.0 * (double)n / (double)(clock_now() - t));
    }
    fixture_wait(&r);
    r.op->mem.arena_drop(r.gpu, &a);
    fixture_close(&r);
}

/* Sizes and addresses of every alignment, small ones (by a kernel) and slightly larger. */
static void
copies_of_any_size_and_alignment_write_only_their_range(void **state)
{
    enum { AREA = 1 << 20, TIMES = 300 };
    static unsigned char *host;
    struct fixture r;
    unsigned char *dev, *dev2;

    (void)state;
    fixture_open(&r, "auto", 1);
    if (!host) {
        host = mmap(NULL, 2 * AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(host != MAP_FAILED);
        assert_int_equal(r.op->mem.host_pin(r.gpu, host, 2 * AREA), 0);
    }
    dev = fixture_bytes(&r, AREA);
    dev2 = fixture_bytes(&r, AREA);
    for (int i = 0; i < TIMES; i++) {
        uint32_t align = 1u << test_below(6), n = test_below(i % 10 ? 4000 : AREA / 2);
        uint32_t a = test_below(AREA / 4) / align * align, b = test_below(AREA / 4) / align * align;
        uint32_t c = test_below(AREA / 4) / align * align;

        if (i % 3) n = n / align * align;
        for (uint32_t k = 0; k < AREA; k++) host[k] = (unsigned char)(k * 7 + (uint32_t)i);
        memset(host + AREA, 0xff, AREA);
        fixture_send(&r); /* all 0xff */
        assert_int_equal(r.op->mem.put(r.lane, dev + a, host + b, n), 0);
        assert_int_equal(r.op->mem.copy(r.lane, dev2 + c, dev + a, n), 0);
        assert_int_equal(r.op->mem.get(r.lane, host + AREA + b, dev2 + c, n), 0);
        fixture_wait(&r);
        assert_memory_equal(host + AREA + b, host + b, n);
        assert_memory_equal(HOST(dev) + a, host + b, n);
        for (uint32_t k = 0; k < AREA; k++) {
            assert_true((k >= a && k < a + n) || HOST(dev)[k] == 0xff);
            assert_true((k >= c && k < c + n) || HOST(dev2)[k] == 0xff);
            assert_true((k >= b && k < b + n) || host[AREA + k] == 0xff);
        }
        memset(HOST(dev), 0xff, AREA);
        memset(HOST(dev2), 0xff, AREA);
    }
    fixture_close(&r);
}

/* A graph of copies. put and get are refused while recording, and the recording stays valid. */
static void
a_recording_refuses_host_copies_and_stays_valid(void **state)
{
    enum { N = 1 << 16, GRAPHS = 20 };
    struct graph *g[GRAPHS];
    struct fixture r;
    char *a, *b, host[64];
    uint64_t bytes, sum = 0;
    nsec t;

    (void)state;
    fixture_open(&r, "auto", 1);
    if (!gpu_facts(r.gpu).graphs) {
        fixture_close(&r);
        skip();
    }
    a = fixture_bytes(&r, N * (GRAPHS + 1));
    b = fixture_bytes(&r, 64);
    for (int i = 0; i < N * (GRAPHS + 1); i++) HOST(a)[i] = (char)test_below(256);
    fixture_send(&r);
    fixture_wait(&r);
    t = clock_now();
    for (int k = 0; k < GRAPHS; k++) {
        assert_int_equal(r.op->graph.begin(r.lane), 0);
        assert_int_equal(r.op->graph.begin(r.lane), -EINVAL);
        assert_int_equal(r.op->mem.copy(r.lane, a + (k + 1) * N, a + k * N, N), 0);
        assert_int_equal(r.op->mem.put(r.lane, b, host, 64), -EINVAL);
        assert_int_equal(r.op->mem.get(r.lane, host, b, 64), -EINVAL);
        assert_int_equal(r.op->lane.mark(r.lane, r.step + 1), -EINVAL);
        assert_int_equal(r.op->lane.error(r.lane), 0);
        assert_int_equal(r.op->graph.end(r.lane, &g[k], &bytes), 0);
        sum += bytes;
    }
    assert_int_equal(r.op->graph.end(r.lane, &g[0], &bytes), -EINVAL);
    print_message("    a graph: %lld us, %llu bytes\n",
                  (long long)(clock_now() - t) / 1000 / GRAPHS, (unsigned long long)sum / GRAPHS);
    for (int k = 0; k < GRAPHS; k++) assert_int_equal(r.op->graph.launch(r.lane, g[k]), 0);
    fixture_wait(&r);
    for (int k = 0; k < GRAPHS; k++) {
        assert_memory_equal(HOST(a), HOST(a) + (k + 1) * N, N);
        r.op->graph.drop(r.lane, g[k]);
    }
    fixture_close(&r);
}

/* One lane runs far behind; the other waits for its mark only. */
static void
a_lane_waits_for_the_requested_mark_only(void **state)
{
    enum { N = 64 << 20, TIMES = 100 };
    struct err e = { 0 };
    struct lane *other;
    struct arena a;
    struct fixture r;
    uint32_t *end, last = 0;

    (void)state;
    fixture_open(&r, "auto", 1);
    assert_int_equal(r.op->lane.open(r.gpu, 1, &other, &e), 0);
    assert_int_equal(r.op->mem.arena_make(r.gpu, "test", 2 * (uint64_t)N, &a, &e), 0);
    end = fixture_bytes(&r, 2 * TIMES * sizeof *end);
    for (uint32_t i = 0; i < TIMES; i++) HOST(end)[i] = i + 1, HOST(end)[TIMES + i] = 0;
    fixture_send(&r);
    fixture_wait(&r);
    for (uint32_t i = 0; i < TIMES; i++) {
        char *word = (char *)a.base + N - 4;

        /* A long copy before the word: a lane that does not wait reads the old word. */
        assert_int_equal(r.op->mem.copy(other, (char *)a.base + N, a.base, N), 0);
        assert_int_equal(r.op->mem.copy(other, word, end + i, 4), 0);
        assert_int_equal(r.op->lane.mark(other, i + 1), 0);
        assert_int_equal(r.op->lane.after(r.lane, other, i + 1), 0);
        assert_int_equal(r.op->mem.copy(r.lane, end + TIMES + i, word, 4), 0);
        assert_int_equal(r.op->lane.mark(r.lane, r.step + 1 + i), 0);
        assert_int_equal(r.op->lane.after(other, r.lane, r.step + 1 + i), 0);
    }
    r.step += TIMES;
    fixture_wait(&r);
    for (uint32_t i = 0; i < TIMES; i++) {
        if (HOST(end)[TIMES + i] != i + 1)
            fail_msg("wait %u saw the word of step %u", i + 1, HOST(end)[TIMES + i]);
        last = i;
    }
    assert_int_equal(last, TIMES - 1);
    r.op->lane.close(other);
    r.op->mem.arena_drop(r.gpu, &a);
    fixture_close(&r);
}

/* Measures the cost of marks per step, and the delay until a mark is seen. */
static void
marks_are_cheap_and_seen_quickly(void **state)
{
    enum { N = 2000 };
    struct fixture r;
    nsec t, queued, asked;
    char *p;

    (void)state;
    fixture_open(&r, "auto", 1);
    p = fixture_bytes(&r, 4096);
    fixture_send(&r);
    fixture_wait(&r);
    t = clock_now();
    for (int i = 0; i < N; i++) {
        assert_int_equal(r.op->lane.mark(r.lane, ++r.step), 0);
        while (r.op->lane.done(r.lane) < r.step)
            ;
    }
    t = clock_now() - t;
    queued = clock_now();
    for (int i = 0; i < 50; i++) r.op->lane.mark(r.lane, ++r.step);
    queued = clock_now() - queued;
    asked = clock_now();
    for (int i = 0; i < N; i++) assert_int_equal(r.op->lane.error(r.lane), 0);
    asked = clock_now() - asked;
    print_message("    mark to seen %lld ns, to queue one %lld ns, lane_error %lld ns\n",
                  (long long)t / N, (long long)queued / 50, (long long)asked / N);
    assert_int_equal(r.op->mem.copy(r.lane, p, p + 2048, 2048), 0);
    fixture_wait(&r);
    fixture_close(&r);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unavailable_device_is_named_in_the_error),
        cmocka_unit_test(an_arena_is_intact_after_its_process_was_killed),
        cmocka_unit_test(an_arena_is_intact_after_a_device_fault_of_its_process),
        cmocka_unit_test(adopting_a_wrong_fd_or_size_is_refused),
        cmocka_unit_test(out_of_memory_errors_name_requested_and_free_bytes),
        cmocka_unit_test(no_child_inherits_the_device),
        cmocka_unit_test(pinned_memory_is_copied_in_one_piece),
        cmocka_unit_test(copies_of_any_size_and_alignment_write_only_their_range),
        cmocka_unit_test(a_recording_refuses_host_copies_and_stays_valid),
        cmocka_unit_test(a_lane_waits_for_the_requested_mark_only),
        cmocka_unit_test(marks_are_cheap_and_seen_quickly),
    };

    if (argc == MAKE + 3 && strcmp(argv[1], "--child") == 0)
        _exit(child(argv[MAKE], atoi(argv[MAKE + 1]), argv[MAKE + 2])); /* a device is open */
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--device") == 0) device = argv[i + 1];
    fixture_args(argc, argv);
    test_seed();
    return cmocka_run_group_tests(tests, NULL, fixture_end);
}
