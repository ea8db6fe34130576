/* bench_step.c - steps of the executor with and without graphs: time of host and device, idle time
 * between steps.
 *
 *     bench_step DIR [DEVICE]     DIR has the config.json of a model; weights are random, bf16
 *
 * S slots decode at a context of 1,024 tokens, and each step has a prompt of C tokens, or an
 * encoder input. Two steps are in flight, as in the worker. JSON lines: time from result to result,
 * of the host in exec_start(), idle time of the device between two steps; medians of 5 series of 20
 * steps. capture_us: the longest exec_start() with a capture, in the steps before.
 */
#include "base/clock.h"
#include "worker/arch/registry.h"
#include "worker/exec/exec.h"
#include "worker/exec/graphs.h"

#include <stdio.h>

enum {
    SLOTS = 40,
    CONTEXT = 1024,
    STEPS = 20,
    STRETCHES = 5,
    WARM = 20,
    ROWS = 256,
    SOURCES = 512
};
enum { LONGEST = CONTEXT + WARM + STEPS * STRETCHES + 8 };

static struct err e;

static void
try(int r, const char *what)
{
    if (r >= 0) return;
    fprintf(stderr, "bench_step: %s: %s\n", what, e.text);
    exit(1);
}

struct bench {
    struct gpu *gpu;
    struct model *m;
    struct kv_config kv;
    struct arena arena;
    uint64_t at[MAX_GROUPS]; /* slices before the blocks of a group */
    struct exec *x;
    struct batch *b;
    uint32_t n_gen, n_prompt;
    bool encoder, buckets;
    uint64_t step;
};

static void
open_kv(struct bench *k)
{
    uint64_t bytes = 0;

    try(model_groups(k->m, DT_BF16, 0, &k->kv, &e), "groups");
    k->kv.n_slots = SLOTS;
    k->kv.n_lanes = 1;
    for (uint32_t g = 0; g < k->kv.n_groups; g++) {
        struct kv_group *group = &k->kv.group[g];

        group->max_entries = CEIL_DIV(MAX((uint32_t)LONGEST, (uint32_t)ROWS),
                                      k->kv.tokens_per_block);
        bytes = ROUND_UP(bytes, (uint64_t)group->slice_bytes);
        k->at[g] = bytes / group->slice_bytes;
        bytes += (uint64_t)SLOTS * group->max_entries * group->n_layers * group->n_parts *
                 group->slice_bytes;
    }
    try(gpu_ops(k->gpu)->mem.arena_make(k->gpu, "kv", bytes, &k->arena, &e), "kv");
}

/* Fills every entry of every slot, max_edits per step. */
static void
fill_tables(struct bench *k)
{
    for (uint32_t g = 0; g < k->kv.n_groups; g++)
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            for (uint32_t i = 0; i < k->kv.group[g].max_entries; i++) {
                const struct kv_group *group = &k->kv.group[g];
                uint32_t block = slot * group->max_entries + i;

                k->b->edit[k->b->n_edits++] = (struct kv_edit){
                    .op = EDIT_SET,
                    .group = (uint8_t)g,
                    .slot = slot,
                    .entry = i,
                    .at = (slice_id)(k->at[g] + (uint64_t)block * group->n_layers * group->n_parts)
                };
            }
}

static void
add_run(struct bench *k, uint32_t slot, uint32_t n, uint32_t pos, uint32_t source)
{
    struct batch *b = k->b;

    b->segment[b->n_segments++] = (struct batch_segment){
        .slot = slot,
        .first_token = b->n_tokens,
        .n_tokens = n,
        .first_pos = (int32_t)pos,
        .flags = SEGMENT_SAMPLE,
        .first_logit = b->n_logits++,
        .cross_tokens = source,
    };
    for (uint32_t i = 0; i < n; i++, b->n_tokens++) {
        b->token[b->n_tokens] = pos ? TOKEN_FROM_LAST : (token_id)(1 + (slot + i) % 1000);
        b->pos[b->n_tokens] = (int32_t)(pos + i);
    }
}

/* Prompts use the last slots alternately. */
static void
plan(struct bench *k)
{
    uint32_t bucket[GRAPHS_BUCKETS], n = graphs_buckets(bucket, ROWS), i = 0;
    uint32_t slot = SLOTS - 1 - (uint32_t)(k->step % 4), length = k->encoder ? 512 : 0;
    struct batch *b = k->b;

    b->step = ++k->step;
    b->bucket = b->n_tokens = b->n_segments = b->n_logits = b->n_encode = 0;
    for (uint32_t s = 0; s < k->n_gen; s++) add_run(k, s, 1, CONTEXT + (uint32_t)k->step, length);
    if (k->n_prompt) add_run(k, slot, k->encoder ? 1 : k->n_prompt, 0, k->n_prompt);
    while (k->buckets && i < n && bucket[i] < b->n_tokens) i++;
    if (k->buckets && i < n) b->bucket = bucket[i];
    if (!k->encoder || !k->n_prompt) return;
    b->segment[b->n_segments - 1].flags |= SEGMENT_FIRST_CHUNK;
    b->segment[b->n_segments - 1].enc_tokens = k->n_prompt;
    b->encode[b->n_encode++] = (struct batch_encode){
        .slot = slot,
        .first_token = b->n_tokens,
        .n_tokens = k->n_prompt,
        .n_layers = (uint16_t)k->m->shape.n_encoder_layers,
    };
    for (uint32_t r = 0; r < k->n_prompt; r++, b->n_tokens++) {
        b->token[b->n_tokens] = (token_id)(1 + r % 1000);
        b->pos[b->n_tokens] = (int32_t)r;
    }
}

static void
finish(struct bench *k)
{
    const struct batch_result *r;
    int got;

    while ((got = exec_finish(k->x, 0, &r)) == -EAGAIN) continue;
    try(got < 0 ? got : r->status, "a step");
}

static int
ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double
median(double v[STRETCHES])
{
    qsort(v, STRETCHES, sizeof *v, ascending);
    return v[STRETCHES / 2];
}

static void
report(const struct bench *k, double step[STRETCHES], double host[STRETCHES],
       double idle[STRETCHES], nsec capture, uint64_t n_graphs, uint64_t bytes)
{
    double middle = median(step);

    printf("{\"bench\":\"step\",\"case\":\"%s, %u generate, %s of %u, "
           "%s\",\"value\":%.1f,\"unit\":\"us\","
           "\"n\":%d,\"min\":%.1f,\"median\":%.1f,\"max\":%.1f,\"host_us\":%.1f,\"idle_us\":%.1f,"
           "\"capture_us\":%.1f,\"graphs\":%u,\"graph_kib\":%u}\n",
           k->m->arch->name, k->n_gen, k->encoder ? "source" : "prompt", k->n_prompt,
           k->buckets ? "graphs" : "plain", middle, STRETCHES, step[0], middle, step[STRETCHES - 1],
           median(host), median(idle), (double)capture / 1e3, (unsigned)n_graphs,
           (unsigned)(bytes >> 10));
    fflush(stdout);
}

static void
measure(struct bench *k)
{
    struct exec_config c = { .max_tokens = ROWS,
                             .max_seqs = SLOTS,
                             .max_enc_tokens = k->encoder ? SOURCES : 0,
                             .max_edits = k->b->max_edits,
                             .n_lanes = 1,
                             .kv_dtype = DT_BF16,
                             .graphs_memory = k->buckets ? (uint64_t)2 << 30 : 0 };
    struct sampling how = {
        .top_p = 1, .repetition_penalty = 1, .forced_bos = -1, .forced_eos = -1, .max_new = LONGEST
    };
    double host[STRETCHES], step[STRETCHES], idle[STRETCHES];
    uint64_t n, bytes;
    nsec capture = 0;

    try(exec_open(&k->x, &c, k->gpu, k->m, &k->kv, &e), "executor");
    exec_blocks(k->x, &k->kv, &k->arena);
    for (uint32_t s = 0; s < SLOTS; s++) exec_set_sampling(k->x, s, &how);
    k->step = 0;
    k->b->n_edits = 0;
    fill_tables(k);
    for (int i = -1; i < STRETCHES; i++) {
        uint64_t gaps = 0, gap_ns = 0, gaps_end, ns_end;
        int steps = i < 0 ? WARM : STEPS;
        nsec begin = 0, spent = 0;

        for (int j = 0; j < steps; j++) {
            uint64_t before, after;
            nsec now;

            if (k->step >= 2) finish(k);
            exec_graphs(k->x, &before, &bytes);
            now = clock_now();
            if (j == 0) exec_gaps(k->x, &gaps, &gap_ns);
            if (j == 0) begin = now;
            plan(k);
            try(exec_start(k->x, k->b, &e), "start");
            k->b->n_edits = 0;
            now = clock_now() - now;
            spent += now;
            exec_graphs(k->x, &after, &bytes);
            if (after > before) capture = MAX(capture, now);
        }
        exec_gaps(k->x, &gaps_end, &ns_end);
        if (i < 0) continue;
        host[i] = (double)spent / steps / 1e3;
        step[i] = (double)(clock_now() - begin) / steps / 1e3;
        idle[i] = gaps_end > gaps ? (double)(ns_end - gap_ns) / (double)(gaps_end - gaps) / 1e3 : 0;
    }
    exec_graphs(k->x, &n, &bytes);
    finish(k);
    finish(k);
    exec_close(k->x);
    report(k, step, host, idle, capture, n, bytes);
}

int
main(int argc, char **argv)
{
    static const uint32_t gen[] = { 1, 32 }, prompt[] = { 0, 16, 64, 128, 192 };
    struct gpu_options o = { .device = argc > 2 ? argv[2] : "cuda", .isa = "auto", .timing = true };
    struct model_source src = { .dtype = DT_BF16, .random = true, .seed = 1, .weights_fd = -1 };
    struct bench k = { 0 };

    if (argc < 2) {
        fprintf(stderr, "usage: bench_step DIR [DEVICE]\n");
        return 2;
    }
    src.dir = argv[1];
    try(gpu_open(&k.gpu, &o, &e), "device");
    try(model_open(&k.m, &src, k.gpu, arch_families, &e), argv[1]);
    k.encoder = k.m->shape.n_encoder_layers > 0;
    open_kv(&k);
    k.b = batch_new(ROWS + SOURCES, SLOTS, SLOTS * MAX_GROUPS * 1024, SLOTS * MAX_GROUPS);
    if (!k.b) return 1;
    for (unsigned p = 0; p < ARRAY_LEN(prompt); p++)
        for (unsigned g = 0; g < ARRAY_LEN(gen); g++)
            for (int buckets = 0; buckets < 2; buckets++) {
                k.n_gen = gen[g];
                k.n_prompt = prompt[p];
                k.buckets = buckets;
                if (k.n_gen + k.n_prompt) measure(&k);
            }
    batch_free(k.b);
    gpu_ops(k.gpu)->mem.arena_drop(k.gpu, &k.arena);
    model_close(k.m);
    gpu_close(k.gpu);
    return 0;
}
