/* bench_collective.c - all-reduce and all-gather between the ranks of a group, by size and by
 * kernel.
 *
 *     bench_collective [--device cuda] [--ranks N] [--runs N]
 *
 * For each value of the option kernels and each size: a series of ops, as one graph if the device
 * has graphs, started at the same time by all ranks; the figure is the time of one op on rank 0.
 * bf16 on a GPU, fp32 on the CPU. The size of an all-gather is the part of one rank. gb_s: bytes
 * that leave a rank. *served* is what a worker uses, *nccl* the peer.
 *
 * step: the collectives of a step of Llama-3.1-8B with 1 and with 64 rows, without the rest of the
 * step: 64 residuals of partial sums, then greedy sampling with log-probability from logits that
 * are divided by columns. step alone: the same ops without collectives. The times are per step.
 */
#include "base/clock.h"
#include "gpu/gpu.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHAIN = 64, MAX_RUNS = 64, COLS = 4096, VOCAB = 128256, MOST_ROWS = 64, ALONE = 120 };
enum what { SUM, GATHER, RESIDUAL, RESIDUAL_ALONE, STEP, STEP_ALONE };
#define LARGEST ((size_t)64 << 20)

static const char *device = "cpu";
static uint32_t ranks = 2, runs = 9;

/* The barrier of the processes between measurements. */
static struct gate {
    _Atomic uint32_t at[GPU_MAX_RANKS];
} * gate;
static uint32_t passed;

static void
meet(uint32_t rank)
{
    gate->at[rank] = ++passed;
    for (uint32_t r = 0; r < ranks; r++)
        while (gate->at[r] < passed) usleep(20);
}

struct side {
    uint32_t rank;
    struct gpu *gpu;
    const struct gpu_ops *op;
    struct lane *lane;
    struct arena arena;
    uint64_t step;
    char at[64]; /* the current case */
};

static _Noreturn void
die(const struct side *s, const char *what, const char *why)
{
    fprintf(stderr, "bench_collective: rank %u: %s: %s: %s\n", s->rank, s->at, what, why);
    _exit(1);
}
#define OK(call) ((call) < 0 ? die(s, #call, gpu_why(s->gpu)) : (void)0)

static struct tensor
tensor_of(struct side *s, size_t bytes)
{
    enum dtype t = gpu_act_dtype(s->gpu, DT_BF16);
    size_t n = bytes / dtype_bytes(t, 1);
    uint32_t cols = (uint32_t)MIN(n, (size_t)COLS);

    return tensor_2d(s->arena.base, t, (uint32_t)(n / cols), cols);
}

static int
one(struct side *s, enum what what, size_t bytes)
{
    struct tensor out = tensor_2d(s->arena.base, DT_F32, 1, (uint32_t)(bytes / 4 * ranks));
    struct tensor in = tensor_of(s, bytes);
    struct residual r = {
        .x = tensor_2d((char *)s->arena.base + LARGEST, DT_F32, in.dim[0], in.dim[1]),
        .in = in,
        .parts = what == RESIDUAL || what == STEP,
        .y = tensor_2d((char *)s->arena.base + LARGEST / 2, in.dtype, in.dim[0], in.dim[1]),
        .eps = 1e-5f
    };

    if (what == SUM) return s->op->collective.all_reduce(s->lane, in);
    if (what != GATHER) return s->op->residual(s->lane, &r);
    return s->op->collective.all_gather(
        s->lane, out, tensor_cols(out, (uint32_t)(bytes / 4) * s->rank, (uint32_t)(bytes / 4)));
}

/* Arena addresses of a step: sampling parameters, results, logits. */
static struct sample_row *
step_rows(struct side *s)
{
    return (struct sample_row *)((char *)s->arena.base + LARGEST / 4 * 5);
}

static struct sample
step_sample(struct side *s)
{
    struct sample d = { .row = step_rows(s) };

    d.token = (int32_t *)(step_rows(s) + MOST_ROWS);
    d.logprob = (float *)(d.token + MOST_ROWS);
    d.logits = tensor_2d(d.logprob + MOST_ROWS, DT_F32, MOST_ROWS, VOCAB);
    return d;
}

static void
make_logits(struct side *s)
{
    struct sample d = step_sample(s);
    struct sample_row row[MOST_ROWS];

    for (uint32_t i = 0; i < MOST_ROWS; i++)
        row[i] = (struct sample_row){ .slot = SLOT_NONE,
                                      .top_p = 1,
                                      .repetition = 1,
                                      .force = -1,
                                      .target = -1,
                                      .allowed = ALLOW_ALL,
                                      .want_logprob = true };
    OK(s->op->mem.fill_random(s->lane, d.logits, 1, 0, 0, 1));
    OK(s->op->mem.put(s->lane, step_rows(s), row, sizeof row));
    OK(s->op->lane.mark(s->lane, ++s->step));
    OK(gpu_wait(s->lane, s->step, s->step));
}

static void
queue(struct side *s, enum what what, size_t bytes)
{
    struct sample d;

    for (int i = 0; i < CHAIN; i++) OK(one(s, what, bytes));
    if (what < STEP) return;
    d = step_sample(s);
    d.n = tensor_of(s, bytes).dim[0];
    d.logits = tensor_rows(d.logits, 0, d.n);
    d.parts = what == STEP;
    OK(s->op->sample(s->lane, &d));
}

static int
by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void
measure(struct side *s, const char *way, enum what what, size_t bytes)
{
    static const char *const names[] = { "sum",  "gather",    "residual", "residual alone",
                                         "step", "step alone" };
    uint32_t each = what >= STEP ? 1 : CHAIN;
    size_t leave = bytes * (CHAIN / each);
    bool graphs = gpu_facts(s->gpu).graphs;
    struct graph *g = NULL;
    double us[MAX_RUNS];
    uint64_t more;

    snprintf(s->at, sizeof s->at, "%s %s %zu KiB", way, names[what], bytes >> 10);
    queue(s, what, bytes); /* one-time initialisation */
    OK(s->op->lane.mark(s->lane, ++s->step));
    OK(gpu_wait(s->lane, s->step, s->step));
    if (graphs) {
        OK(s->op->graph.begin(s->lane));
        queue(s, what, bytes);
        OK(s->op->graph.end(s->lane, &g, &more));
    }
    for (uint32_t i = 0; i < runs; i++) {
        nsec since;

        meet(s->rank);
        since = clock_now();
        if (graphs)
            OK(s->op->graph.launch(s->lane, g));
        else
            queue(s, what, bytes);
        OK(s->op->lane.mark(s->lane, ++s->step));
        while (s->op->lane.done(s->lane) != s->step)
            if (s->op->lane.error(s->lane) < 0) die(s, "a chain", gpu_why(s->gpu));
        us[i] = (double)(clock_now() - since) / NSEC_US / each;
    }
    if (g) s->op->graph.drop(s->lane, g);
    qsort(us, runs, sizeof *us, by_value);
    if (s->rank) return;
    printf("{\"bench\":\"collective\",\"case\":\"%s %s %zu KiB, %u "
           "ranks\",\"value\":%.4g,\"unit\":\"us\",\"n\":%u,"
           "\"min\":%.4g,\"median\":%.4g,\"max\":%.4g,\"gb_s\":%.4g}\n",
           way, names[what], bytes >> 10, ranks, us[runs / 2], runs, us[0], us[runs / 2],
           us[runs - 1], (double)leave * (ranks - 1) / us[runs / 2] / 1e3);
    fflush(stdout);
}

static void
measure_sums(struct side *s, const char *way)
{
    size_t most = gpu_facts(s->gpu).graphs ? 16 << 20 : 1 << 20;

    for (size_t bytes = 8 << 10; bytes <= most; bytes *= 2) measure(s, way, SUM, bytes);
    for (size_t bytes = 256 << 10; bytes <= most; bytes *= 4) measure(s, way, GATHER, bytes);
}

static void
measure_residuals(struct side *s, const char *way)
{
    for (size_t bytes = 8 << 10; bytes <= 1 << 20; bytes *= 4) measure(s, way, RESIDUAL, bytes);
    measure(s, way, RESIDUAL_ALONE, 512 << 10);
}

static void
measure_steps(struct side *s, const char *way)
{
    static const uint32_t rows[] = { 1, MOST_ROWS };

    make_logits(s);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        size_t bytes = dtype_bytes(gpu_act_dtype(s->gpu, DT_BF16), (size_t)rows[i] * COLS);

        measure(s, way, STEP, bytes);
        measure(s, way, STEP_ALONE, bytes);
    }
}

struct way {
    const char *name, *kernels; /* kernels NULL: the default */
    bool sums, residuals, steps;
};
static const struct way on_cpu = { "cpu", NULL, true, true, true };
static const struct way on_gpu[] = {
    { "peer", "all_reduce=peer,all_gather=peer", true, false, false },
    { "small", "all_reduce=small,all_gather=small", false, true, false },
    { "nccl", "all_reduce=nccl,all_gather=nccl", true, true, true },
    { "served", NULL, false, false, true },
};

static void
run_way(uint32_t rank, const struct way *w, int fd)
{
    struct gpu_options o = {
        .device = device, .kernels = w->kernels, .rank = rank, .n_ranks = ranks, .group_fd = fd
    };
    struct side side = { .rank = rank }, *s = &side;
    struct err e = { 0 };

    snprintf(s->at, sizeof s->at, "%s", w->name);
    if (gpu_open(&s->gpu, &o, &e) < 0) die(s, "open", e.text);
    s->op = gpu_ops(s->gpu);
    if (s->op->mem.arena_make(s->gpu, "ranks", LARGEST * 2, &s->arena, &e) < 0)
        die(s, "memory", e.text);
    if (s->op->lane.open(s->gpu, gpu_facts(s->gpu).units, &s->lane, &e) < 0) die(s, "lane", e.text);
    if (w->sums) measure_sums(s, w->name);
    if (w->residuals) measure_residuals(s, w->name);
    if (w->steps) measure_steps(s, w->name);
    if (rank == 0 && *gpu_group(s->gpu)) fprintf(stderr, "%s: %s\n", w->name, gpu_group(s->gpu));
    s->op->lane.close(s->lane);
    s->op->mem.arena_drop(s->gpu, &s->arena);
    gpu_close(s->gpu);
}

static void
a_rank(uint32_t rank, const int *fd)
{
    alarm(ALONE);
    if (!strcmp(device, "cpu"))
        run_way(rank, &on_cpu, fd[0]);
    else
        for (size_t i = 0; i < ARRAY_LEN(on_gpu); i++) run_way(rank, &on_gpu[i], fd[i]);
    _exit(0);
}

int
main(int argc, char **argv)
{
    pid_t pid[GPU_MAX_RANKS];
    int fd[ARRAY_LEN(on_gpu)], status, failed = 0;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--device")) device = argv[i + 1];
        if (!strcmp(argv[i], "--ranks"))
            ranks = MIN((uint32_t)atoi(argv[i + 1]), (uint32_t)GPU_MAX_RANKS);
        if (!strcmp(argv[i], "--runs")) runs = MIN((uint32_t)atoi(argv[i + 1]), (uint32_t)MAX_RUNS);
    }
    gate = mmap(NULL, sizeof *gate, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < ARRAY_LEN(fd); i++) {
        fd[i] = memfd_create("group", MFD_CLOEXEC);
        if (gate == MAP_FAILED || fd[i] < 0 || ftruncate(fd[i], (off_t)GPU_GROUP_BYTES) < 0) {
            perror("bench_collective");
            return 1;
        }
    }
    for (uint32_t r = 0; r < ranks; r++) {
        pid[r] = fork();
        if (pid[r] == 0) a_rank(r, fd);
    }
    for (uint32_t left = ranks; left; left--) {
        if (wait(&status) < 0 || status == 0 || failed++) continue;
        for (uint32_t r = 0; r < ranks; r++) kill(pid[r], SIGKILL);
    }
    return failed > 0;
}
