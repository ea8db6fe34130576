/* bench_matmul.c - the matmuls of an 8B layer and its head on a GPU, every candidate.
 *
 * Weights are bf16 and cold: successive copies of a matrix from a pool that is larger than the
 * caches. A figure is the median of RUNS runs of a graph of matmuls, by the clock of the host; the
 * table has the spread below it. The candidates alternate. Beyond 64 rows the GPU rests before each
 * run, because its power limit would favour the first candidate. Up to 64 rows the figure is the
 * rate at which weights are read (TB/s), beyond that TFLOP/s.
 *
 * Before the timing each product is compared element by element with matmul=generic (fp32). For
 * invariant candidates, rows are also compared with the same rows in other batches. A difference
 * ends the program.
 *
 *     bench_matmul [--device cuda:N] [--tuned FILE [--tune]] [--libs DIR] [--brief] [--ways 111111]
 *                  [--from ROWS] [--to ROWS] [--part SMS [--beside]] [--ranks N]
 *
 *     --ways     one digit per candidate, from the right: small, blas, tuned, invariant, sm90,
 *                ring. small takes at most 16 rows, sm90 64 on the whole device, ring 64 on a part
 *                of it, fewer on a small part; for shapes that sm90 or ring refuse, the figure is
 *                from cuBLASLt
 *     --from, --to   smallest and largest number of rows
 *     --part     only the last SMS SMs of the device
 *     --beside   while the other SMs multiply 2,048 rows; prints their rate, too
 *     --ranks    the part of each of N ranks
 */
#include "base/clock.h"
#include "gpu/fp.h"
#include "gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { RUNS = 9, MAX_ROWS = 8192, MAX_K = 14336, MAX_N = 128256, CHAIN = 8 };
#define POOL ((uint64_t)7 << 29) /* bytes of weights: CHAIN layers, three heads */
/* The product on the other SMs, and the number of queued ones. */
enum { BESIDE_ROWS = 2048, INNER = 4096, OUTER = 14336, AHEAD = 64 };
#define PRODUCT (2. * BESIDE_ROWS * INNER * OUTER)

static struct matrix {
    const char *name;
    uint32_t n, k;
} matrix[] = { { "qkv", 6144, 4096 },
               { "o", 4096, 4096 },
               { "gate_up", 28672, 4096 },
               { "down", 4096, 14336 },
               { "lm_head", 128256, 4096 } };
enum { LAYER = 4, MATRICES = 5 };

static const uint32_t row_counts[] = { 1, 2, 4, 8, 16, 32, 64, 256, 1024, 8192 };
enum { COUNTS = ARRAY_LEN(row_counts) };

/* Candidates: values of the option kernels. */
static const struct way {
    const char *name, *kernels;
    uint32_t max_rows;
    bool tuned, invariant;
} ways[] = {
    { "small", "matmul=small,gate_matmul=small", 16, false, false },
    { "blas", "matmul=blas,gate_matmul=blas", MAX_ROWS, false, false },
    { "tuned", "matmul=blas,gate_matmul=blas", MAX_ROWS, true, false },
    { "invariant", "", MAX_ROWS, true, true },
    { "sm90", "matmul=sm90,matmul=blas,gate_matmul=sm90,gate_matmul=blas", 64, false, false },
    { "ring", "matmul=ring,matmul=blas,gate_matmul=ring,gate_matmul=blas", 64, false, false }
};
enum { WAYS = ARRAY_LEN(ways) };

static struct {
    struct gpu_options o;
    const char *tuned;
    bool tune, brief;
    struct side {
        struct gpu *gpu;
        const struct gpu_ops *op;
        struct lane *lane;
        uint64_t step;
    } any, way[8], beside, *at; /* any also owns the memory; at: in use */
    uint64_t n_done[8];         /* products of beside during each way */
    nsec during[8];             /* time of n_done */
    unsigned ways;              /* bits of ways[] */
    uint32_t from, to;          /* limits of the number of rows */
    uint32_t part;              /* SMs of the candidates; 0: all */
    struct arena w, acts;
    char *x, *y, *other, *residual, *product; /* device */
    char *host, *host_other;
    struct err e;
} b;

static void
must(int r)
{
    if (r >= 0) return;
    fprintf(stderr, "%s\n", b.at->gpu && gpu_why(b.at->gpu)[0] ? gpu_why(b.at->gpu) : b.e.text);
    exit(1);
}

static void
wait_lane(void)
{
    must(b.at->op->lane.mark(b.at->lane, ++b.at->step));
    while (b.at->op->lane.done(b.at->lane) < b.at->step) must(b.at->op->lane.error(b.at->lane));
}

static uint64_t
x_bytes(void)
{
    return 2ull * MAX_ROWS * MAX_K;
}

static uint64_t
y_bytes(void)
{
    return 2ull * MAX_ROWS * MAX_N;
}

static void
open_side(struct side *s, const char *kernels, bool tuned, bool invariant)
{
    nsec from = clock_now(), opened;

    b.at = s;
    b.o.kernels = kernels;
    b.o.tuning_file = tuned ? b.tuned : NULL;
    b.o.invariant = invariant;
    must(gpu_open(&s->gpu, &b.o, &b.e));
    s->op = gpu_ops(s->gpu);
    s->step = 0;
    opened = clock_now();
    must(s->op->lane.open(s->gpu, gpu_facts(s->gpu).units, &s->lane, &b.e));
    if (b.part && s != &b.any && s != &b.beside)
        must(s->op->lane.part(s->lane, gpu_facts(s->gpu).units - b.part, b.part));
    printf("device %.1f ms, lane %.1f ms (%s)\n", (double)(opened - from) / NSEC_MS,
           (double)(clock_now() - opened) / NSEC_MS, kernels);
}

static void
close_side(struct side *s)
{
    s->op->lane.close(s->lane);
    gpu_close(s->gpu);
    s->gpu = NULL;
    b.at = &b.any;
}

static void
open_memory(void)
{
    uint64_t acts = x_bytes() + 2 * y_bytes() + 4ull * MAX_ROWS * 4096 + 2ull * BESIDE_ROWS * OUTER;
    const struct gpu_ops *op = b.any.op;

    must(op->mem.arena_make(b.any.gpu, "weights", POOL, &b.w, &b.e));
    must(op->mem.arena_make(b.any.gpu, "acts", acts, &b.acts, &b.e));
    b.x = b.acts.base;
    b.y = b.x + x_bytes();
    b.other = b.y + y_bytes();
    b.residual = b.other + y_bytes();
    b.product = b.residual + 4ull * MAX_ROWS * 4096;
    must(op->mem.fill_random(b.any.lane, tensor_2d(b.w.base, DT_BF16, POOL / 2 / 4096, 4096), 1, 0,
                             0, 0.02f));
    must(op->mem.fill_random(b.any.lane, tensor_2d(b.x, DT_BF16, MAX_ROWS, MAX_K), 2, 0, 0, 1));
    must(
        op->mem.fill_random(b.any.lane, tensor_2d(b.residual, DT_F32, MAX_ROWS, 4096), 3, 0, 0, 1));
    wait_lane();
}

static struct tensor
copy_of(const struct matrix *m, uint32_t i)
{
    uint64_t bytes = 2ull * m->n * m->k;

    return tensor_2d((char *)b.w.base + i % (POOL / bytes) * bytes, DT_BF16, m->n, m->k);
}

/* The four matrices of a layer of the chain are contiguous. */
static struct tensor
in_layer(uint32_t layer, uint32_t which)
{
    uint64_t at = 0, bytes = 0;

    for (uint32_t i = 0; i < LAYER; i++) {
        if (i == which) at = bytes;
        bytes += 2ull * matrix[i].n * matrix[i].k;
    }
    return tensor_2d((char *)b.w.base + layer * bytes + at, DT_BF16, matrix[which].n,
                     matrix[which].k);
}

static struct tensor
x_of(uint32_t first, uint32_t rows, uint32_t k)
{
    return tensor_2d(b.x + 2ull * first * k, DT_BF16, rows, k);
}

static void
multiply(char *y, struct tensor x, struct tensor w)
{
    must(b.at->op->matmul(b.at->lane, tensor_2d(y, DT_BF16, x.dim[0], w.dim[0]), x, w, NO_TENSOR,
                          0));
}

/* Returns the number of repetitions for at least 2 ms, so that start and wait do not matter. */
static uint32_t
times(uint64_t weights, uint32_t rows)
{
    double us = (double)weights * (rows <= 64 ? 2 / 4e6 : 2e-6 * rows / 700);

    return (uint32_t)(2000 / us) + 2;
}

/* The timed work: n matmuls or n layers. */
typedef void (*work)(const struct matrix *m, uint32_t rows, uint32_t n);

static void
matmuls(const struct matrix *m, uint32_t rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) multiply(b.y, x_of(0, rows, m->k), copy_of(m, i));
}

static void
chain(const struct matrix *m, uint32_t rows, uint32_t n)
{
    (void)m;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < LAYER; j++)
            multiply(b.y, x_of(0, rows, matrix[j].k), in_layer(i, j));
}

/* A layer without attention: matmuls and the ops between them. */
static void
layers(const struct matrix *m, uint32_t rows, uint32_t n)
{
    struct tensor h = x_of(0, rows, 4096), out = tensor_2d(b.y, DT_BF16, rows, 4096);
    struct tensor f = tensor_2d(b.y, DT_BF16, rows, matrix[3].k);
    struct tensor both = tensor_2d(b.other, DT_BF16, rows, matrix[2].n);
    struct residual r = { .x = tensor_2d(b.residual, DT_F32, rows, 4096), .y = h, .eps = 1e-5f };
    char *down = b.other + 2ull * MAX_ROWS * 28672;

    (void)m;
    for (uint32_t i = 0; i < n; i++) {
        r.in = i ? tensor_2d(down, DT_BF16, rows, 4096) : NO_TENSOR;
        must(b.at->op->residual(b.at->lane, &r));
        multiply(b.other, h, in_layer(i, 0));
        multiply(b.y, tensor_2d(b.other, DT_BF16, rows, matrix[1].k), in_layer(i, 1));
        r.in = out;
        must(b.at->op->residual(b.at->lane, &r));
        must(b.at->op->gate_matmul(b.at->lane, f, both, h, in_layer(i, 2), ACT_SILU));
        multiply(down, f, in_layer(i, 3));
    }
}

struct figure {
    double least, median, most; /* us of one */
};

static struct figure figure[WAYS][MATRICES][COUNTS], of_chain[WAYS][COUNTS],
    of_layers[WAYS][COUNTS];

static bool
has(uint32_t way, uint32_t rows)
{
    return b.ways >> way & 1 && rows >= b.from && rows <= b.to && rows <= ways[way].max_rows;
}

static void
fill_beside(void)
{
    const uint64_t bytes = 2ull * INNER * OUTER;
    struct side *s = b.at;

    b.at = &b.beside;
    for (; b.at->step < b.at->op->lane.done(b.at->lane) + AHEAD; b.at->step++) {
        char *w = (char *)b.w.base + b.at->step % (POOL / bytes) * bytes;

        must(b.at->op->matmul(b.at->lane, tensor_2d(b.product, DT_BF16, BESIDE_ROWS, OUTER),
                              x_of(0, BESIDE_ROWS, INNER), tensor_2d(w, DT_BF16, OUTER, INNER),
                              NO_TENSOR, 0));
        must(b.at->op->lane.mark(b.at->lane, b.at->step + 1));
    }
    b.at = s;
}

/* Opens a lane on the SMs that the candidates do not use. */
static void
open_beside(void)
{
    open_side(&b.beside, "matmul=blas", false, false);
    must(b.at->op->lane.part(b.at->lane, 0, gpu_facts(b.at->gpu).units - b.part));
    for (int i = 0; i < 2; i++) {
        nsec from = clock_now();
        uint64_t n = b.at->step;

        fill_beside();
        while (b.at->op->lane.done(b.at->lane) < b.at->step) must(b.at->op->lane.error(b.at->lane));
        if (i)
            printf("other SMs, alone: %.0f TFLOP/s\n",
                   (double)(b.at->step - n) * PRODUCT / (double)(clock_now() - from) / 1e3);
    }
}

/* Sets to[way * stride] of every way. */
static void
measure(work w, const struct matrix *m, uint32_t rows, uint32_t n, struct figure *to, size_t stride)
{
    struct graph *g[WAYS];
    double us[WAYS][RUNS];
    uint64_t bytes;

    for (uint32_t i = 0; i < WAYS; i++) {
        if (!has(i, rows)) continue;
        b.at = &b.way[i];
        w(m, rows, n); /* one-time initialisation */
        wait_lane();
        must(b.at->op->graph.begin(b.at->lane));
        w(m, rows, n);
        must(b.at->op->graph.end(b.at->lane, &g[i], &bytes));
        must(b.at->op->graph.launch(b.at->lane, g[i]));
        wait_lane();
    }
    for (int run = 0; run < RUNS; run++)
        for (uint32_t i = 0; i < WAYS; i++) {
            nsec from;
            int at = run;
            double v;
            uint64_t done = 0;

            if (!has(i, rows)) continue;
            b.at = &b.way[i];
            if (rows > 64) usleep(20000);
            if (b.beside.lane) {
                fill_beside();
                done = b.beside.op->lane.done(b.beside.lane);
            }
            from = clock_now();
            must(b.at->op->graph.launch(b.at->lane, g[i]));
            wait_lane();
            v = (double)(clock_now() - from) / 1e3 / n;
            if (b.beside.lane) b.n_done[i] += b.beside.op->lane.done(b.beside.lane) - done;
            b.during[i] += clock_now() - from;
            for (; at > 0 && us[i][at - 1] > v; at--) us[i][at] = us[i][at - 1];
            us[i][at] = v;
        }
    for (uint32_t i = 0; i < WAYS; i++) {
        if (!has(i, rows)) continue;
        b.way[i].op->graph.drop(b.way[i].lane, g[i]);
        to[i * stride] = (struct figure){ us[i][0], us[i][RUNS / 2], us[i][RUNS - 1] };
    }
}

static float
value(const char *p, size_t i)
{
    return float_of_bf16(((const uint16_t *)p)[i]);
}

static uint32_t
checked_rows(uint32_t rows)
{
    return MIN(rows, 300u);
}

/* Writes the result of matmul=generic to b.host. */
static void
make_reference(const struct matrix *m, uint32_t rows)
{
    struct tensor y = tensor_2d(b.other, DT_F32, checked_rows(rows), m->n);
    struct side *at = b.at;

    b.at = &b.any;
    must(b.at->op->matmul(b.at->lane, y, x_of(0, y.dim[0], m->k), copy_of(m, 0), NO_TENSOR, 0));
    must(b.at->op->mem.get(b.at->lane, b.host, b.other, 4ull * y.dim[0] * m->n));
    wait_lane();
    b.at = at;
}

static void
fail(const char *way, const struct matrix *m, uint32_t rows, size_t at, const char *what)
{
    fprintf(stderr, "%s, %s, %u rows: element [%zu, %zu] %s\n", way, m->name, rows, at / m->n,
            at % m->n, what);
    exit(1);
}

/* Compares with b.host. Permitted: half a bf16 step, and the rounding of fp32 sums of k products
 * with standard deviation 0.02. */
static void
compare(const char *way, const struct matrix *m, uint32_t rows)
{
    size_t n = (size_t)checked_rows(rows) * m->n;
    const float *want = (const float *)b.host;
    double slack = 1e-6 * 0.02 * m->k;

    must(b.at->op->mem.put(b.at->lane, b.y, b.host_other, 2 * n)); /* NaN */
    multiply(b.y, x_of(0, rows, m->k), copy_of(m, 0));
    must(b.at->op->mem.get(b.at->lane, b.host_other, b.y, 2 * n));
    wait_lane();
    for (size_t i = 0; i < n; i++) {
        double bound = fabs((double)want[i]) / 256 + slack;

        if (!(fabs((double)value(b.host_other, i) - (double)want[i]) <= bound))
            fail(way, m, rows, i, "is wrong");
    }
    memset(b.host_other, 0xff, 2 * n);
}

/* Returns the fewest rows that the kernel of a way takes without cuBLASLt; more than max_rows:
 * none. */
static uint32_t
fewest_rows(const struct way *way, const struct matrix *m)
{
    struct side own, *at = b.at;
    char kernel[32];
    uint32_t rows = 1;

    snprintf(kernel, sizeof kernel, "%.*s", (int)strcspn(way->kernels, ","), way->kernels);
    open_side(&own, kernel, way->tuned, way->invariant);
    while (rows <= way->max_rows &&
           own.op->matmul(own.lane, tensor_2d(b.y, DT_BF16, rows, m->n), x_of(0, rows, m->k),
                          copy_of(m, 0), NO_TENSOR, 0) < 0)
        rows++;
    wait_lane();
    close_side(&own);
    b.at = at;
    return rows;
}

/* Checks that rows have the same bits in batches of every size. */
static void
same_bits(const struct way *way, const struct matrix *m)
{
    static const uint32_t size[] = { 1, 2, 7, 8, 9, 16, 17, 33, 64, 128, 513 };
    uint32_t all = MIN(way->max_rows, 600u), fewest = fewest_rows(way, m);
    size_t row = 2ull * m->n;

    if (fewest > all) {
        printf("%s, %s: the kernel takes no number of rows\n", way->name, m->name);
        return;
    }
    multiply(b.other, x_of(0, all, m->k), copy_of(m, 0));
    must(b.at->op->mem.get(b.at->lane, b.host, b.other, row * all));
    for (size_t i = 0; i < ARRAY_LEN(size); i++)
        for (uint32_t first = 0; first + size[i] <= all && first < 90; first += 1 + size[i] / 2) {
            if (size[i] < fewest) break;
            multiply(b.y, x_of(first, size[i], m->k), copy_of(m, 0));
            must(b.at->op->mem.get(b.at->lane, b.host_other, b.y, row * size[i]));
            wait_lane();
            if (memcmp(b.host_other, b.host + row * first, row * size[i]) == 0) continue;
            fail(way->name, m, size[i], (size_t)first * m->n, "depend on the batch");
        }
    printf("%s, %s: rows have the same bits in batches of %u to %u\n", way->name, m->name, fewest,
           all);
    memset(b.host_other, 0xff, row * all);
}

static void
measure_all(void)
{
    for (uint32_t i = 0; i < COUNTS; i++) {
        uint32_t rows = row_counts[i];
        bool few = rows <= 64;

        if (b.brief && rows != 1 && rows != 16 && rows != 64 && rows != 256 && rows != 1024)
            continue;
        for (uint32_t j = 0; j < MATRICES; j++)
            measure(matmuls, &matrix[j], rows, times((uint64_t)matrix[j].n * matrix[j].k, rows),
                    &figure[0][j][i], MATRICES * COUNTS);
        measure(chain, NULL, rows, few ? CHAIN : 2, &of_chain[0][i], COUNTS);
        measure(layers, NULL, rows, few ? CHAIN : 2, &of_layers[0][i], COUNTS);
    }
}

static void
check_way(uint32_t w)
{
    static const uint32_t some[] = { 1, 8, 16, 24, 32, 64, 300, 2048 };

    b.at = &b.way[w];
    for (size_t i = 0; i < ARRAY_LEN(some); i++)
        for (uint32_t j = 0; j < MATRICES; j++) {
            if (!has(w, some[i]) || (j == 4 && some[i] > 16)) continue;
            make_reference(&matrix[j], some[i]);
            compare(ways[w].name, &matrix[j], some[i]);
        }
    if (ways[w].invariant || ways[w].max_rows < MAX_ROWS)
        for (uint32_t j = 0; j < LAYER; j++) same_bits(&ways[w], &matrix[j]);
}

/* Measures cuBLASLt algorithms for every shape and number of rows. */
static void
tune(void)
{
    struct tune_result us;
    int r;

    open_side(&b.way[0], "matmul=blas,gate_matmul=blas", true, false);
    for (uint32_t j = 0; j < MATRICES; j++)
        for (uint32_t i = 0; i < COUNTS; i++)
            if (row_counts[i] >= b.from && row_counts[i] <= b.to)
                multiply(b.y, x_of(0, row_counts[i], matrix[j].k), copy_of(&matrix[j], 0));
    wait_lane();
    while ((r = b.at->op->lane.tune(b.at->lane, &us)) > 0)
        printf(
            "tune: [%u, %u] x %u rows: %.1f us, first algorithm of the library %.1f us, %u tried\n",
            us.n, us.k, us.rows, (double)us.best, (double)us.first, us.n_tried);
    must(r);
    close_side(&b.way[0]);
}

/* One JSON line for each number of rows (bench/README.md). */
static void
print_json(const char *name, const struct figure *f, double bytes, double flops_a_row)
{
    for (uint32_t i = 0; i < COUNTS; i++) {
        bool few = row_counts[i] <= 64;
        double done = (few ? bytes : flops_a_row * row_counts[i]) / 1e6;

        if (f[i].median == 0) continue;
        printf("{\"bench\":\"matmul\",\"case\":\"%s, %u rows\",\"value\":%.4g,\"unit\":\"%s\","
               "\"n\":%d,\"min\":%.4g,\"median\":%.4g,\"max\":%.4g}\n",
               name, row_counts[i], done / f[i].median, few ? "TB/s" : "TFLOP/s", RUNS,
               done / f[i].most, done / f[i].median, done / f[i].least);
    }
}

static void
row_of(const char *name, const struct figure *f, double bytes, double flops_a_row, bool spread)
{
    printf("%-20s", name);
    for (uint32_t i = 0; i < COUNTS; i++) {
        double done = row_counts[i] <= 64 ? bytes / 1e6 : flops_a_row * row_counts[i] / 1e6;
        double us = spread ? f[i].most : f[i].median;

        if (f[i].median == 0)
            printf("        ");
        else if (spread)
            printf("  %4.1f %%", 100 * (f[i].most - f[i].least) / f[i].median);
        else
            printf("  %6.*f", row_counts[i] <= 64 ? 3 : 1, done / us);
    }
    printf("\n");
}

static void
print_all(bool json)
{
    double bytes = 0;
    char name[64];

    for (uint32_t j = 0; j < LAYER; j++) bytes += 2.0 * matrix[j].n * matrix[j].k;
    if (!json) {
        printf("%-20s", "rows");
        for (uint32_t i = 0; i < COUNTS; i++) printf("  %6u", row_counts[i]);
        printf("\n");
    }
    for (uint32_t j = 0; j < MATRICES + 2; j++)
        for (uint32_t w = 0; w < WAYS; w++) {
            double n = j < MATRICES ? 2.0 * matrix[j].n * matrix[j].k : bytes;
            const char *what = j < MATRICES ? matrix[j].name : j == MATRICES ? "chain" : "layer";
            const struct figure *f;

            if (!(b.ways >> w & 1)) continue;
            f = j < MATRICES ? figure[w][j] : j == MATRICES ? of_chain[w] : of_layers[w];

            snprintf(name, sizeof name, "%s %s", what, ways[w].name);
            if (json)
                print_json(name, f, n, n);
            else
                row_of(name, f, n, n, false);
            if (!json && (w == 0 || j >= MATRICES)) row_of("", f, n, n, true);
        }
    for (uint32_t w = 0; w < WAYS && b.beside.lane && !json; w++)
        if (b.ways >> w & 1)
            printf("other SMs beside %s: %.0f TFLOP/s\n", ways[w].name,
                   (double)b.n_done[w] * PRODUCT / (double)b.during[w] / 1e3);
}

/* Reduces the matrices to the part of one rank: of the output columns, or of the summed ones. */
static void
divide(uint32_t ranks)
{
    for (uint32_t i = 0; i < MATRICES; i++)
        *(i % 2 ? &matrix[i].k : &matrix[i].n) /= MAX(ranks, 1u);
}

int
main(int argc, char **argv)
{
    bool beside = false;

    b.o.device = "cuda";
    b.at = &b.any;
    b.ways = (1 << WAYS) - 1;
    b.to = MAX_ROWS;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            b.o.device = argv[++i];
        else if (strcmp(argv[i], "--libs") == 0 && i + 1 < argc)
            b.o.libs = argv[++i];
        else if (strcmp(argv[i], "--tuned") == 0 && i + 1 < argc)
            b.tuned = argv[++i];
        else if (strcmp(argv[i], "--ways") == 0 && i + 1 < argc)
            b.ways = (unsigned)strtoul(argv[++i], NULL, 2);
        else if (strcmp(argv[i], "--from") == 0 && i + 1 < argc)
            b.from = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--to") == 0 && i + 1 < argc)
            b.to = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--part") == 0 && i + 1 < argc)
            b.part = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
            divide((uint32_t)strtoul(argv[++i], NULL, 10));
        else if (strcmp(argv[i], "--tune") == 0)
            b.tune = true;
        else if (strcmp(argv[i], "--brief") == 0)
            b.brief = true;
        else if (strcmp(argv[i], "--beside") == 0)
            beside = true;
        else
            return fprintf(stderr, "bench_matmul [--device cuda:N] [--tuned FILE [--tune]] "
                                   "[--libs DIR] [--brief] [--ways BITS] [--from ROWS] "
                                   "[--to ROWS] [--part SMS [--beside]] [--ranks N]\n"),
                   2;
    }
    b.host = malloc(4ull * 300 * MAX_N);
    b.host_other = malloc(4ull * 300 * MAX_N);
    if (!b.host || !b.host_other) return 1;
    memset(b.host_other, 0xff, 4ull * 300 * MAX_N);
    open_side(&b.any, "matmul=generic,gate_matmul=generic", false, false);
    open_memory();
    if (b.tuned && b.tune) tune();
    for (uint32_t w = 0; w < WAYS; w++) {
        if (ways[w].tuned && !ways[w].invariant && !b.tuned) b.ways &= ~(1u << w);
        if (!(b.ways >> w & 1)) continue;
        open_side(&b.way[w], ways[w].kernels, ways[w].tuned, ways[w].invariant);
        check_way(w);
    }
    if (b.part && beside) open_beside();
    measure_all();
    print_all(/* json= */ false);
    print_all(/* json= */ true);
    if (b.beside.gpu) close_side(&b.beside);
    for (uint32_t w = 0; w < WAYS; w++)
        if (b.ways >> w & 1) close_side(&b.way[w]);
    b.any.op->mem.arena_drop(b.any.gpu, &b.w);
    b.any.op->mem.arena_drop(b.any.gpu, &b.acts);
    close_side(&b.any);
    free(b.host);
    free(b.host_other);
    return 0;
}
