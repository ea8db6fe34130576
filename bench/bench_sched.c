/* bench_sched.c - time of the scheduler per step, on the engine thread.
 *
 * One measurement is the plan of a step in which every sequence decodes one token, and the commit
 * of the previous step, as in the worker. There are four KV groups. Positions are spread: in each
 * step 1 sequence of 16 crosses a block boundary in each group. 100 requests wait for KV blocks.
 * The shapes show whether the time depends on anything but the batch: on the context (blocks per
 * table) or the arena (number of blocks). An allocation during a step is an error.
 *
 * Also measured: finding a prefix of 32,000 tokens in blocks of 32, with hashing and comparison,
 * with warm and with cold processor caches; bound: 40 us warm.
 *
 * Prints a table, then JSON lines (bench/README.md). The bound is 60 us per step for 1,000
 * sequences: the device step that hides this time takes 2 ms and more.
 */
#include "base/base.h"
#include "base/clock.h"
#include "worker/kv/kv_reuse.h"
#include "worker/sched/scheduler.h"

#include <stdio.h>
#include <sys/mman.h>

enum {
    TOKENS = 16,
    STEPS = 1920,
    N_GROUPS = 4,
    MAX_SEQS = 1000,
    WAITING = 100,
    ROWS = 8192,
    CHUNK = 512,
    LOOKUPS = 99
};

#define HUGE_PAGE ((uintptr_t)2 << 20)

struct shape {
    uint32_t seqs, blocks; /* running sequences; blocks per table at the end of the measurement */
    uint32_t spare;        /* unused part of the arena, in percent of the used one */
    bool split;            /* a separate decode lane */
};
static const struct shape shapes[] = {
    { 125, 2048, 0, false },  { 250, 2048, 0, false },  { 500, 2048, 0, false },
    { 1000, 2048, 0, false }, { 1000, 8192, 0, false }, { 1000, 2048, 200, false },
    { 1000, 2048, 0, true },
};

static uint64_t allocations;
static bool counting;
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *
__wrap_malloc(size_t n)
{
    allocations += counting;
    return __real_malloc(n);
}

void *
__wrap_calloc(size_t n, size_t size)
{
    allocations += counting;
    return __real_calloc(n, size);
}

void *
__wrap_realloc(void *p, size_t n)
{
    allocations += counting;
    return __real_realloc(p, n);
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static struct kv_group
group(enum kv_kind kind, uint32_t window, uint32_t n_layers, uint32_t blocks)
{
    return (struct kv_group){ .kind = kind,
                              .window = window,
                              .n_layers = n_layers,
                              .n_parts = 2,
                              .slice_bytes = 16 << 10,
                              .max_entries = blocks };
}

static void
must(int r, const struct err *e)
{
    if (r >= 0) return;
    fprintf(stderr, "bench_sched: %s\n", e->text);
    exit(1);
}

struct engine {
    struct scheduler *s;
    struct batch *batch[2];
    uint8_t n_tokens[MAX_SEQS];
    token_id token[MAX_SEQS * (1 + MAX_DRAFT)];
    void *mem;
    struct request { /* aligned as in worker/io/request.h */
        _Alignas(CACHE_LINE) struct seq seq;
    } * request;
    token_id *all; /* tokens of every sequence; their values do not matter */
};

/* Sets the results of the device. */
static void
sample(struct engine *e, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_segments; i++)
        e->n_tokens[i] = (b->segment[i].flags & SEGMENT_SAMPLE) != 0;
}

static void
commit(struct engine *e, const struct batch *b)
{
    struct batch_result r = {
        .step = b->step, .lane = b->lane, .n_tokens = e->n_tokens, .token = e->token
    };

    scheduler_commit(e->s, b, &r, 0);
}

static void
begin(struct engine *e, const struct shape *shape)
{
    uint32_t len = shape->blocks * TOKENS, n = shape->seqs + WAITING;
    struct kv_config c = { .n_groups = N_GROUPS,
                           .n_slots = n,
                           .n_lanes = shape->split ? 2 : 1,
                           .tokens_per_block = TOKENS };
    struct scheduler_limits l = { .max_seqs = n,
                                  .max_tokens = ROWS,
                                  .max_chunk = CHUNK,
                                  .max_len = len,
                                  .n_lanes = (uint8_t)c.n_lanes,
                                  .lane_work = { WORK_PREFILL, WORK_DECODE } };
    double steps = 0;
    struct kv *kv;
    uintptr_t huge;
    struct err err;

    if (!shape->split) l.lane_work[0] |= WORK_DECODE;
    c.group[0] = group(KV_FULL, 0, 10, shape->blocks);
    c.group[1] = group(KV_WINDOW, 1024, 30, shape->blocks);
    c.group[2] = group(KV_WINDOW, 4096, 20, shape->blocks);
    c.group[3] = group(KV_WINDOW, 512, 20, shape->blocks);
    c.group[0].max_blocks = shape->seqs * shape->blocks; /* the other sequences wait */
    for (uint32_t g = 0; g < N_GROUPS; g++) {
        uint64_t held = g ? (c.group[g].window + 2 * CHUNK) / TOKENS + 4 : shape->blocks;

        c.arena_bytes += held * c.group[g].n_layers * 2 * c.group[g].slice_bytes;
    }
    c.arena_bytes = c.arena_bytes * n / 100 * (100 + shape->spare);
    e->mem = calloc(1, kv_bytes(&c) + CACHE_LINE);
    e->request = aligned_alloc(CACHE_LINE, n * sizeof e->request[0]);
    e->all = calloc(len, sizeof e->all[0]);
    check(e->mem && e->request && e->all);
    huge = ROUND_UP((uintptr_t)e->mem, HUGE_PAGE); /* as worker/load/kv_memory.c */
    madvise((void *)huge, (uintptr_t)e->mem + kv_bytes(&c) - huge, MADV_HUGEPAGE);
    kv = kv_init((void *)ROUND_UP((uintptr_t)e->mem, (uintptr_t)CACHE_LINE), &c, &err);
    must(scheduler_new(&e->s, &l, kv, &err), &err);
    for (int i = 0; i < 2; i++) check((e->batch[i] = scheduler_batch(e->s)));
    for (uint32_t i = 0; i < shape->seqs; i++) steps += (double)len / (ROWS - i);
    for (uint32_t i = 0; i < n; i++) {
        /* The first sequences decode during the prefill of the last ones; all have equal lengths
         * then. */
        uint32_t prompt = len - STEPS - 2 * TOKENS - (uint32_t)MAX(steps, 0);

        e->request[i].seq = (struct seq){ .id = i,
                                          .token = e->all,
                                          .n_prompt = prompt,
                                          .max_new = len - prompt,
                                          .cap = len,
                                          .priority = 0.5f,
                                          .deadline = NSEC_NEVER };
        must(scheduler_add(e->s, &e->request[i].seq, 0, &err), &err);
        steps -= (double)len / (ROWS - i);
    }
}

/* Runs until all prompts are computed; no step is in flight then. */
static void
prefill(struct engine *e, const struct shape *shape)
{
    const struct seq *last = &e->request[shape->seqs - 1].seq;

    while (last->n_tokens == last->n_prompt) {
        for (unsigned lane = 0; lane <= shape->split; lane++) {
            if (scheduler_plan(e->s, lane, 0, e->batch[lane]) == 0) {
                check(lane > 0);
                continue;
            }
            sample(e, e->batch[lane]);
            commit(e, e->batch[lane]);
        }
    }
}

static void
end(struct engine *e)
{
    scheduler_free(e->s);
    batch_free(e->batch[0]);
    batch_free(e->batch[1]);
    free(e->request);
    free(e->all);
    free(e->mem);
}

/* Sets the microseconds of each step, sorted. */
static void
measure(const struct shape *shape, double us[STEPS])
{
    static struct engine e;
    unsigned lane = shape->split;

    begin(&e, shape);
    prefill(&e, shape);
    check(scheduler_plan(e.s, lane, 0, e.batch[0]) == 1);
    counting = true;
    for (uint32_t step = 0; step < STEPS; step++) {
        struct batch *next = e.batch[(step + 1) % 2];
        nsec start;

        sample(&e, e.batch[step % 2]);
        start = clock_now();
        check(scheduler_plan(e.s, lane, 0, next) == 1 && next->n_segments == shape->seqs);
        commit(&e, e.batch[step % 2]);
        us[step] = (double)(clock_now() - start) / 1000;
    }
    counting = false;
    end(&e);
    qsort(us, STEPS, sizeof us[0], by_value);
}

/* Caches one prompt in blocks of 32, then finds it again; us[cold][]. */
static void
measure_lookup(double us[2][LOOKUPS])
{
    enum { LENGTH = 32000 };
    struct kv_config c = { .n_groups = 1,
                           .n_slots = 1,
                           .n_lanes = 1,
                           .tokens_per_block = 32,
                           .arena_bytes = (uint64_t)64 << 30,
                           .reuse = true };
    token_id *token = calloc(LENGTH + 1, sizeof *token);
    struct kv_edit *edit = calloc(2 * LENGTH, sizeof *edit);
    struct kv_copy copy[8];
    struct kv_out out = { .edit = edit, .max_edits = 2 * LENGTH, .copy = copy, .max_copies = 8 };
    size_t others_bytes = (size_t)64 << 20;
    volatile uint8_t *others = calloc(1, others_bytes);
    struct kv_namespace namespace;
    struct kv_text text = { .token = token, .n = LENGTH + 1, .namespace = &namespace };
    struct kv_need need;
    struct kv_hit hit;
    struct err e;
    struct kv *kv;
    void *mem;

    c.group[0] = group(KV_FULL, 0, 32, LENGTH / 32 + 2);
    check((mem = calloc(1, kv_bytes(&c))) && token && edit && others);
    if (!(kv = kv_init(mem, &c, &e))) must(-1, &e);
    for (int i = 0; i <= LENGTH; i++) token[i] = (i * 7919) % 30011;
    kv_namespace(kv, 0, 0, NULL, 0, &namespace);
    need = kv_need(kv, LENGTH + 1, 0, LENGTH);
    check(kv_admit(kv, 0, &need, &text, &hit) == 0);
    kv_start(kv, 0, 1, 0, &out);
    kv_grow(kv, 0, 0, LENGTH + 1, &out);
    kv_fence(kv, 0, 0, 1);
    kv_done(kv, 0, 1);
    kv_release(kv, 0, &text, LENGTH);
    for (int cold = 0; cold < 2; cold++)
        for (int i = 0; i < LOOKUPS; i++) {
            nsec start;

            for (size_t at = 0; cold && at < others_bytes; at += CACHE_LINE) others[at]++;
            start = clock_now();
            kv_lookup(kv, &text, &hit);
            us[cold][i] = (double)(clock_now() - start) / 1000;
            check(hit.n_tokens == LENGTH);
        }
    for (int cold = 0; cold < 2; cold++) qsort(us[cold], LOOKUPS, sizeof us[0][0], by_value);
    free(token);
    free(edit);
    free((void *)(uintptr_t)others);
    free(mem);
}

int
main(void)
{
    static double lookup[2][LOOKUPS];
    static double us[ARRAY_LEN(shapes)][STEPS];

    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const struct shape *s = &shapes[i];

        measure(s, us[i]);
        printf(
            "%4u run, %u wait, %u blocks per table, %3u %% of the arena spare%s: %7.2f us per step "
            "(p99 %7.2f), %5.1f ns per sequence\n",
            s->seqs, WAITING, s->blocks, s->spare, s->split ? ", split" : "", us[i][STEPS / 2],
            us[i][STEPS * 99 / 100], us[i][STEPS / 2] * 1000 / s->seqs);
    }
    measure_lookup(lookup);
    printf("a prefix of 32,000 tokens: %.1f us warm, %.1f us cold\n", lookup[0][LOOKUPS / 2],
           lookup[1][LOOKUPS / 2]);
    printf("%llu allocations in %zu steps\n", (unsigned long long)allocations,
           ARRAY_LEN(shapes) * STEPS);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        printf(
            "{\"bench\":\"sched\",\"case\":\"plan and commit, %u sequences, %u blocks per table, "
            "%u %% "
            "spare%s\",\"value\":%.3f,\"unit\":\"us\",\"n\":%d,\"min\":%.3f,\"median\":%.3f,"
            "\"max\":%.3f}\n",
            shapes[i].seqs, shapes[i].blocks, shapes[i].spare,
            shapes[i].split ? ", partitions" : "", us[i][STEPS / 2], STEPS, us[i][0],
            us[i][STEPS / 2], us[i][STEPS - 1]);
    for (int cold = 0; cold < 2; cold++)
        printf("{\"bench\":\"sched\",\"case\":\"prefix lookup of 32000 tokens, "
               "%s\",\"value\":%.3f,\"unit\":\"us\",\"n\":%d,"
               "\"min\":%.3f,\"median\":%.3f,\"max\":%.3f}\n",
               cold ? "cold" : "warm", lookup[cold][LOOKUPS / 2], LOOKUPS, lookup[cold][0],
               lookup[cold][LOOKUPS / 2], lookup[cold][LOOKUPS - 1]);
    printf("{\"bench\":\"sched\",\"case\":\"allocations\",\"value\":%llu,\"unit\":\"allocations\","
           "\"n\":%zu,\"min\":0,\"median\":0,\"max\":0}\n",
           (unsigned long long)allocations, ARRAY_LEN(shapes) * STEPS);
    return allocations ? 1 : 0;
}
