/* bench_attend.c - attention of decode steps, encoders and prefill on a GPU.
 *
 * Keys and values are bf16, in blocks scattered over a pool, and cold: successive layers, as many
 * as the pool holds. A figure is the median of RUNS runs of a graph of layers, by the clock of the
 * host, with the rate at which keys and values are read (tb_s) or the arithmetic (tflop_s). Before
 * the timing each result is compared element by element with attend=generic; a difference ends the
 * program.
 *
 *     bench_attend [--device cuda:N] [--kernel attend=NAME] [--invariant] [--only PATTERN]
 *                  [--part SMS [--beside]]
 *
 *     --part     only the last SMS SMs of the device
 *     --beside   while the other SMs multiply 2,048 rows (4,096 to 14,336); prints their rate,
 *                first alone
 */
#include "base/clock.h"
#include "base/rng.h"
#include "gpu/fp.h"
#include "gpu/gpu.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>

enum { RUNS = 9, MAX_LAYERS = 32 };
#define POOL ((uint64_t)5 << 29) /* bytes of keys and values */
#define ACTS ((uint64_t)1 << 28) /* of everything else */
/* The product on the other SMs, the number of queued ones, and of weight matrices in the pool. */
enum { ROWS = 2048, INNER = 4096, OUTER = 14336, AHEAD = 64, MATRICES = 16 };
#define PRODUCT (2. * ROWS * INNER * OUTER)

static const struct shape {
    const char *name;
    uint32_t seqs, len, kv_heads, group, dim, tokens, rows; /* rows: per sequence */
    bool causal, bias;
    uint32_t window, kept;
} shapes[] = {
    { "8B, 1 x 1k", 1, 1024, 8, 4, 128, 64, 1, true, false, 0 },
    { "8B, 1 x 4k", 1, 4096, 8, 4, 128, 64, 1, true, false, 0 },
    { "8B, 1 x 32k", 1, 32768, 8, 4, 128, 64, 1, true, false, 0 },
    { "8B, 8 x 1k", 8, 1024, 8, 4, 128, 64, 1, true, false, 0 },
    { "8B, 8 x 4k", 8, 4096, 8, 4, 128, 64, 1, true, false, 0 },
    { "8B, 64 x 1k", 64, 1024, 8, 4, 128, 64, 1, true, false, 0 },
    { "8B, 64 x 4k", 64, 4096, 8, 4, 128, 64, 1, true, false, 0 },
    { "8B, 32 x 10k", 32, 10240, 8, 4, 128, 64, 1, true, false, 0 },
    { "8B, 64 x 4k, blocks of 16", 64, 4096, 8, 4, 128, 16, 1, true, false, 0 },
    { "8B, 256 x 1k", 256, 1024, 8, 4, 128, 64, 1, true, false, 0 },
    { "70B, 64 x 4k", 64, 4096, 8, 8, 128, 64, 1, true, false, 0 },
    { "gpt-oss, 64 x 4k", 64, 4096, 8, 8, 64, 64, 1, true, false, 0 },
    { "gpt-oss, window 128 of 4k, 64", 64, 4096, 8, 8, 64, 64, 1, true, false, 128 },
    { "gpt-oss, that and the first 4", 64, 4096, 8, 8, 64, 64, 1, true, false, 128, 4 },
    { "Gemma 3 27B, 16 x 4k", 16, 4096, 16, 2, 128, 32, 1, true, false, 0 },
    { "heads of 256, 64 x 4k", 64, 4096, 8, 2, 256, 32, 1, true, false, 0 },
    { "T5-large, self, 128 x 64", 128, 64, 16, 1, 64, 64, 1, true, true, 0 },
    { "T5-large, cross, 1 x 512", 1, 512, 16, 1, 64, 64, 1, false, false, 0 },
    { "T5-large, cross, 32 x 512", 32, 512, 16, 1, 64, 64, 1, false, false, 0 },
    { "T5-large, cross, 4 x 512", 4, 512, 16, 1, 64, 64, 1, false, false, 0 },
    { "T5-large, cross, 128 x 512", 128, 512, 16, 1, 64, 64, 1, false, false, 0 },
    { "T5-large, cross, 4 beams of 1 x 512", 1, 512, 16, 1, 64, 64, 4, false, false, 0 },
    { "T5-large, cross, 4 beams of 8 x 512", 8, 512, 16, 1, 64, 64, 4, false, false, 0 },
    { "T5-large, cross, 4 beams of 64 x 512", 64, 512, 16, 1, 64, 64, 4, false, false, 0 },
    { "BART-large, cross, 4 beams of 64 x 1k", 64, 1024, 16, 1, 64, 64, 4, false, false, 0 },
    { "8B, prefill 4k", 1, 4096, 8, 4, 128, 64, 4096, true, false, 0 },
    { "8B, 512 rows behind 3.5k", 1, 4096, 8, 4, 128, 64, 512, true, false, 0 },
    { "heads of 64, prefill 4k", 1, 4096, 8, 8, 64, 64, 4096, true, false, 0 },
    { "heads of 256, prefill 4k", 1, 4096, 8, 2, 256, 64, 4096, true, false, 0 },
};

struct side {
    struct gpu *gpu;
    const struct gpu_ops *op;
    struct lane *lane;
    uint64_t step;
};

static struct {
    struct side any, fast; /* any also owns the memory */
    struct side beside;    /* the other SMs of the same device */
    uint64_t n_done;
    nsec during; /* time of n_done */
    struct arena kv, acts;
    char *host; /* 2 × out */
    uint64_t seed;
    struct err e;
} b;

static void
must(const struct side *s, int r)
{
    if (r >= 0) return;
    fprintf(stderr, "%s\n", s->gpu && gpu_why(s->gpu)[0] ? gpu_why(s->gpu) : b.e.text);
    exit(1);
}

static void
wait_lane(struct side *s)
{
    must(s, s->op->lane.mark(s->lane, ++s->step));
    while (s->op->lane.done(s->lane) < s->step) must(s, s->op->lane.error(s->lane));
}

static void
open_side(struct side *s, struct gpu_options o)
{
    must(s, gpu_open(&s->gpu, &o, &b.e));
    s->op = gpu_ops(s->gpu);
    must(s, s->op->lane.open(s->gpu, gpu_facts(s->gpu).units, &s->lane, &b.e));
}

static uint32_t
below(uint32_t n)
{
    return rng_below(&b.seed, n);
}

/* Device data that the layers of a shape share; kv.base: layer 0. */
struct work {
    const struct shape *s;
    struct attend a;
    struct step_tokens r;
    struct tensor other;
    uint32_t layers;
};

static void *
to_device(char **at, const void *from, size_t bytes)
{
    void *to = *at;

    must(&b.any, b.any.op->mem.put(b.any.lane, to, from, bytes));
    wait_lane(&b.any);
    *at += ROUND_UP(bytes, 256);
    return to;
}

static void
make_work(struct work *w, const struct shape *s)
{
    uint32_t entries = CEIL_DIV(s->len, s->tokens), n = s->seqs * entries, rows = s->seqs * s->rows;
    uint32_t slice = 2 * s->kv_heads * s->tokens * s->dim, heads = s->kv_heads * s->group;
    uint64_t layer = 2ull * slice * n;
    slice_id *table = malloc(n * sizeof *table);
    struct segment *segment = malloc(s->seqs * sizeof *segment);
    int32_t *pos = malloc(rows * sizeof *pos);
    uint32_t *slot = malloc(rows * sizeof *slot), reach = 128;
    char *at = b.acts.base;

    memset(w, 0, sizeof *w);
    w->s = s;
    w->layers = (uint32_t)MIN(POOL / layer, (uint64_t)MAX_LAYERS);
    for (uint32_t i = 0; i < n; i++) table[i] = 2 * w->layers * i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = below(i);
        slice_id t = table[i - 1];

        table[i - 1] = table[j];
        table[j] = t;
    }
    for (uint32_t i = 0; i < s->seqs; i++) {
        segment[i] = (struct segment){ i, i * s->rows, s->rows, (int32_t)(s->len - s->rows),
                                       s->len };
        for (uint32_t j = 0; j < s->rows; j++) {
            pos[i * s->rows + j] = segment[i].first_pos + (int32_t)j;
            slot[i * s->rows + j] = i;
        }
    }
    w->r = (struct step_tokens){ .n_tokens = rows,
                                 .n_segments = s->seqs,
                                 .n_single_token = s->rows == 1 ? s->seqs : 0,
                                 .longest = s->rows,
                                 .pos = to_device(&at, pos, rows * sizeof *pos),
                                 .slot = to_device(&at, slot, rows * sizeof *slot),
                                 .segment = to_device(&at, segment, s->seqs * sizeof *segment) };
    w->a = (struct attend){ .kv = { .base = b.kv.base,
                                    .table = to_device(&at, table, n * sizeof *table),
                                    .table_stride = entries,
                                    .slice_bytes = slice,
                                    .n_parts = 2,
                                    .tokens_per_block = s->tokens,
                                    .n_kv_heads = s->kv_heads,
                                    .head_dim = s->dim,
                                    .dtype = DT_BF16,
                                    .k_scale = 1,
                                    .v_scale = 1 },
                            .n_heads = heads,
                            .n_kv_heads = s->kv_heads,
                            .head_dim = s->dim,
                            .window = s->window,
                            .kept = s->kept,
                            .causal = s->causal,
                            .scale = 3 / sqrtf((float)s->dim), /* scores of standard deviation 3 */
                            .bias_reach = reach };
    if (s->bias) {
        w->a.bias = (float *)at;
        must(&b.any, b.any.op->mem.fill_random(
                         b.any.lane, tensor_2d(at, DT_F32, heads, 2 * reach + 1), 5, 0, 0, 1));
        at += ROUND_UP(4ull * heads * (2 * reach + 1), 256);
    }
    w->a.q = tensor_2d(at, DT_BF16, rows, heads * s->dim);
    w->a.out = tensor_2d(at + 2ull * rows * heads * s->dim, DT_BF16, rows, heads * s->dim);
    w->other = tensor_2d(at + 4ull * rows * heads * s->dim, DT_BF16, rows, heads * s->dim);
    must(&b.any, b.any.op->mem.fill_random(b.any.lane, w->a.q, 4, 0, 0, 1));
    wait_lane(&b.any);
    free(table), free(segment), free(pos), free(slot);
}

static void
attend(struct side *side, const struct work *w, struct tensor out, uint32_t layer)
{
    struct attend a = w->a;

    a.out = out;
    a.kv.base = (char *)a.kv.base + 2ull * (layer % w->layers) * a.kv.slice_bytes;
    must(side, side->op->attend(side->lane, &a, w->r));
}

static float
value(const char *p, size_t i)
{
    return float_of_bf16(((const uint16_t *)p)[i]);
}

/* Probabilities and result are rounded to bf16. Values have standard deviation 1; the largest
 * result is about 4. */
static void
compare(const struct work *w)
{
    size_t n = (size_t)w->a.out.dim[0] * w->a.out.dim[1];
    char *got = b.host + 2 * n;

    memset(got, 0xff, 2 * n);
    must(&b.fast, b.fast.op->mem.put(b.fast.lane, w->a.out.data, got, 2 * n)); /* NaN */
    attend(&b.fast, w, w->a.out, 0);
    must(&b.fast, b.fast.op->mem.get(b.fast.lane, got, w->a.out.data, 2 * n));
    wait_lane(&b.fast);
    attend(&b.any, w, w->other, 0);
    must(&b.any, b.any.op->mem.get(b.any.lane, b.host, w->other.data, 2 * n));
    wait_lane(&b.any);
    for (size_t i = 0; i < n; i++) {
        double want = value(b.host, i), off = fabs(value(got, i) - want);

        if (off <= (2 * fabs(want) + 2) / 256) continue; /* false for a NaN */
        fprintf(stderr, "%s: element [%zu, %zu] is %g, attend=generic gives %g\n", w->s->name,
                i / w->a.out.dim[1], i % w->a.out.dim[1], (double)value(got, i), want);
        exit(1);
    }
}

static void
fill_beside(void)
{
    struct side *s = &b.beside;
    char *x = (char *)b.acts.base + ACTS - 2 * ROWS * (INNER + OUTER);

    for (; s->step < s->op->lane.done(s->lane) + AHEAD; s->step++) {
        char *w = (char *)b.kv.base + s->step % MATRICES * 2 * INNER * OUTER;

        must(s, s->op->matmul(s->lane, tensor_2d(x + 2 * ROWS * INNER, DT_BF16, ROWS, OUTER),
                              tensor_2d(x, DT_BF16, ROWS, INNER),
                              tensor_2d(w, DT_BF16, OUTER, INNER), NO_TENSOR, 0));
        must(s, s->op->lane.mark(s->lane, s->step + 1));
    }
}

/* Waits for the queued products. Returns their TFLOP/s without attention beside them. */
static double
empty_beside(void)
{
    struct side *s = &b.beside;
    uint64_t n = s->op->lane.done(s->lane);
    nsec from = clock_now();

    while (s->op->lane.done(s->lane) < s->step) must(s, s->op->lane.error(s->lane));
    return (double)(s->step - n) * PRODUCT / (double)(clock_now() - from) / 1e3;
}

/* Opens a lane on the SMs that fast does not use. */
static void
open_beside(uint32_t sms)
{
    struct side *s = &b.beside;
    char *x = (char *)b.acts.base + ACTS - 2 * ROWS * (INNER + OUTER);

    *s = (struct side){ .gpu = b.fast.gpu, .op = b.fast.op };
    must(s, s->op->lane.open(s->gpu, gpu_facts(s->gpu).units, &s->lane, &b.e));
    must(s, s->op->lane.part(s->lane, 0, sms));
    must(s, s->op->mem.fill_random(s->lane, tensor_2d(x, DT_BF16, ROWS, INNER), 6, 0, 0, 1));
    for (int i = 0; i < 2; i++) {
        fill_beside();
        printf(i ? "%u other SMs: %.0f TFLOP/s\n" : "", sms, empty_beside());
    }
}

static void
measure(const struct work *w)
{
    const struct shape *s = w->s;
    struct side *side = &b.fast;
    double keys = s->window ? MIN(s->len, s->window + s->kept) : s->len, us[RUNS], flop = 0;
    double bytes = keys * s->seqs * s->kv_heads * s->dim * 4;
    uint32_t n = MAX(w->layers, (uint32_t)8);
    struct graph *g;
    uint64_t taken;

    n *= 1 + (uint32_t)(2e-3 / (bytes / 4e12 * n + 1e-5)); /* at least 2 ms */
    n = MIN(n, 2048u);                                     /* limit of a graph */
    if (s->rows > 1) n = 8;
    must(side, side->op->graph.begin(side->lane));
    for (uint32_t i = 0; i < n; i++) attend(side, w, w->a.out, i);
    must(side, side->op->graph.end(side->lane, &g, &taken));
    b.n_done = 0, b.during = 0;
    for (int segment = -2; segment < RUNS; segment++) {
        uint64_t done;
        double v;
        int at = segment;
        nsec from;

        if (b.beside.lane) fill_beside();
        done = b.beside.lane ? side->op->lane.done(b.beside.lane) : 0;
        from = clock_now();
        must(side, side->op->graph.launch(side->lane, g));
        wait_lane(side);
        v = (double)(clock_now() - from) / 1e3 / n;
        if (segment < 0) continue;
        if (b.beside.lane) b.n_done += side->op->lane.done(b.beside.lane) - done;
        b.during += clock_now() - from;
        for (; at > 0 && us[at - 1] > v; at--) us[at] = us[at - 1];
        us[at] = v;
    }
    if (b.beside.lane) empty_beside();
    side->op->graph.drop(side->lane, g);
    for (uint32_t i = 0; i < s->rows; i++) flop += s->len - (s->causal ? s->rows - 1 - i : 0);
    flop *= 4.0 * s->seqs * s->kv_heads * s->group * s->dim;
    printf("{\"bench\":\"attend\",\"case\":\"%s\",\"value\":%.1f,\"unit\":\"us\",\"n\":%d,\"min\":%"
           ".1f,"
           "\"median\":%.1f,\"max\":%.1f,\"%s\":%.4g",
           s->name, us[RUNS / 2], RUNS, us[0], us[RUNS / 2], us[RUNS - 1],
           s->rows == 1 ? "tb_s" : "tflop_s", (s->rows == 1 ? bytes : flop) / us[RUNS / 2] / 1e6);
    if (b.beside.lane)
        printf(",\"beside_tflop_s\":%.4g", (double)b.n_done * PRODUCT / (double)b.during / 1e3);
    printf("}\n");
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    struct gpu_options o = { .device = "cuda" }, any;
    const char *only = "*";
    bool beside = false;
    uint32_t part = 0;

    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : NULL;

        if (!strcmp(argv[i], "--beside")) {
            beside = true;
            continue;
        }
        if (!strcmp(argv[i], "--invariant")) {
            o.invariant = true;
            continue;
        }
        if (v && !strcmp(argv[i], "--device")) {
            o.device = v;
        } else if (v && !strcmp(argv[i], "--kernel")) {
            o.kernels = v;
        } else if (v && !strcmp(argv[i], "--only")) {
            only = v;
        } else if (v && !strcmp(argv[i], "--part")) {
            part = (uint32_t)strtoul(v, NULL, 10);
        } else {
            fprintf(stderr, "bench_attend: unknown option %s\n", argv[i]);
            return 1;
        }
        i++;
    }
    any = o;
    any.kernels = "attend=generic";
    open_side(&b.any, any);
    open_side(&b.fast, o);
    if (part)
        must(&b.fast, b.fast.op->lane.part(b.fast.lane, gpu_facts(b.fast.gpu).units - part, part));
    must(&b.any, b.any.op->mem.arena_make(b.any.gpu, "kv", POOL, &b.kv, &b.e));
    must(&b.any, b.any.op->mem.arena_make(b.any.gpu, "acts", ACTS, &b.acts, &b.e));
    must(&b.any, b.any.op->mem.fill_random(
                     b.any.lane, tensor_2d(b.kv.base, DT_BF16, POOL / 8192, 4096), 1, 0, 0, 1));
    wait_lane(&b.any);
    if (part && beside) open_beside(gpu_facts(b.fast.gpu).units - part);
    b.host = malloc(ACTS);
    if (!b.host) return 1;
    printf("%s%s\n", gpu_facts(b.any.gpu).describe, o.invariant ? ", invariant" : "");
    for (uint32_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct work w;

        if (fnmatch(only, shapes[i].name, 0) != 0) continue;
        make_work(&w, &shapes[i]);
        compare(&w);
        measure(&w);
    }
    if (b.beside.lane) b.beside.op->lane.close(b.beside.lane);
    b.any.op->mem.arena_drop(b.any.gpu, &b.kv);
    b.any.op->mem.arena_drop(b.any.gpu, &b.acts);
    b.fast.op->lane.close(b.fast.lane);
    b.any.op->lane.close(b.any.lane);
    gpu_close(b.fast.gpu);
    gpu_close(b.any.gpu);
    free(b.host);
    return 0;
}
