/* test_exec.c - batches made by hand against small models with random weights. */
#include "gpu/cpu/cpu.h"
#include "gpu/device.h"
#include "tests/exec/by_hand.h"
#include "tests/test.h"
#include "worker/exec/graphs.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The linker sends every allocation of this program here (--wrap); libraries keep theirs. */
static _Atomic bool counting;
static _Atomic unsigned n_allocations;
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);

void *
__wrap_malloc(size_t n)
{
    if (counting) n_allocations++;
    return __real_malloc(n);
}

void *
__wrap_calloc(size_t n, size_t each)
{
    if (counting) n_allocations++;
    return __real_calloc(n, each);
}

void *
__wrap_realloc(void *p, size_t n)
{
    if (counting) n_allocations++;
    return __real_realloc(p, n);
}

/* A device that captures, on the CPU: what is queued while a graph is recorded is kept, and queued again
 * when the graph is run. Anything that such a graph needs and that is not where it was shows. */
struct graph {
    uint32_t n;
    struct recorded {
        cpu_run run;
        unsigned char args[CPU_ARGS];
        size_t bytes;
        uint32_t parts;
    } op[200];
};
static struct graph *recording;
static unsigned n_captured, n_replayed, n_dropped;
static uint64_t graph_bytes;
static bool captures_fail;
int __real_cpu_queue(struct lane *l, cpu_run run, const void *args, size_t bytes, uint32_t parts);
int __wrap_cpu_queue(struct lane *l, cpu_run run, const void *args, size_t bytes, uint32_t parts);

int
__wrap_cpu_queue(struct lane *l, cpu_run run, const void *args, size_t bytes, uint32_t parts)
{
    struct recorded *r;

    if (!recording) return __real_cpu_queue(l, run, args, bytes, parts);
    assert_true(recording->n < ARRAY_LEN(recording->op));
    r = &recording->op[recording->n++];
    *r = (struct recorded){ .run = run, .bytes = bytes, .parts = parts };
    memcpy(r->args, args, bytes);
    return 0;
}

static int
graph_begin(struct lane *l)
{
    (void)l;
    assert_null(recording);
    recording = calloc(1, sizeof *recording);
    return 0;
}

static int
graph_end(struct lane *l, struct graph **ret, uint64_t *bytes)
{
    (void)l;
    n_captured++;
    *ret = recording;
    *bytes = graph_bytes;
    recording = NULL;
    if (!captures_fail) return 0;
    free(*ret);
    *ret = NULL;
    return -ENOMEM;
}

static int
graph_run(struct lane *l, struct graph *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        TRY(__real_cpu_queue(l, g->op[i].run, g->op[i].args, g->op[i].bytes, g->op[i].parts));
    n_replayed++;
    return 0;
}

static void
graph_drop(struct lane *l, struct graph *g)
{
    (void)l;
    free(g);
    n_dropped++;
}

static void
captures(struct gpu *g)
{
    g->graphs = true;
    g->checked.graph_begin = graph_begin;
    g->checked.graph_end = graph_end;
    g->checked.graph_run = graph_run;
    g->checked.graph_drop = graph_drop;
    n_captured = n_replayed = n_dropped = 0;
}

static const char LLAMA[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 300, \"hidden_size\": 32, \"intermediate_size\": "
    "64,"
    " \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 512}";
static const char WIDE[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 131072, \"hidden_size\": 8,"
    " \"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 1,"
    " \"max_position_embeddings\": 512}";
static const char T5[] =
    "{\"model_type\": \"t5\", \"vocab_size\": 200, \"d_model\": 24, \"d_kv\": 8, \"num_heads\": 2,"
    " \"d_ff\": 40, \"num_layers\": 3, \"num_decoder_layers\": 1,"
    " \"feed_forward_proj\": \"gated-gelu\", \"decoder_start_token_id\": 0}";

static struct hand h;
static char dir[64];

/* A model directory of a config alone. */
static void
open_model(const char *config, struct hand_options o)
{
    char path[128];
    FILE *f;

    snprintf(dir, sizeof dir, "/tmp/lagan-exec-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(config, f);
    fclose(f);
    o.dir = dir;
    o.random = 7;
    if (!o.tokens_per_block) o.tokens_per_block = 16;
    if (!o.n_lanes) o.n_lanes = 1;
    if (!o.max_rows) o.max_rows = 64;
    hand_open(&h, &o);
    unlink(path);
    rmdir(dir);
}

/* Seat i: n given tokens, some pattern of its own, then n_new to generate. */
static struct hand_seat *
sit(uint32_t i, uint32_t n, uint32_t n_new)
{
    struct hand_seat *s = &h.seat[i];

    memset(s, 0, sizeof *s);
    for (uint32_t k = 0; k < n; k++) s->token[k] = (token_id)((i * 37 + k * k * 11 + 5) % 200);
    s->n_prompt = n;
    s->n_new = n_new;
    s->active = true;
    s->how = (struct sampling){
        .top_p = 1, .repetition = 1, .want_logprobs = true, .forced_bos = -1, .forced_eos = -1
    };
    return s;
}

/* What was generated and how likely it was; then the model is closed. */
struct made {
    token_id token[HAND_SEATS][HAND_LEN];
    float logprob[HAND_SEATS][HAND_LEN];
};

static void
take(struct made *m)
{
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < HAND_SEATS; i++) {
        const struct hand_seat *s = &h.seat[i];

        memcpy(m->token[i], s->token, sizeof s->token);
        memcpy(m->logprob[i], s->logprob, sizeof s->logprob);
    }
    hand_close(&h);
}

static struct made a, b;

static void
two_steps_out_give_what_one_at_a_time_gives(void **state)
{
    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        open_model(LLAMA, (struct hand_options){ .twice = twice, .max_rows = 7 });
        for (uint32_t i = 0; i < 5; i++) sit(i, 3 + 9 * i, 20);
        hand_run(&h);
        take(twice ? &b : &a);
    }
    assert_memory_equal(&a, &b, sizeof a);
}

static const token_id SOURCE[] = { 5, 9, 100, 42, 42, 7, 199, 3, 77, 61, 12, 1 };

static void
an_encoder_in_layer_slices_gives_what_it_gives_whole(void **state)
{
    (void)state;
    for (uint32_t layers = 0; layers < 3; layers++) {
        open_model(T5, (struct hand_options){ .enc_layers = layers });
        for (uint32_t i = 0; i < 4; i++) {
            struct hand_seat *s = sit(i, 1 + i, 12);

            s->source = SOURCE;
            s->n_source = 3 * (i + 1);
        }
        hand_run(&h);
        take(layers ? &b : &a);
        if (layers) assert_memory_equal(&a, &b, sizeof a);
    }
}

static void
another_source_gives_other_tokens(void **state)
{
    (void)state;
    open_model(T5, (struct hand_options){ 0 });
    for (uint32_t i = 0; i < 2; i++) {
        struct hand_seat *s = sit(i, 1, 12);

        s->token[0] = 0;
        s->source = SOURCE + i;
        s->n_source = 6;
    }
    hand_run(&h);
    take(&a);
    assert_memory_not_equal(a.logprob[0], a.logprob[1], sizeof a.logprob[0]);
}

static void
forced_tokens_come_first_and_last_whatever_the_logits(void **state)
{
    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    sit(0, 6, 5);
    sit(1, 6, 5)->how.forced_bos = 250;
    sit(2, 6, 5)->how.forced_eos = 251;
    sit(3, 6, 1)->how.forced_bos = 250;
    h.seat[3].how.forced_eos = 251;
    for (uint32_t i = 1; i < 4; i++) memcpy(h.seat[i].token, h.seat[0].token, 6 * sizeof(token_id));
    hand_run(&h);
    take(&a);
    assert_int_not_equal(a.token[0][6], 250);
    assert_int_equal(a.token[1][6], 250);
    assert_int_equal(a.token[2][6], a.token[0][6]);
    assert_int_not_equal(a.token[2][9], 251);
    assert_int_equal(a.token[2][10], 251);
    assert_int_equal(a.token[3][6], 251); /* both at once: the end wins */
}

static void
end_tokens_do_not_come_before_the_minimum(void **state)
{
    enum { VOCAB = 300, NEW = 6, MIN = 3 };
    static float lp[(6 + NEW) * VOCAB];
    struct hand_seat *s;

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    sit(0, 6, 1);
    hand_run(&h);
    h.seat[0].active = false;
    s = sit(1, 6, NEW);
    memcpy(s->token, h.seat[0].token, 6 * sizeof(token_id));
    s->lp = lp;
    s->how.n_logprobs = VOCAB;
    s->how.eos[0] = 299;
    s->how.eos[1] = h.seat[0].token[6]; /* it would come at once */
    s->how.n_eos = 2;
    s->how.min_new = MIN;
    hand_run(&h);
    for (uint32_t k = 0; k < NEW; k++)
        for (uint32_t i = 0; i < VOCAB; i++)
            assert_int_equal(isinf(lp[(5 + k) * VOCAB + i]) != 0,
                             k < MIN && (i == 299 || i == (uint32_t)s->how.eos[1]));
    assert_int_not_equal(s->token[6], s->how.eos[1]);
    hand_close(&h);
}

static void
a_repetition_penalty_counts_prompt_and_generated_tokens(void **state)
{
    struct hand_seat *s;

    (void)state;
    open_model(LLAMA, (struct hand_options){ .twice = true, .max_rows = 5 });
    s = sit(3, 12, 40);
    s->how.repetition = 1e6f;
    sit(4, 12, 40);
    hand_run(&h);
    for (uint32_t i = 12; i < 52; i++)
        for (uint32_t k = 0; k < i; k++) assert_int_not_equal(s->token[i], s->token[k]);
    /* the next request in the seat begins with a clean history */
    memcpy(a.token[0], s->token, sizeof s->token);
    s->planned = 0;
    hand_run(&h);
    assert_memory_equal(a.token[0], s->token, sizeof s->token);
    hand_close(&h);
}

static void
a_drawn_token_depends_on_seed_output_and_position_alone(void **state)
{
    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    for (uint32_t i = 0; i < 4; i++) {
        struct hand_seat *s = sit(i, 9, 30);

        memcpy(s->token, h.seat[0].token, 9 * sizeof(token_id));
        s->how.temperature = 1;
        s->how.seed = 1234 + (i == 2);
        s->how.output = i == 3;
    }
    hand_run(&h);
    take(&a);
    assert_memory_equal(a.token[0], a.token[1], sizeof a.token[0]);
    assert_memory_not_equal(a.token[0], a.token[2], sizeof a.token[0]);
    assert_memory_not_equal(a.token[0], a.token[3], sizeof a.token[0]);
    open_model(LLAMA, (struct hand_options){ .max_rows = 2, .twice = true });
    sit(7, 9, 30)->how.temperature = 1;
    memcpy(h.seat[7].token, a.token[0], 9 * sizeof(token_id));
    h.seat[7].how.seed = 1234;
    hand_run(&h);
    take(&b);
    assert_memory_equal(a.token[0], b.token[7], sizeof a.token[0]);
}

/* So hot that every token is as likely as the next: what differs from draw to draw is the noise. */
static void
noise_is_another_at_every_position(void **state)
{
    struct hand_seat *s;
    uint32_t same = 0;

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    s = sit(0, 9, 40);
    s->how.temperature = 1e9f;
    hand_run(&h);
    for (uint32_t k = 10; k < 49; k++) same += s->token[k] == s->token[k - 1];
    assert_true(same < 5);
    hand_close(&h);
}

/* More rows of logits than are held at once: this vocabulary allows 64. */
static void
log_probabilities_of_a_long_prompt_come_in_pieces(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct hand_seat *s;

        open_model(WIDE, (struct hand_options){ .max_rows = i ? 50 : 200 });
        s = sit(0, 150, 2);
        s->all = true;
        s->how.n_prompt_logprobs = 5;
        hand_run(&h);
        take(i ? &b : &a);
    }
    assert_memory_equal(&a, &b, sizeof a);
    for (uint32_t k = 1; k < 152; k++) assert_true(a.logprob[0][k] < 0);
}

static void
a_seat_moves_to_another_lane_behind_the_step_it_waits_for(void **state)
{
    enum { N = 400 }; /* long enough for the other lane to overtake */
    const struct batch_result *r;
    struct err e = { 0 };
    struct batch *t;

    (void)state;
    open_model(LLAMA, (struct hand_options){ .max_rows = N });
    sit(0, N, 3);
    hand_run(&h);
    take(&a);
    open_model(LLAMA, (struct hand_options){ .n_lanes = 2, .max_rows = N });
    sit(0, N, 3);
    exec_seat(h.x, 0, &h.seat[0].how);
    /* the prompt on lane 0, then a token on lane 1, then one on lane 0 */
    for (uint32_t k = 0; k < 3; k++) {
        unsigned lane = k % 2;

        t = hand_batch(&h, lane);
        hand_edits(&h, t, 0, N + k);
        t->n_rows = k ? 1 : N;
        for (uint32_t i = 0; i < t->n_rows; i++) {
            t->token[i] = k ? TOKEN_FROM_LAST : h.seat[0].token[i];
            t->pos[i] = (int32_t)(k ? N - 1 + k : i);
        }
        t->run[0] =
            (struct batch_run){ .n_rows = t->n_rows, .first_pos = t->pos[0], .flags = RUN_SAMPLE };
        t->n_runs = t->n_logits = 1;
        if (k) {
            t->wait[0] = (struct batch_wait){ .lane = (uint8_t)(1 - lane),
                                              .step = h.started[1 - lane] };
            t->n_waits = 1;
        }
        assert_int_equal(exec_start(h.x, t, &e), 0);
        h.started[lane]++;
    }
    r = hand_finish(&h, 0);
    assert_int_equal(r->token[0], a.token[0][N]);
    r = hand_finish(&h, 1);
    assert_int_equal(r->token[0], a.token[0][N + 1]);
    r = hand_finish(&h, 0);
    assert_int_equal(r->token[0], a.token[0][N + 2]);
    hand_close(&h);
}

/* Seat 0's tokens, prompt and generated, are known; now a seat is given one of them at its position. */
enum { WALKED = 20, WALKED_TO = 26 };

static struct gpu_ops counter; /* the device's, but for copy_blocks */
static int (*copies)(struct lane *l, const struct block_copy *copy, const struct block_copy *same,
                     uint32_t n, size_t bytes);
static unsigned n_launches;

static int
copy_and_count(struct lane *l, const struct block_copy *copy, const struct block_copy *same,
               uint32_t n, size_t bytes)
{
    n_launches++;
    return copies(l, copy, same, n, bytes);
}

static void
counts_copies(struct gpu *g)
{
    counter = *g->device;
    copies = counter.copy_blocks;
    counter.copy_blocks = copy_and_count;
    g->device = &counter;
    n_launches = 0;
}

static void
walk_seat_0(void)
{
    open_model(LLAMA, (struct hand_options){ .tokens_per_block = 8, .opened = counts_copies });
    sit(0, WALKED, WALKED_TO - WALKED);
    hand_run(&h);
    for (uint32_t i = 1; i < 4; i++) exec_seat(h.x, i, &h.seat[0].how);
}

/* The log-probability of what comes next. */
static float
next_of(struct batch *t, uint32_t seat, uint32_t position)
{
    struct err e = { 0 };

    t->token[0] = h.seat[0].token[position];
    t->pos[0] = (int32_t)position;
    t->run[0] = (struct batch_run){
        .seat = seat, .n_rows = 1, .first_pos = t->pos[0], .flags = RUN_SAMPLE
    };
    t->n_rows = t->n_runs = t->n_logits = 1;
    if (exec_start(h.x, t, &e) < 0) fail_msg("%s", e.text);
    h.started[0]++;
    return hand_finish(&h, 0)->logprob[0];
}

static void
edit_row(struct batch *t, uint32_t to, uint32_t from)
{
    t->edit[t->n_edits++] = (struct kv_edit){ .op = EDIT_ROW, .seat = to, .entry = from };
}

static void
edit_entry(struct batch *t, uint32_t seat, uint32_t entry, slice_id at)
{
    t->edit[t->n_edits++] =
        (struct kv_edit){ .op = EDIT_SET, .seat = seat, .entry = entry, .at = at };
}

static void
copy_blocks(struct batch *t, uint32_t to, uint32_t from, bool after)
{
    for (uint32_t i = 0; i < CEIL_DIV(WALKED_TO, 8); i++)
        t->copy[t->n_copies++] = (struct batch_copy){ .from = hand_block(&h, 0, from, i),
                                                      .to = hand_block(&h, 0, to, i),
                                                      .after = after };
}

static void
a_seat_with_a_copied_table_row_reads_the_same_blocks(void **state)
{
    struct batch *t;
    slice_id other;

    (void)state;
    walk_seat_0();
    other = hand_block(&h, 0, 3, 0);
    t = hand_batch(&h, 0);
    edit_entry(t, 1, 0, other); /* overwritten by the row */
    edit_row(t, 1, 0);
    edit_row(t, 2, 1); /* a copy of the copy */
    edit_row(t, 3, 2);
    edit_entry(t, 2, 1, other);                                   /* and then one of its own */
    t->edit[t->n_edits++] = (struct kv_edit){ .op = EDIT_LABEL }; /* the manifest's */
    edit_entry(t, 2, 2, other);
    assert_true(next_of(t, 1, WALKED) == h.seat[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 3); /* each reads what the one before it wrote */
    assert_true(next_of(hand_batch(&h, 0), 3, WALKED + 1) == h.seat[0].logprob[WALKED + 2]);
    t = hand_batch(&h, 0);
    edit_row(t, 2, 3);
    edit_row(t, 3, 1); /* 3 is read before it is written */
    assert_true(next_of(t, 2, WALKED + 2) == h.seat[0].logprob[WALKED + 3]);
    hand_close(&h);
}

static void
what_is_written_into_a_copied_block_is_not_seen_in_the_other(void **state)
{
    struct batch *t;
    token_id was;

    (void)state;
    walk_seat_0();
    t = hand_batch(&h, 0);
    hand_edits(&h, t, 1, WALKED_TO);
    copy_blocks(t, 1, 0, /* after= */ false);
    assert_true(next_of(t, 1, WALKED) == h.seat[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 1); /* all of them at once */
    was = h.seat[0].token[WALKED];
    h.seat[0].token[WALKED] = (was + 1) % 200;
    next_of(hand_batch(&h, 0), 1, WALKED); /* its own block has another token's K and V now */
    h.seat[0].token[WALKED] = was;
    assert_true(next_of(hand_batch(&h, 0), 0, WALKED + 1) == h.seat[0].logprob[WALKED + 2]);
    hand_close(&h);
}

/* A block may be given back and taken again within a batch: read for one copy, written by the next. */
static void
block_copies_are_done_in_order(void **state)
{
    struct batch *t;

    (void)state;
    walk_seat_0();
    t = hand_batch(&h, 0);
    hand_edits(&h, t, 1, WALKED_TO);
    hand_edits(&h, t, 2, WALKED_TO);
    copy_blocks(t, 1, 0, /* after= */ false);
    copy_blocks(t, 2, 1, /* after= */ false);
    copy_blocks(t, 1, 3, /* after= */ false); /* nothing was ever written there */
    assert_true(next_of(t, 2, WALKED) == h.seat[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 3);
    hand_close(&h);
}

static void
a_copy_that_comes_after_the_step_has_what_the_step_wrote(void **state)
{
    struct batch *t;
    float next;

    (void)state;
    walk_seat_0();
    t = hand_batch(&h, 0);
    hand_edits(&h, t, 1, WALKED_TO);
    hand_edits(&h, t, 2, WALKED_TO);
    copy_blocks(t, 2, 1, /* after= */ true);
    copy_blocks(t, 1, 0, /* after= */ false);
    h.seat[0].token[WALKED] ^= 1; /* seat 1 writes another one's K and V there */
    next_of(t, 1, WALKED);
    next = next_of(hand_batch(&h, 0), 1, WALKED + 1);
    assert_true(next_of(hand_batch(&h, 0), 2, WALKED + 1) == next);
    assert_true(next != h.seat[0].logprob[WALKED + 2]);
    hand_close(&h);
}

static void
a_result_stays_through_one_more_start(void **state)
{
    const struct batch_result *r;
    struct err e = { 0 };
    token_id token;

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    sit(0, 1, 1);
    exec_seat(h.x, 0, &h.seat[0].how);
    for (uint32_t k = 0; k < 4; k++) {
        struct batch *t = hand_batch(&h, 0);

        hand_edits(&h, t, 0, 1 + k);
        t->token[0] = k ? TOKEN_FROM_LAST : 4;
        t->pos[0] = (int32_t)k;
        t->run[0] = (struct batch_run){ .n_rows = 1, .first_pos = t->pos[0], .flags = RUN_SAMPLE };
        t->n_rows = t->n_runs = t->n_logits = 1;
        if (k == 2) {
            r = hand_finish(&h, 0);
            token = r->token[0];
        }
        if (k == 3) hand_finish(&h, 0);
        assert_int_equal(exec_start(h.x, t, &e), 0);
        h.started[0]++;
        if (k == 2) {
            assert_int_equal(r->step, 1);
            assert_int_equal(r->token[0], token);
        }
    }
    hand_finish(&h, 0);
    hand_finish(&h, 0);
    assert_int_equal(exec_finish(h.x, 0, &r), -EAGAIN);
    hand_close(&h);
}

/* Seats that come and go: prompts of many lengths, ends at many steps, drawn and penalised ones, bans. */
static void
sit_mixed(bool encoder)
{
    for (uint32_t i = 0; i < 11; i++) {
        struct hand_seat *s = sit(i, 1 + 2 * i % 7, 5 + 4 * i);

        s->late = 3 * (i / 2);
        if (encoder) {
            s->source = SOURCE;
            s->n_source = 1 + i;
        }
        s->how.seed = i;
        s->how.temperature = i % 3 ? 0 : 0.8f;
        s->how.repetition = i % 4 ? 1 : 1.3f;
        s->how.n_logprobs = i % 5 ? 0 : 3;
        s->how.first_new = s->n_prompt;
        s->how.min_new = i % 2 ? 6 : 0;
        s->how.n_eos = 2;
        s->how.eos[0] = 3;
        s->how.eos[1] = (int32_t)(i + 50);
    }
}

static void
a_captured_step_gives_what_a_plain_one_gives(void **state)
{
    static const char *const config[] = { LLAMA, T5 };

    (void)state;
    for (int c = 0; c < 2; c++)
        for (int lanes = 1; lanes <= 2; lanes++) {
            struct hand_options o = { .twice = true, .n_lanes = (uint32_t)lanes };
            uint64_t n, bytes;

            open_model(config[c], o);
            sit_mixed(c == 1);
            hand_run(&h);
            take(&a);

            o.buckets = true;
            o.opened = captures;
            o.graphs_memory = 1 << 20;
            graph_bytes = 1000;
            open_model(config[c], o);
            sit_mixed(c == 1);
            hand_run(&h);
            exec_graphs(h.x, &n, &bytes);
            assert_int_equal(n, n_captured);
            assert_int_equal(bytes, n_captured * graph_bytes);
            take(&b);
            assert_memory_equal(&a, &b, sizeof a);
            assert_true(n_captured >= 4 && n_replayed > 20);
            assert_int_equal(n_dropped, n_captured);
        }
}

/* Prompts alone, and chunks of them beside rows that generate. */
static void
a_step_with_prompts_is_captured_and_gives_what_a_plain_one_gives(void **state)
{
    static const char *const config[] = { LLAMA, T5 };

    (void)state;
    for (int c = 0; c < 2; c++)
        for (int generates = 0; generates < 2; generates++) {
            struct hand_options o = { .twice = true, .max_rows = 24 };

            for (int captured = 0; captured < 2; captured++) {
                if (captured) {
                    o.buckets = true;
                    o.opened = captures;
                    o.graphs_memory = 1 << 20;
                    graph_bytes = 1000;
                }
                open_model(config[c], o);
                for (uint32_t i = 0; i < 9; i++) {
                    struct hand_seat *s = sit(i, 30 + 11 * i, generates ? 30 : 1);

                    s->late = 2 * i;
                    if (c == 1) {
                        s->source = SOURCE;
                        s->n_source = 1 + i;
                    }
                }
                hand_run(&h);
                take(captured ? &b : &a);
            }
            assert_memory_equal(&a, &b, sizeof a);
            assert_true(n_replayed > 20);
        }
}

/* No buckets: what is captured are sources and their projections. Slices of an encoder are not. */
static void
sources_that_are_captured_give_what_plain_ones_give(void **state)
{
    (void)state;
    for (uint32_t enc_layers = 0; enc_layers < 2; enc_layers++) {
        struct hand_options o = { .twice = true, .enc_layers = enc_layers };
        for (int captured = 0; captured < 2; captured++) {
            if (captured) {
                o.opened = captures;
                o.graphs_memory = 1 << 20;
                graph_bytes = 1000;
            }
            open_model(T5, o);
            for (uint32_t i = 0; i < 18; i++) {
                struct hand_seat *s = sit(i, 1, 12);

                s->late = 3 * (i / 2); /* two at a time, and their rows not always side by side */
                s->source = SOURCE + i % 3;
                s->n_source = 5 + i % 4;
            }
            hand_run(&h);
            take(captured ? &b : &a);
        }
        assert_memory_equal(&a, &b, sizeof a);
        assert_int_equal(n_captured, enc_layers ? 1 : 2); /* 11 to 15 rows: a bucket of each kind */
        assert_true(n_replayed >= (enc_layers ? 7 : 13));
    }
}

static void
more_prompts_than_a_graph_has_room_for_run_plain(void **state)
{
    struct hand_options o = {
        .twice = true, .buckets = true, .opened = captures, .graphs_memory = 1 << 20
    };

    (void)state;
    for (uint32_t n = GRAPHS_RUNS; n <= GRAPHS_RUNS + 1; n++) {
        open_model(LLAMA, o);
        for (uint32_t i = 0; i < n; i++) sit(i, 2, 1);
        for (int step = 0; step < 3; step++) hand_run(&h);
        hand_close(&h);
        assert_int_equal(n_replayed, n <= GRAPHS_RUNS ? 2 : 0);
    }
}

static void
graphs_that_do_not_fit_together_take_no_turns(void **state)
{
    struct hand_options o = {
        .twice = true, .buckets = true, .opened = captures, .graphs_memory = 2500
    };

    (void)state;
    graph_bytes = 1000;
    open_model(LLAMA, o);
    sit_mixed(false);
    hand_run(&h);
    take(&b);
    assert_true(n_captured >= 2 && n_captured < 8 && n_replayed > 10);
    assert_int_equal(n_dropped, n_captured);
}

static void
what_cannot_be_captured_runs_plain_for_good(void **state)
{
    struct hand_options o = { .twice = true };

    (void)state;
    open_model(LLAMA, o);
    sit_mixed(false);
    hand_run(&h);
    take(&a);
    o.buckets = true;
    o.opened = captures;
    o.graphs_memory = 1 << 20;
    captures_fail = true;
    open_model(LLAMA, o);
    sit_mixed(false);
    hand_run(&h);
    take(&b);
    captures_fail = false;
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(n_captured >= 1 && n_captured <= GRAPHS_MOST); /* once a bucket */
    assert_int_equal(n_replayed + n_dropped, 0);
}

static void
no_memory_for_graphs_means_none(void **state)
{
    (void)state;
    open_model(LLAMA, (struct hand_options){ .buckets = true, .opened = captures });
    sit_mixed(false);
    hand_run(&h);
    hand_close(&h);
    assert_int_equal(n_captured + n_replayed, 0);
}

static struct gpu_ops tuner; /* the device's, but for these two */
static struct tensor tuned_y, tuned_x, tuned_w;
static bool tune_faster;

static int
matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w, struct tensor bias,
       float beta)
{
    (void)l, (void)bias, (void)beta;
    tuned_y = y;
    tuned_x = x;
    tuned_w = w;
    return 0;
}

static int
tune(struct lane *l, struct tune_result *ret)
{
    (void)l;
    *ret = (struct tune_result){ .first = 2, .best = tune_faster ? 1 : 2 };
    return 1;
}

static void
tunes(struct gpu *g)
{
    captures(g);
    tuner = *g->device;
    tuner.tune = tune;
    g->device = &tuner;
}

static void
every_matmul_is_measured_in_scratch_and_captured_steps_are_let_go_of(void **state)
{
    static const char *const config[] = { LLAMA, T5 };

    (void)state;
    for (size_t c = 0; c < ARRAY_LEN(config); c++) {
        struct tune_result row;
        struct tensor last = NO_TENSOR;
        struct err err;
        uint64_t n, bytes;
        uint32_t n_shapes = 0;

        graph_bytes = 1000;
        open_model(config[c], (struct hand_options){ .twice = true,
                                                     .buckets = true,
                                                     .opened = tunes,
                                                     .max_rows = 100,
                                                     .graphs_memory = 1 << 20 });
        sit_mixed(c == 1);
        hand_run(&h);
        assert_true(n_captured > 0);
        assert_true(exec_n_matmuls(h.x) > 0);
        tuner.matmul = matmul;
        for (uint32_t i = 0; i < exec_n_matmuls(h.x); i++) {
            bool more;

            if (exec_matmul(h.x, i, &err) < 0) fail_msg("%s", err.text);
            more = tuned_w.dim[0] == last.dim[0] && tuned_w.dim[1] == last.dim[1];
            n_shapes += !more;
            assert_true(more ? tuned_x.dim[0] > last.dim[2] : tuned_x.dim[0] == 16);
            assert_true(tuned_x.data != tuned_y.data);
            last = tuned_w;
            last.dim[2] = tuned_x.dim[0];
        }
        assert_int_equal(n_shapes, c == 0 ? 5 : 7);
        assert_int_equal(exec_matmul(h.x, exec_n_matmuls(h.x), &err), -EINVAL);
        tune_faster = false;
        assert_int_equal(exec_tune(h.x, &row), 1);
        assert_int_equal(n_dropped, 0);
        tune_faster = true;
        assert_int_equal(exec_tune(h.x, &row), 1);
        exec_graphs(h.x, &n, &bytes);
        assert_int_equal(n, 0);
        assert_int_equal(bytes, 0);
        assert_int_equal(n_dropped, n_captured);
        hand_close(&h);
    }
}

static const struct arch *real;
static struct look {
    uint32_t n_single, n_runs;
    struct run run[HAND_SEATS];
} look[64];
static unsigned n_looks;

/* The family's, after the runs that it is given were copied to where they can be looked at afterwards. */
static int
forward_looking(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    struct look *k = &look[n_looks++];

    assert_true(n_looks <= ARRAY_LEN(look));
    k->n_single = s->rows.n_single;
    k->n_runs = s->rows.n_runs;
    assert_int_equal(s->cross.n_single, s->rows.n_single);
    TRY(m->op->get(s->lane, k->run, s->rows.run, k->n_runs * sizeof *k->run));
    return real->forward(m, s, first, n);
}

static void
a_step_says_how_many_runs_of_one_row_come_first(void **state)
{
    struct arch looking;
    unsigned n_mixed = 0;

    (void)state;
    open_model(LLAMA, (struct hand_options){ .max_rows = 16 });
    real = h.m->arch;
    looking = *real;
    looking.forward = forward_looking;
    h.m->arch = &looking;
    for (uint32_t i = 0; i < 6; i++) sit(i, 1 + 7 * i, 12);
    n_looks = 0;
    hand_run(&h);
    hand_close(&h);
    for (unsigned i = 0; i < n_looks; i++) {
        const struct look *k = &look[i];

        for (uint32_t r = 0; r < k->n_single; r++) assert_int_equal(k->run[r].n_rows, 1);
        if (k->n_single < k->n_runs) assert_true(k->run[k->n_single].n_rows > 1);
        n_mixed += k->n_single && k->n_single < k->n_runs;
    }
    assert_true(n_mixed > 3);
}

static void
refuses(struct batch *t, const char *word)
{
    struct err e = { 0 };

    assert_int_equal(exec_start(h.x, t, &e), -ENOTSUP);
    if (!strstr(e.text, word)) fail_msg("\"%s\" does not speak of %s", e.text, word);
}

static void
what_is_not_there_yet_is_refused_by_name(void **state)
{
    struct batch *t;

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    t = hand_batch(&h, 0);
    t->n_rows = t->n_runs = t->n_logits = 1;
    t->token[0] = t->pos[0] = 0;
    t->run[0] = (struct batch_run){ .n_rows = 1, .flags = RUN_SAMPLE | RUN_BEAM };
    refuses(t, "beam");
    t->run[0].flags = RUN_SAMPLE;
    t->run[0].n_draft = 1;
    refuses(t, "draft");
    t->run[0].n_draft = 0;
    t->n_copies = 1;
    t->copy[0] = (struct batch_copy){ .to_tier = TIER_HOST };
    refuses(t, "host tier");
    hand_close(&h);
}

static void
another_kv_dtype_than_the_groups_were_made_for_is_a_sentence(void **state)
{
    struct exec_config c = { .max_rows = 4, .max_seqs = 1, .n_lanes = 1, .kv_dtype = DT_BF16 };
    struct exec *x = NULL;
    struct err e = { 0 };

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    assert_int_equal(exec_open(&x, &c, h.gpu, h.m, &h.kv, &h.arena, &e), -EINVAL);
    assert_non_null(strstr(e.text, "bf16"));
    hand_close(&h);
}

static void
what_it_will_take_is_known_before_it_is_opened(void **state)
{
    static const char *const config[] = { LLAMA, T5, WIDE };

    (void)state;
    for (unsigned i = 0; i < ARRAY_LEN(config); i++) {
        struct exec_config c = { .max_rows = 100, .max_seqs = 9, .max_enc_rows = 77, .n_lanes = 2 };
        struct exec *x = NULL;
        struct err e = { 0 };

        open_model(config[i], (struct hand_options){ .n_lanes = 2 });
        assert_int_equal(exec_open(&x, &c, h.gpu, h.m, &h.kv, &h.arena, &e), 0);
        assert_int_equal(exec_needs(&c, h.m, &h.kv), exec_scratch_bytes(x));
        exec_close(x);
        hand_close(&h);
    }
}

static void
stepping_allocates_nothing(void **state)
{
    void *volatile seen;

    (void)state;
    open_model(T5, (struct hand_options){ .twice = true, .n_lanes = 2, .enc_layers = 2 });
    for (uint32_t i = 0; i < 6; i++) {
        struct hand_seat *s = sit(i, 20, 20);

        s->source = SOURCE;
        s->n_source = 5;
        s->all = i == 3;
        s->how.n_prompt_logprobs = s->how.n_logprobs = 4;
        s->how.repetition = 1.5f;
        s->how.temperature = 0.7f;
        s->how.top_p = 0.9f;
        s->how.top_k = 20;
    }
    counting = true;
    hand_run(&h);
    counting = false;
    assert_int_equal(n_allocations, 0);
    counting = true;
    seen = malloc(1);
    counting = false;
    free(seen);
    assert_int_equal(n_allocations, 1); /* so it would have been seen */
    hand_close(&h);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_steps_out_give_what_one_at_a_time_gives),
        cmocka_unit_test(an_encoder_in_layer_slices_gives_what_it_gives_whole),
        cmocka_unit_test(another_source_gives_other_tokens),
        cmocka_unit_test(forced_tokens_come_first_and_last_whatever_the_logits),
        cmocka_unit_test(end_tokens_do_not_come_before_the_minimum),
        cmocka_unit_test(a_repetition_penalty_counts_prompt_and_generated_tokens),
        cmocka_unit_test(a_drawn_token_depends_on_seed_output_and_position_alone),
        cmocka_unit_test(noise_is_another_at_every_position),
        cmocka_unit_test(log_probabilities_of_a_long_prompt_come_in_pieces),
        cmocka_unit_test(a_seat_moves_to_another_lane_behind_the_step_it_waits_for),
        cmocka_unit_test(a_seat_with_a_copied_table_row_reads_the_same_blocks),
        cmocka_unit_test(what_is_written_into_a_copied_block_is_not_seen_in_the_other),
        cmocka_unit_test(block_copies_are_done_in_order),
        cmocka_unit_test(a_copy_that_comes_after_the_step_has_what_the_step_wrote),
        cmocka_unit_test(a_result_stays_through_one_more_start),
        cmocka_unit_test(a_captured_step_gives_what_a_plain_one_gives),
        cmocka_unit_test(a_step_with_prompts_is_captured_and_gives_what_a_plain_one_gives),
        cmocka_unit_test(sources_that_are_captured_give_what_plain_ones_give),
        cmocka_unit_test(more_prompts_than_a_graph_has_room_for_run_plain),
        cmocka_unit_test(graphs_that_do_not_fit_together_take_no_turns),
        cmocka_unit_test(what_cannot_be_captured_runs_plain_for_good),
        cmocka_unit_test(no_memory_for_graphs_means_none),
        cmocka_unit_test(every_matmul_is_measured_in_scratch_and_captured_steps_are_let_go_of),
        cmocka_unit_test(a_step_says_how_many_runs_of_one_row_come_first),
        cmocka_unit_test(what_is_not_there_yet_is_refused_by_name),
        cmocka_unit_test(another_kv_dtype_than_the_groups_were_made_for_is_a_sentence),
        cmocka_unit_test(what_it_will_take_is_known_before_it_is_opened),
        cmocka_unit_test(stepping_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
