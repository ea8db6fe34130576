/* bench_sched.c - what a turn of the scheduler costs the engine's thread, against sequences.
 *
 * One turn is plan and commit of a step in which every sequence decodes a token, with a step planned
 * ahead as the worker does. Prints a table for people, then JSON lines (CONTRACT 7). There is no peer to
 * compare with; the ceiling is the step it must hide behind, 2 ms and more.
 */
#include "base/base.h"
#include "base/clock.h"
#include "worker/sched/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 2000, ROUNDS = 9, LENGTH = TURNS + 200 };

struct shape {
    const char *name;
    uint32_t n_groups;
    bool split;
};

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static struct kv_group
group(enum kv_kind kind, uint32_t n_layers)
{
    return (struct kv_group){ .kind = kind,
                              .window = 1024,
                              .n_layers = n_layers,
                              .n_parts = 2,
                              .slice_bytes = 16 << 10,
                              .max_entries = LENGTH / 16 + 2 };
}

/* Microseconds a turn, once everybody's prompt is computed. */
static double
measure(const struct shape *shape, uint32_t n)
{
    struct kv_config c = { .n_groups = shape->n_groups,
                           .n_seats = n,
                           .n_lanes = shape->split ? 2 : 1,
                           .tokens_per_block = 16,
                           .arena_bytes = (uint64_t)1 << 40 };
    struct scheduler_limits l = { .max_seqs = n,
                                  .max_rows = 8192,
                                  .max_len = LENGTH + 1,
                                  .n_lanes = (uint8_t)c.n_lanes,
                                  .lane_work = { WORK_CONTEXT, WORK_GENERATION } };
    struct batch *b[2];
    struct scheduler *s;
    struct seq *q = calloc(n, sizeof *q);
    uint8_t *n_tokens = malloc(n);
    token_id *token = calloc((size_t)n * (1 + MAX_DRAFT), sizeof *token);
    unsigned lane = shape->split;
    struct err e;
    void *mem;
    nsec start = 0;

    if (!shape->split) l.lane_work[0] = WORK_CONTEXT | WORK_GENERATION;
    c.group[0] = group(KV_FULL, 10);
    c.group[1] = group(KV_WINDOW, 50);
    mem = calloc(1, kv_bytes(&c));
    check(q && n_tokens && token && mem);
    if (scheduler_new(&s, &l, kv_init(mem, &c, &e), &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    b[0] = scheduler_batch(s);
    b[1] = scheduler_batch(s);
    memset(n_tokens, 1, n);
    for (uint32_t i = 0; i < n; i++) {
        q[i] = (struct seq){ .id = i,
                             .token = calloc(LENGTH + 1, sizeof(token_id)),
                             .n_prompt = 8,
                             .max_new = LENGTH - 8,
                             .cap = LENGTH,
                             .priority = 0.5f,
                             .deadline = NSEC_NEVER };
        if (scheduler_add(s, &q[i], 0, &e) < 0) {
            fprintf(stderr, "%s\n", e.text);
            exit(1);
        }
    }
    check(scheduler_plan(s, 0, 0, b[0]) == 1 && b[0]->n_runs == n);
    scheduler_commit(s, b[0],
                     &(struct batch_result){ .step = 1, .n_tokens = n_tokens, .token = token }, 0);
    for (uint64_t turn = 0, step = shape->split ? 0 : 1; turn < TURNS; turn++) {
        struct batch *next = b[turn % 2], *last = b[(turn + 1) % 2];

        if (turn == 100) start = clock_now();
        check(scheduler_plan(s, lane, 0, next) == 1 && next->n_runs == n);
        if (turn == 0) continue;
        scheduler_commit(
            s, last,
            &(struct batch_result){
                .step = ++step, .lane = (uint8_t)lane, .n_tokens = n_tokens, .token = token },
            0);
    }
    start = clock_now() - start;
    scheduler_free(s);
    batch_free(b[0]);
    batch_free(b[1]);
    for (uint32_t i = 0; i < n; i++) free(q[i].token);
    free(q);
    free(n_tokens);
    free(token);
    free(mem);
    return (double)start / 1000 / (TURNS - 100);
}

int
main(void)
{
    static const struct shape shapes[] = { { "full", 1, false },
                                           { "full+window", 2, false },
                                           { "full+window,split", 2, true } };
    static const uint32_t seqs[] = { 16, 64, 256, 1000 };
    static double us[ARRAY_LEN(shapes)][ARRAY_LEN(seqs)][ROUNDS];

    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        for (size_t k = 0; k < ARRAY_LEN(seqs); k++) {
            for (int n = 0; n < ROUNDS; n++) us[i][k][n] = measure(&shapes[i], seqs[k]);
            qsort(us[i][k], ROUNDS, sizeof us[i][k][0], by_value);
            printf("%-18s %5u sequences: %8.2f us a turn, %5.1f ns a sequence\n", shapes[i].name,
                   seqs[k], us[i][k][ROUNDS / 2], us[i][k][ROUNDS / 2] * 1000 / seqs[k]);
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (size_t k = 0; k < ARRAY_LEN(seqs); k++)
            printf("{\"bench\":\"sched\",\"case\":\"%s/%u\",\"value\":%.3f,\"unit\":\"us/turn\","
                   "\"n\":%d,\"min\":%.3f,\"median\":%.3f,\"max\":%.3f}\n",
                   shapes[i].name, seqs[k], us[i][k][ROUNDS / 2], ROUNDS, us[i][k][0],
                   us[i][k][ROUNDS / 2], us[i][k][ROUNDS - 1]);
    return 0;
}
