/* test_collective.c - all-reduce and all-gather: every rank has the bits of the sum in rank order.
 *
 * Ranks are processes with one device each: threads of the CPU or, with `--device cuda`, one GPU
 * each (--most limits their number). A rank can compute the data of all ranks, because all use the
 * same random numbers.
 */
#include "gpu/fp.h"
#include "gpu/gpu.h"
#include "tests/test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPS = 36, LANES = 2, ALONE = 100 /* seconds that a rank waits for an exited one */ };
#define AREA ((size_t)24 << 20) /* of one tensor */

static struct gpu_options options = { .device = "cpu" };
static uint32_t most = 4;

/* ---- in a rank */

struct side {
    struct gpu *gpu;
    const struct gpu_ops *op;
    struct lane *lane;
    struct arena arena;
    uint64_t step;
    uint32_t rank, ranks;
    enum dtype dtypes[3];
    uint32_t n_dtypes;
    float *before[GPU_MAX_RANKS], *after; /* every rank's input; afterwards all ranks have it */
    void *host;
    uint64_t random;
};

static uint32_t
below(struct side *s, uint32_t n)
{
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((s->random >> 33) % n);
}

static void
say(const struct side *s, const char *what)
{
    fprintf(stderr, "rank %u: %s: %s\n", s->rank, what, gpu_why(s->gpu));
    _exit(1);
}
#define OK(call) ((call) < 0 ? say(s, #call) : (void)0)

static float
rounded(float x, enum dtype t)
{
    return t == DT_F32    ? x
           : t == DT_BF16 ? float_of_bf16(bf16_of_float(x))
                          : float_of_f16(f16_of_float(x));
}

/* The space between rows must not be written. */
static void
store(void *to, size_t i, float x, enum dtype t)
{
    if (t == DT_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = t == DT_BF16 ? bf16_of_float(x) : f16_of_float(x);
}

static float
fetch(const void *from, size_t i, enum dtype t)
{
    if (t == DT_F32) return ((const float *)from)[i];
    return t == DT_BF16 ? float_of_bf16(((const uint16_t *)from)[i])
                        : float_of_f16(((const uint16_t *)from)[i]);
}

static void
wait_all(struct side *s)
{
    OK(s->op->lane.mark(s->lane, ++s->step));
    OK(gpu_wait(s->lane, s->step, s->step));
}

static struct tensor
tensor_at(struct side *s, size_t offset, enum dtype t, uint32_t rows, uint32_t cols,
          uint32_t stride)
{
    struct tensor x = tensor_2d((char *)s->arena.base + offset, t, rows, cols);

    x.stride = stride;
    return x;
}

static void
compare(struct side *s, const struct tensor *x, const float *want, const char *what)
{
    for (uint32_t i = 0; i < x->dim[0]; i++)
        for (uint32_t j = 0; j < x->stride && (size_t)i * x->stride + j <
                                                  (size_t)(x->dim[0] - 1) * x->stride + x->dim[1];
             j++) {
            float got = fetch(s->host, (size_t)i * x->stride + j, x->dtype),
                  w = j < x->dim[1] ? want[(size_t)i * x->dim[1] + j] : -7;

            if (memcmp(&got, &w, sizeof w) == 0) continue;
            fprintf(stderr, "rank %u of %u: %s of %s [%u, %u] stride %u: (%u, %u) is %a, not %a\n",
                    s->rank, s->ranks, what, dtype_name(x->dtype), x->dim[0], x->dim[1], x->stride,
                    i, j, (double)got, (double)w);
            _exit(1);
        }
}

/* Copies this rank's tensor to the device; s->before has the values of all ranks. */
static void
lay_out(struct side *s, const struct tensor *x, const float *mine)
{
    size_t n = (size_t)(x->dim[0] - 1) * x->stride + x->dim[1];

    for (size_t i = 0; i < n; i++) {
        size_t row = i / x->stride, col = i % x->stride;

        store(s->host, i, col < x->dim[1] ? mine[row * x->dim[1] + col] : -7, x->dtype);
    }
    OK(s->op->mem.put(s->lane, x->data, s->host, dtype_bytes(x->dtype, n)));
    wait_all(s);
}

static void
look(struct side *s, const struct tensor *x, const float *want, const char *what)
{
    size_t n = (size_t)(x->dim[0] - 1) * x->stride + x->dim[1];

    OK(s->op->mem.get(s->lane, s->host, x->data, dtype_bytes(x->dtype, n)));
    wait_all(s);
    compare(s, x, want, what);
}

static void
draw(struct side *s, size_t n, enum dtype t)
{
    for (uint32_t r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < n; i++)
            s->before[r][i] =
                rounded(((float)below(s, 4001) - 2000) / 64 / (float)(1 + below(s, 7)), t);
}

static void
add_up(struct side *s, size_t n, enum dtype t)
{
    for (size_t i = 0; i < n; i++) {
        float sum = s->before[0][i];

        for (uint32_t r = 1; r < s->ranks; r++) sum += s->before[r][i];
        s->after[i] = rounded(sum, t);
    }
}

static void
one_sum(struct side *s, uint32_t rows, uint32_t cols, uint32_t gap, bool graph)
{
    enum dtype t = s->dtypes[below(s, s->n_dtypes)];
    struct tensor x = tensor_at(s, 0, t, rows, cols, cols + gap);
    size_t n = (size_t)rows * cols;
    struct graph *g = NULL;
    uint64_t bytes;

    draw(s, n, t);
    add_up(s, n, t);
    lay_out(s, &x, s->before[s->rank]);
    if (graph) OK(s->op->graph.begin(s->lane));
    OK(s->op->collective.all_reduce(s->lane, x));
    if (graph) {
        OK(s->op->graph.end(s->lane, &g, &bytes));
        OK(s->op->graph.launch(s->lane, g));
    }
    look(s, &x, s->after, graph ? "a recorded sum" : "a sum");
    for (int again = 0; graph && again < 5; again++) {
        for (uint32_t r = 0; r < s->ranks; r++) memcpy(s->before[r], s->after, n * sizeof(float));
        add_up(s, n, t);
        OK(s->op->graph.launch(s->lane, g));
        look(s, &x, s->after, "a recorded sum, again");
    }
    if (g) s->op->graph.drop(s->lane, g);
}

static void
one_gathering(struct side *s, uint32_t rows, uint32_t cols, uint32_t gap, bool apart)
{
    uint32_t first = (uint32_t)((uint64_t)cols * s->rank / s->ranks),
             end = (uint32_t)((uint64_t)cols * (s->rank + 1) / s->ranks);
    struct tensor out = tensor_at(s, 0, DT_F32, rows, cols, cols + gap),
                  x = tensor_cols(out, first, end - first);
    size_t n = (size_t)rows * cols;

    draw(s, n, DT_F32);
    /* This rank has other values in the other ranks' columns. */
    memcpy(s->after, s->before[0], n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        s->before[1][i] = i % cols >= first && i % cols < end ? s->after[i] : 3;
    lay_out(s, &out, s->before[1]);
    if (apart) {
        struct tensor other = tensor_at(s, AREA, DT_F32, rows, end - first, end - first + 4);

        for (uint32_t i = 0; i < rows; i++)
            memcpy(s->before[1] + (size_t)i * (end - first), s->after + (size_t)i * cols + first,
                   (end - first) * sizeof(float));
        lay_out(s, &other, s->before[1]);
        x = other;
    }
    OK(s->op->collective.all_gather(s->lane, out, x));
    look(s, &out, s->after, "a gathering");
}

/* A residual of parts equals the all-reduce followed by residual; checks x and y, twice. */
static void
one_residual(struct side *s, uint32_t rows, uint32_t cols, uint32_t gap, bool in_norm)
{
    enum dtype t = s->dtypes[below(s, s->n_dtypes)];
    struct tensor in = tensor_at(s, 0, t, rows, cols, cols + gap),
                  w = tensor_at(s, AREA / 4, t, 1, cols, cols), x[2], y[2];
    struct residual r = { .in = in, .eps = 1e-5f };
    float *seen[2] = { s->after, s->before[1] };
    size_t n = (size_t)rows * cols;

    for (int i = 0; i < 2; i++) {
        x[i] = tensor_at(s, AREA / 2 * (size_t)(2 + i), DT_F32, rows, cols, cols);
        y[i] = tensor_at(s, AREA / 2 * (size_t)(2 + i) + AREA / 4, t, rows, cols, cols);
    }
    draw(s, n, DT_F32);
    lay_out(s, &x[0], s->before[0]);
    lay_out(s, &x[1], s->before[0]);
    draw(s, cols, t);
    lay_out(s, &w, s->before[0]);
    draw(s, n, t);
    r.y_norm = w;
    if (in_norm) r.in_norm = w;
    for (int i = 0; i < 2; i++) {
        lay_out(s, &in, s->before[s->rank]);
        if (i) OK(s->op->collective.all_reduce(s->lane, in));
        r.x = x[i];
        r.y = y[i];
        r.parts = i == 0;
        OK(s->op->residual(s->lane, &r));
        wait_all(s);
    }
    for (int of = 0; of < 2; of++) {
        struct tensor *z = of ? y : x;

        for (int i = 0; i < 2; i++) {
            OK(s->op->mem.get(s->lane, s->host, z[i].data, dtype_bytes(z[i].dtype, n)));
            wait_all(s);
            for (size_t k = 0; k < n; k++) seen[i][k] = fetch(s->host, k, z[i].dtype);
        }
        if (memcmp(seen[0], seen[1], n * sizeof(float)) == 0) continue;
        fprintf(stderr, "rank %u: a residual of parts of %s [%u, %u]: other bits in %s\n", s->rank,
                dtype_name(t), rows, cols, of ? "y" : "x");
        _exit(1);
    }
}

/* Empty tensors: nothing is exchanged, and the ranks stay in step. */
static void
a_gathering_of_no_columns(struct side *s)
{
    struct tensor out = tensor_at(s, 0, DT_F32, 3, 0, 8);

    OK(s->op->collective.all_gather(s->lane, out, out));
    wait_all(s);
}

/* Collectives of any shape, one after another without waiting. */
static void
any_shapes(struct side *s)
{
    one_sum(s, 1, 1, 0, false); /* the first of a lane may not be recorded */
    a_gathering_of_no_columns(s);
    for (int i = 0; i < OPS; i++) {
        uint32_t rows = below(s, 3) ? 1 + below(s, 4) : 1 + below(s, 60);
        uint32_t cols = below(s, 2) ? 8 * (1 + below(s, 128)) : s->ranks + below(s, 900);
        uint32_t gap = below(s, 3) ? 0 : below(s, 2) ? 8 : below(s, 20);

        if (below(s, 3) == 0)
            one_residual(s, rows, cols, gap, below(s, 2));
        else if (below(s, 2))
            one_sum(s, rows, cols, gap, gpu_facts(s->gpu).graphs && below(s, 2));
        else
            one_gathering(s, rows, cols, gap, below(s, 2));
    }
}

/* More than one exchange, with and without a stride. */
static void
large(struct side *s)
{
    uint32_t rows = gpu_facts(s->gpu).graphs ? 1024 : 60;

    one_sum(s, rows, 4096, 0, gpu_facts(s->gpu).graphs);
    one_residual(s, 64, 4096, 0, false);
    one_residual(s, 128, 5376, 8, true);
    one_residual(s, 129, 4096, 0, false);
    one_residual(s, 3, 8192, 0, true);
    one_sum(s, rows, 1000, 24, false);
    one_sum(s, rows, 999, 2, false);
    one_gathering(s, rows, 4096, 0, false);
    one_gathering(s, rows / 2, 1021, 3, true);
}

static void
open_side(struct side *s, uint32_t rank, uint32_t ranks, int fd)
{
    struct gpu_options o = options;
    struct err e = { 0 };

    o.rank = rank;
    o.n_ranks = ranks;
    o.group_fd = fd;
    *s = (struct side){ .rank = rank, .ranks = ranks, .random = 5 + ranks };
    if (gpu_open(&s->gpu, &o, &e) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, e.text);
        _exit(1);
    }
    s->op = gpu_ops(s->gpu);
    for (enum dtype t = DT_F32; t <= DT_F16; t++)
        if (gpu_act_dtype(s->gpu, t) == t) s->dtypes[s->n_dtypes++] = t;
    if (s->op->mem.arena_make(s->gpu, "group", 2 * AREA, &s->arena, &e) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, e.text);
        _exit(1);
    }
    s->host = malloc(AREA);
    s->after = malloc(AREA);
    for (uint32_t r = 0; r < ranks; r++) s->before[r] = malloc(AREA);
}

static void
a_rank(uint32_t rank, uint32_t ranks, int fd)
{
    struct lane *lanes[LANES];
    struct err e = { 0 };
    struct side side, *s = &side;

    alarm(ALONE);
    open_side(s, rank, ranks, fd);
    for (int i = 0; i < LANES; i++)
        if (s->op->lane.open(s->gpu, gpu_facts(s->gpu).units, &lanes[i], &e) < 0) {
            fprintf(stderr, "rank %u: %s\n", rank, e.text);
            _exit(1);
        }
    for (int i = 0; i < LANES; i++) {
        s->lane = lanes[i];
        s->step = 0;
        any_shapes(s);
        large(s);
    }
    if (rank == 0 && *gpu_group(s->gpu)) fprintf(stderr, "%s\n", gpu_group(s->gpu));
    for (int i = 0; i < LANES; i++) s->op->lane.close(lanes[i]);
    s->op->mem.arena_drop(s->gpu, &s->arena);
    gpu_close(s->gpu);
    _exit(0);
}

/* ---- the parent process */

static void
ranks_agree(uint32_t ranks)
{
    int fd, status, failed = 0;
    pid_t pid[GPU_MAX_RANKS];

    if (ranks > most) skip();
    fd = memfd_create("group", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)GPU_GROUP_BYTES), 0);
    fflush(NULL);
    for (uint32_t r = 0; r < ranks; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0) a_rank(r, ranks, fd);
    }
    for (uint32_t left = ranks; left; left--) {
        assert_true(waitpid(-1, &status, 0) > 0);
        if (status == 0 || failed++) continue;
        for (uint32_t r = 0; r < ranks; r++) kill(pid[r], SIGKILL); /* they would wait for it */
    }
    close(fd);
    assert_int_equal(failed, 0);
}

static void
two_ranks_all_reduce_and_all_gather(void **state)
{
    (void)state;
    ranks_agree(2);
}

static void
three_ranks_all_reduce_and_all_gather(void **state)
{
    (void)state;
    ranks_agree(3);
}

static void
four_ranks_all_reduce_and_all_gather(void **state)
{
    (void)state;
    ranks_agree(4);
}

static const char *
device_refused(const char *device, uint32_t rank, uint32_t ranks)
{
    struct gpu_options o = { .device = device, .rank = rank, .n_ranks = ranks, .group_fd = -1 };
    static struct err e;
    struct gpu *g;

    assert_true(gpu_open(&g, &o, &e) < 0);
    return e.text;
}

static void
a_device_list_has_one_gpu_per_rank(void **state)
{
    (void)state;
    assert_non_null(strstr(device_refused("cuda:3", 0, 2), "names 1 GPUs, for 2 ranks"));
    assert_non_null(strstr(device_refused("cuda:3,4,5", 1, 2), "names 3 GPUs, for 2 ranks"));
    assert_non_null(strstr(device_refused("cuda:0,1", 0, 0), "names 2 GPUs, for 1 rank"));
    assert_non_null(strstr(device_refused("cuda:1,1", 0, 2), "GPU 1 is named twice"));
    assert_non_null(strstr(device_refused("cuda:1,", 0, 2), "is not cpu, cuda or cuda:N[,N...]"));
    assert_non_null(strstr(device_refused("cuda:1;2", 0, 2), "is not cpu, cuda or cuda:N[,N...]"));
    assert_non_null(strstr(device_refused("cuda:-1", 0, 1), "is not cpu, cuda or cuda:N[,N...]"));
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_all_reduce_and_all_gather),
        cmocka_unit_test(three_ranks_all_reduce_and_all_gather),
        cmocka_unit_test(four_ranks_all_reduce_and_all_gather),
        cmocka_unit_test(a_device_list_has_one_gpu_per_rank),
    };

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--device")) options.device = argv[i + 1];
        if (!strcmp(argv[i], "--kernel")) options.kernels = argv[i + 1];
        if (!strcmp(argv[i], "--libs")) options.libs = argv[i + 1];
        if (!strcmp(argv[i], "--most")) most = (uint32_t)atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--only")) cmocka_set_test_filter(argv[i + 1]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
