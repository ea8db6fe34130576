/* bench_ops.c - matmul of the CPU device against the memory bandwidth and OpenBLAS.
 *
 * Weights are several matrices of 4,096 x 4,096, together larger than the caches, read one after
 * the other. Each round measures every case, so that other load affects all cases. value is the
 * best round, ratios are of best rounds. With one row the time is the reading of the weights; the
 * limit is a plain sum over the same bytes by as many threads.
 */
#include "gpu/cpu/cpu.h"

#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

#ifdef HAVE_OPENBLAS
#include <cblas.h>
#endif

enum { DIM = 4096, COPIES = 4, ROUNDS = 7, MAX_ROWS = 128 };
#define MATRIX ((size_t)DIM * DIM)

static struct {
    struct gpu *gpu;
    const struct gpu_ops *op;
    struct lane *lane;
    uint64_t step;
    uint32_t threads;
    float *w, *x, *y;
    uint16_t *half;
} b;

struct reading {
    const void *from;
    size_t bytes;
    uint64_t *sum;
};

/* Vectors of 32 bytes and eight sums, so that the arithmetic takes no time. */
typedef uint64_t quad __attribute__((vector_size(32)));

static void
read_all(const void *args, uint32_t part, uint32_t parts, enum cpu_isa isa, void *scratch)
{
    const struct reading *r = args;
    const quad *p = r->from;
    size_t n = r->bytes / sizeof *p, first = n * part / parts, end = n * (part + 1) / parts;
    quad s[8] = { { 0 } };

    (void)isa, (void)scratch;
    for (size_t i = first; i + 8 <= end; i += 8)
        for (int j = 0; j < 8; j++) s[j] += p[i + (size_t)j];
    for (int j = 1; j < 8; j++) s[0] += s[j];
    r->sum[part % 64] += s[0][0] + s[0][1] + s[0][2] + s[0][3];
}

static void
wait_lane(void)
{
    b.op->lane.mark(b.lane, ++b.step);
    while (b.op->lane.done(b.lane) < b.step) usleep(50);
}

static void
ceiling(uint32_t rows)
{
    static uint64_t sum[64];
    struct reading r = { b.w, COPIES * MATRIX * sizeof *b.w, sum };

    (void)rows;
    cpu_queue(b.lane, read_all, &r, sizeof r, 64);
    wait_lane();
}

static void
matmul(uint32_t rows, void *w, enum dtype t, uint32_t copies)
{
    for (uint32_t i = 0; i < copies; i++) {
        struct tensor m = tensor_2d((char *)w + dtype_bytes(t, i * MATRIX), t, DIM, DIM);

        if (b.op->matmul(b.lane, tensor_2d(b.y, DT_F32, rows, DIM),
                         tensor_2d(b.x, DT_F32, rows, DIM), m, NO_TENSOR, 0) < 0) {
            fprintf(stderr, "%s\n", gpu_why(b.gpu));
            exit(1);
        }
    }
    wait_lane();
}

static void
matmul_f32(uint32_t rows)
{
    matmul(rows, b.w, DT_F32, COPIES);
}

static void
matmul_bf16(uint32_t rows)
{
    matmul(rows, b.half, DT_BF16, COPIES);
}

#ifdef HAVE_OPENBLAS
static void
openblas(uint32_t rows)
{
    for (uint32_t i = 0; i < COPIES; i++) {
        const float *w = b.w + i * MATRIX;

        if (rows == 1)
            cblas_sgemv(CblasRowMajor, CblasNoTrans, DIM, DIM, 1, w, DIM, b.x, 1, 0, b.y, 1);
        else
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, DIM, DIM, 1, b.x, DIM,
                        w, DIM, 0, b.y, DIM);
    }
}
#endif

static struct one {
    const char *name;
    void (*run)(uint32_t rows);
    uint32_t rows;
    double bytes; /* of weights read; flops are 2 x rows x weights */
    double seconds[ROUNDS];
} all[] = {
    { "read", ceiling, 0, 4.0 * COPIES *MATRIX },
    { "matmul fp32 1 row", matmul_f32, 1, 4.0 * COPIES *MATRIX },
    { "matmul bf16 1 row", matmul_bf16, 1, 2.0 * COPIES *MATRIX },
    { "matmul fp32 16 rows", matmul_f32, 16, 4.0 * COPIES *MATRIX },
    { "matmul bf16 16 rows", matmul_bf16, 16, 2.0 * COPIES *MATRIX },
    { "matmul bf16 128 rows", matmul_bf16, 128, 2.0 * COPIES *MATRIX },
#ifdef HAVE_OPENBLAS
    { "openblas sgemv", openblas, 1, 4.0 * COPIES *MATRIX },
    { "openblas sgemm 16 rows", openblas, 16, 4.0 * COPIES *MATRIX },
    { "openblas sgemm 128 rows", openblas, 128, 4.0 * COPIES *MATRIX },
#endif
};

static int
ascending(const void *a, const void *c)
{
    double x = *(const double *)a, y = *(const double *)c;

    return (x > y) - (x < y);
}

/* value: the best of n, because all units are rates. */
static void
line(const char *name, const char *unit, double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, ascending);
    printf("{\"bench\":\"ops\",\"case\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",\"n\":%d,"
           "\"min\":%.3f,\"median\":%.3f,\"max\":%.3f}\n",
           name, v[n - 1], unit, n, v[0], v[n / 2], v[n - 1]);
}

static double
best(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        double s = all[i].seconds[0];

        if (strcmp(all[i].name, name) != 0) continue;
        for (int r = 1; r < ROUNDS; r++) s = MIN(s, all[i].seconds[r]);
        return s;
    }
    return 0;
}

/* Prints the speed relative to the peer. work: our amount of work over the amount of the peer. */
static void
ratio(const char *ours, const char *peer, double work)
{
    double r = best(peer) / best(ours) * work;
    char name[96];

    snprintf(name, sizeof name, "%s / %s", ours, peer);
    line(name, "ratio", &r, 1);
}

int
main(void)
{
    struct gpu_options o = { .device = "cpu" };
    struct err e;

    if (gpu_open(&b.gpu, &o, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    b.op = gpu_ops(b.gpu);
    b.threads = MIN(gpu_facts(b.gpu).units, 64u);
    if (b.op->lane.open(b.gpu, b.threads, &b.lane, &e) < 0) return 1;
    b.w = aligned_alloc(64, COPIES * MATRIX * sizeof *b.w);
    b.half = aligned_alloc(64, COPIES * MATRIX * sizeof *b.half);
    b.x = aligned_alloc(64, MAX_ROWS * DIM * sizeof *b.x);
    b.y = aligned_alloc(64, MAX_ROWS * DIM * sizeof *b.y);
    if (!b.w || !b.half || !b.x || !b.y) return 1;
    b.op->mem.fill_random(b.lane, tensor_2d(b.w, DT_F32, COPIES * DIM, DIM), 1, 0, 0, 0.02f);
    b.op->mem.fill_random(b.lane, tensor_2d(b.half, DT_BF16, COPIES * DIM, DIM), 1, 0, 0, 0.02f);
    b.op->mem.fill_random(b.lane, tensor_2d(b.x, DT_F32, MAX_ROWS, DIM), 2, 0, 0, 1);
    wait_lane();
#ifdef HAVE_OPENBLAS
    openblas_set_num_threads((int)b.threads);
#endif
    fprintf(stderr, "%s, %u threads, %d rounds\n", gpu_facts(b.gpu).describe, b.threads, ROUNDS);
    for (int r = 0; r < ROUNDS; r++)
        for (size_t i = 0; i < ARRAY_LEN(all); i++) {
            nsec from = clock_now();

            all[i].run(all[i].rows);
            all[i].seconds[r] = (double)(clock_now() - from) / NSEC_S;
        }
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        double v[ROUNDS];
        bool reads = all[i].rows <= 1;
        double work = reads ? all[i].bytes / 1e9 : 2e-9 * all[i].rows * COPIES * MATRIX;

        for (int r = 0; r < ROUNDS; r++) v[r] = work / all[i].seconds[r];
        line(all[i].name, reads ? "GB/s" : "GFLOP/s", v, ROUNDS);
    }
    ratio("matmul fp32 1 row", "read", 1);
    ratio("matmul bf16 1 row", "read", 0.5);
#ifdef HAVE_OPENBLAS
    ratio("matmul fp32 1 row", "openblas sgemv", 1);
    ratio("matmul fp32 16 rows", "openblas sgemm 16 rows", 1);
    ratio("matmul bf16 128 rows", "openblas sgemm 128 rows", 1);
#endif
    b.op->lane.close(b.lane);
    gpu_close(b.gpu);
    return 0;
}
