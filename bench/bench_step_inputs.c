/* bench_step_inputs.c - ops on rows, tables and blocks of a GPU, with the shapes of an 8B model.
 *
 *     bench_step_inputs [--device cuda:N]
 *
 * A figure is the median of RUNS runs: of a graph that repeats one op (few rows are in the L2
 * cache, as in a step), of 8,192 rows, and of block copies. tests/gpu/test_step_inputs checks these
 * ops; bench-gpu runs it first.
 */
#include "base/clock.h"
#include "gpu/gpu.h"

#include <stdio.h>
#include <sys/mman.h>

enum {
    RUNS = 9,
    D = 4096,
    F = 14336,
    MANY = 8192,
    HEADS = 32,
    KV_HEADS = 8,
    HEAD = 128,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD,
    TPB = 16,
    BLOCK_BYTES = KV_HEADS * TPB * HEAD * 2, /* of K; the same of V */
    EDITS = 256,
};
#define HOST_BYTES ((size_t)256 << 20)
#define CHECKED ((size_t)1 << 30)

static struct {
    struct gpu *gpu;
    const struct gpu_ops *op;
    struct lane *lane;
    uint64_t step;
    struct arena arena;
    uint64_t used;
    struct tensor x, x_too, in, y, w, gate_up, gated, qkv, cos_sin;
    struct kv_view kv;
    slice_id *table;
    int32_t *pos;
    uint32_t *slot;
    struct table_edit *edit;
    uint64_t *sum;
    char *big, *host;
    struct block_copy *copy;
    struct err e;
} b;

static void
must(int r)
{
    if (r >= 0) return;
    fprintf(stderr, "bench_step_inputs: %s\n",
            b.gpu && gpu_why(b.gpu)[0] ? gpu_why(b.gpu) : b.e.text);
    exit(1);
}

static void
wait_lane(void)
{
    must(b.op->lane.mark(b.lane, ++b.step));
    while (b.op->lane.done(b.lane) < b.step) must(b.op->lane.error(b.lane));
}

static void *
take(size_t bytes)
{
    char *p = (char *)b.arena.base + b.used;

    b.used = ROUND_UP(b.used + bytes, 256);
    if (b.used > b.arena.bytes) must(err_set(&b.e, -1, "the arena is too small"));
    return p;
}

static struct tensor
random_matrix(enum dtype t, uint32_t rows, uint32_t cols, float std)
{
    struct tensor x = tensor_2d(take(dtype_bytes(t, (size_t)rows * cols)), t, rows, cols);

    must(b.op->mem.fill_random(b.lane, x, b.used, 0, 0, std));
    return x;
}

static void *
sent(const void *from, size_t bytes)
{
    void *p = take(bytes);

    must(b.op->mem.put(b.lane, p, from, bytes));
    wait_lane();
    return p;
}

static void
open_all(const char *device)
{
    static int32_t pos[MANY];
    static uint32_t slot[MANY];
    static slice_id table[MANY / TPB];
    static struct table_edit edit[EDITS];
    struct gpu_options o = { .device = device };

    must(gpu_open(&b.gpu, &o, &b.e));
    b.op = gpu_ops(b.gpu);
    must(b.op->lane.open(b.gpu, gpu_facts(b.gpu).units, &b.lane, &b.e));
    must(b.op->mem.arena_make(b.gpu, "bench", (uint64_t)4 << 30, &b.arena, &b.e));
    b.x = random_matrix(DT_F32, MANY, D, 1);
    b.x_too = random_matrix(DT_F32, MANY, D, 1);
    b.in = random_matrix(DT_BF16, MANY, D, 1);
    b.y = random_matrix(DT_BF16, MANY, D, 1);
    b.w = random_matrix(DT_BF16, 1, D, 1);
    b.gate_up = random_matrix(DT_BF16, MANY, 2 * F, 1);
    b.gated = random_matrix(DT_BF16, MANY, F, 1);
    b.qkv = random_matrix(DT_BF16, MANY, QKV, 1);
    b.cos_sin = random_matrix(DT_F32, MANY, HEAD, 0.7f);
    for (uint32_t i = 0; i < MANY; i++) pos[i] = (int32_t)i;
    for (uint32_t i = 0; i < MANY / TPB; i++) table[i] = 2 * (i * 37 % (MANY / TPB));
    for (uint32_t i = 0; i < EDITS; i++)
        edit[i] = (struct table_edit){ .entry = i * 29 % (MANY / TPB),
                                       .at = table[i * 29 % EDITS] };
    b.pos = sent(pos, sizeof pos);
    b.slot = sent(slot, sizeof slot);
    b.edit = sent(edit, sizeof edit);
    b.sum = take(sizeof *b.sum);
    b.copy = take(HOST_BYTES / (32 << 10) * sizeof *b.copy);
    b.table = sent(table, sizeof table);
    b.kv = (struct kv_view){ .base = take((size_t)2 * BLOCK_BYTES * (MANY / TPB)),
                             .table = b.table,
                             .table_stride = MANY / TPB,
                             .slice_bytes = BLOCK_BYTES,
                             .n_parts = 2,
                             .tokens_per_block = TPB,
                             .n_kv_heads = KV_HEADS,
                             .head_dim = HEAD,
                             .dtype = DT_BF16,
                             .k_scale = 1,
                             .v_scale = 1 };
    b.big = take(CHECKED);
    must(b.op->mem.fill_random(b.lane, tensor_2d(b.big, DT_F32, CHECKED / 4 / D, D), 1, 0, 0, 1));
    b.host = mmap(NULL, HOST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.host == MAP_FAILED) must(err_set(&b.e, -1, "no memory"));
    memset(b.host, 1, HOST_BYTES);
    must(b.op->mem.host_pin(b.gpu, b.host, HOST_BYTES));
    wait_lane();
}

static struct tensor
head_rows(struct tensor t, uint32_t n)
{
    return tensor_rows(t, 0, n);
}

static void
norm(uint32_t n)
{
    must(b.op->rms_norm(b.lane, head_rows(b.y, n), head_rows(b.in, n), b.w, 1e-5f, 0));
}

static void
norm_of_stream(uint32_t n)
{
    must(b.op->rms_norm(b.lane, head_rows(b.y, n), head_rows(b.x, n), b.w, 1e-5f, 0));
}

static void
residual(uint32_t n)
{
    struct residual r = { .x = head_rows(b.x, n),
                          .in = head_rows(b.in, n),
                          .y = head_rows(b.y, n),
                          .y_norm = b.w,
                          .eps = 1e-5f };

    must(b.op->residual(b.lane, &r));
}

static void
residual_of_norm(uint32_t n)
{
    struct residual r = { .x = head_rows(b.x, n),
                          .in = head_rows(b.in, n),
                          .in_norm = b.w,
                          .y = head_rows(b.y, n),
                          .y_norm = b.w,
                          .eps = 1e-5f };

    must(b.op->residual(b.lane, &r));
}

static void
layer_norm(uint32_t n)
{
    struct residual r = { .x = head_rows(b.x, n),
                          .y = head_rows(b.y, n),
                          .y_norm = b.w,
                          .y_bias = b.w,
                          .eps = 1e-5f,
                          .norm = RESIDUAL_LAYER };

    must(b.op->residual(b.lane, &r));
}

static void
add(uint32_t n)
{
    must(b.op->add(b.lane, head_rows(b.x, n), head_rows(b.in, n)));
}

static void
gate(uint32_t n)
{
    must(b.op->gate(b.lane, head_rows(b.gated, n), head_rows(b.gate_up, n), ACT_SILU));
}

static void
embed(uint32_t n)
{
    must(b.op->embed(b.lane, head_rows(b.x, n), b.in, b.pos, 1));
}

static void
gather(uint32_t n)
{
    must(b.op->gather_rows(b.lane, head_rows(b.x_too, n), b.x, (const uint32_t *)b.pos));
}

static void
rope_store(uint32_t n)
{
    struct tensor all = head_rows(b.qkv, n);
    struct rope_store s = { .q = tensor_cols(all, 0, HEADS * HEAD),
                            .k = tensor_cols(all, HEADS * HEAD, KV_HEADS * HEAD),
                            .v = tensor_cols(all, (HEADS + KV_HEADS) * HEAD, KV_HEADS * HEAD),
                            .cos_sin = b.cos_sin,
                            .n_heads = HEADS,
                            .n_kv_heads = KV_HEADS,
                            .head_dim = HEAD,
                            .kv = b.kv };

    must(b.op->rope_store(b.lane, &s,
                          (struct step_tokens){ .n_tokens = n, .pos = b.pos, .slot = b.slot }));
}

static const struct row_op {
    const char *name;
    void (*queue)(uint32_t n);
    double bytes; /* read and written per row */
} row_op[] = {
    { "rms_norm bf16", norm, 4.0 * D },
    { "rms_norm fp32 to bf16", norm_of_stream, 6.0 * D },
    { "residual", residual, 12.0 * D },
    { "residual of a norm", residual_of_norm, 12.0 * D },
    { "layer norm fp32 to bf16", layer_norm, 6.0 * D },
    { "add bf16 to fp32", add, 10.0 * D },
    { "gate silu 14,336", gate, 6.0 * F },
    { "embed bf16 to fp32", embed, 6.0 * D },
    { "rows fp32", gather, 8.0 * D },
    { "rope_store 32+8+8 heads of 128", rope_store, 4.0 * QKV },
};

/* seconds[RUNS] is unsorted. work: per second; 0: prints us. */
static void
line(const char *name, const char *detail, const char *unit, double *seconds, double work)
{
    double v[RUNS];

    for (int i = 0; i < RUNS; i++) {
        double x = work != 0 ? work / seconds[i] : seconds[i] * 1e6;
        int at = i;

        for (; at > 0 && v[at - 1] > x; at--) v[at] = v[at - 1];
        v[at] = x;
    }
    printf("{\"bench\":\"step_inputs\",\"case\":\"%s%s\",\"value\":%.2f,\"unit\":\"%s\",\"n\":%d,"
           "\"min\":%.2f,\"median\":%.2f,\"max\":%.2f}\n",
           name, detail, v[RUNS / 2], unit, RUNS, v[0], v[RUNS / 2], v[RUNS - 1]);
    fflush(stdout);
}

/* Times the op n_times in sequence, as a graph if graph. */
static void
time_rows(const struct row_op *o, uint32_t n, uint32_t n_times, bool graph, double *seconds)
{
    struct graph *g = NULL;
    uint64_t bytes;

    o->queue(n);
    wait_lane();
    if (graph) {
        must(b.op->graph.begin(b.lane));
        for (uint32_t i = 0; i < n_times; i++) o->queue(n);
        must(b.op->graph.end(b.lane, &g, &bytes));
        must(b.op->graph.launch(b.lane, g));
        wait_lane();
    }
    for (int segment = 0; segment < RUNS; segment++) {
        nsec from = clock_now();

        if (graph) {
            must(b.op->graph.launch(b.lane, g));
        } else {
            for (uint32_t i = 0; i < n_times; i++) o->queue(n);
        }
        wait_lane();
        seconds[segment] = (double)(clock_now() - from) / NSEC_S / n_times;
    }
    if (graph) b.op->graph.drop(b.lane, g);
}

static void
row_ops(void)
{
    static const uint32_t few[] = { 1, 16, 64, 256 };
    double seconds[RUNS];
    char detail[32];

    for (size_t i = 0; i < ARRAY_LEN(row_op); i++) {
        for (size_t j = 0; j < ARRAY_LEN(few); j++) {
            time_rows(&row_op[i], few[j], 200, gpu_facts(b.gpu).graphs, seconds);
            snprintf(detail, sizeof detail, ", %u rows", few[j]);
            line(row_op[i].name, detail, "us", seconds, 0);
        }
        time_rows(&row_op[i], MANY, 20, false, seconds);
        line(row_op[i].name, ", 8,192 rows", "TB/s", seconds, row_op[i].bytes * MANY / 1e12);
    }
}

static void
edits(uint32_t n)
{
    struct tables t = { .n = 1, .stride = { MANY / TPB }, .table = { b.table } };

    must(b.op->step.update_tables(b.lane, t, b.edit, n));
}

static void
checksum(uint32_t n)
{
    (void)n;
    must(b.op->mem.checksum(b.lane, b.sum, b.big, CHECKED));
}

/* Copies n scattered blocks. known_to_host: the list is in host memory, so copy engines may do it.
 * */
static void
copies(size_t bytes, uint32_t n, bool to_host, bool known_to_host)
{
    static struct block_copy copy[HOST_BYTES / (32 << 10)];
    uint32_t places = (uint32_t)(HOST_BYTES / bytes),
             n_times = n * bytes < HOST_BYTES / 16 ? 100 : 10;
    double seconds[RUNS];
    char detail[64];

    for (uint32_t i = 0; i < n; i++) {
        char *host = b.host + (size_t)(i * 67 % places) * bytes;
        char *there = b.big + (size_t)(i * 29 % n) * bytes;

        copy[i] = to_host ? (struct block_copy){ host, there } : (struct block_copy){ there, host };
    }
    must(b.op->mem.put(b.lane, b.copy, copy, n * sizeof *copy));
    wait_lane();
    for (int segment = 0; segment < RUNS; segment++) {
        nsec from = clock_now();

        for (uint32_t i = 0; i < n_times; i++)
            must(b.op->mem.copy_blocks(b.lane, b.copy, known_to_host ? copy : NULL, n,
                                       (struct block_size){ .bytes = bytes }));
        wait_lane();
        seconds[segment] = (double)(clock_now() - from) / NSEC_S / n_times;
    }
    snprintf(detail, sizeof detail, " %s, %u x %zu KiB%s", to_host ? "to host" : "to device", n,
             bytes >> 10, known_to_host ? "" : ", by kernel");
    line("copy_blocks", detail, "GB/s", seconds, (double)n * (double)bytes / 1e9);
}

int
main(int argc, char **argv)
{
    static const struct row_op edit = { .queue = edits }, sum = { .queue = checksum };
    const char *device = "cuda";
    double seconds[RUNS];

    if (argc == 3 && strcmp(argv[1], "--device") == 0)
        device = argv[2];
    else if (argc != 1)
        return fprintf(stderr, "bench_step_inputs [--device cuda:N]\n"), 2;
    open_all(device);
    row_ops();
    time_rows(&edit, EDITS, 200, gpu_facts(b.gpu).graphs, seconds);
    line("edit", ", 256 edits", "us", seconds, 0);
    time_rows(&sum, 1, 4, false, seconds);
    line("checksum", ", 1 GiB", "TB/s", seconds, (double)CHECKED / 1e12);
    for (int way = 0; way < 4; way++) {
        bool to_host = way / 2, known_to_host = way % 2;

        if (!known_to_host) copies((size_t)32 << 10, 2048, to_host, known_to_host);
        copies((size_t)1 << 20, 1, to_host, known_to_host);
        copies((size_t)1 << 20, 64, to_host, known_to_host);
        copies((size_t)4 << 20, 1, to_host, known_to_host);
        copies((size_t)4 << 20, 16, to_host, known_to_host);
    }
    b.op->lane.close(b.lane);
    b.op->mem.arena_drop(b.gpu, &b.arena);
    gpu_close(b.gpu);
    return 0;
}
