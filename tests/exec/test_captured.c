/* test_captured.c - captured steps on a simulated capturing device: results equal plain steps, and
 * graphs are dropped when a faster matmul is found. */
#include "gpu/cpu/cpu.h"
#include "gpu/device.h"
#include "tests/exec/tiny_exec.h"
#include "tests/test.h"
#include "worker/exec/graphs.h"

/* Simulates capturing on the CPU: ops queued during a capture are recorded and queued again when
 * the graph runs. A graph that reads a changed address then gives wrong results. */
struct graph {
    uint32_t n;
    struct recorded {
        cpu_run segment;
        unsigned char args[CPU_ARGS];
        size_t bytes;
        uint32_t parts;
    } op[200];
};
static struct graph *recording;
static unsigned n_captured, n_replayed, n_dropped;
static uint64_t graph_bytes;
static bool captures_fail;
int __real_cpu_queue(struct lane *l, cpu_run segment, const void *args, size_t bytes,
                     uint32_t parts);
int __wrap_cpu_queue(struct lane *l, cpu_run segment, const void *args, size_t bytes,
                     uint32_t parts);

int
__wrap_cpu_queue(struct lane *l, cpu_run segment, const void *args, size_t bytes, uint32_t parts)
{
    struct recorded *r;

    if (!recording) return __real_cpu_queue(l, segment, args, bytes, parts);
    assert_true(recording->n < ARRAY_LEN(recording->op));
    r = &recording->op[recording->n++];
    *r = (struct recorded){ .segment = segment, .bytes = bytes, .parts = parts };
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
        TRY(__real_cpu_queue(l, g->op[i].segment, g->op[i].args, g->op[i].bytes, g->op[i].parts));
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
    g->checked.graph.begin = graph_begin;
    g->checked.graph.end = graph_end;
    g->checked.graph.launch = graph_run;
    g->checked.graph.drop = graph_drop;
    n_captured = n_replayed = n_dropped = 0;
}

static struct made a, b;

static void
captured_decode_step_equals_a_plain_step(void **state)
{
    static const char *const config[] = { LLAMA, T5 };

    (void)state;
    for (int c = 0; c < 2; c++)
        for (int lanes = 1; lanes <= 2; lanes++) {
            struct harness_options o = { .twice = true, .n_lanes = (uint32_t)lanes };
            uint64_t n, bytes;

            open_model(config[c], o);
            start_mixed(c == 1);
            harness_run(&h);
            take(&a);

            o.buckets = true;
            o.opened = captures;
            o.graphs_memory = 1 << 20;
            graph_bytes = 1000;
            open_model(config[c], o);
            start_mixed(c == 1);
            harness_run(&h);
            exec_graphs(h.x, &n, &bytes);
            assert_int_equal(n, n_captured);
            assert_int_equal(bytes, n_captured * graph_bytes);
            take(&b);
            assert_memory_equal(&a, &b, sizeof a);
            assert_true(n_captured >= 4 && n_replayed > 20);
            assert_int_equal(n_dropped, n_captured);
        }
}

/* Prompts only, and chunks together with decode tokens. */
static void
captured_prefill_step_equals_a_plain_step(void **state)
{
    static const char *const config[] = { LLAMA, T5 };

    (void)state;
    for (int c = 0; c < 2; c++)
        for (int generates = 0; generates < 2; generates++) {
            struct harness_options o = { .twice = true, .max_tokens = 24 };

            for (int captured = 0; captured < 2; captured++) {
                if (captured) {
                    o.buckets = true;
                    o.opened = captures;
                    o.graphs_memory = 1 << 20;
                    graph_bytes = 1000;
                }
                open_model(config[c], o);
                for (uint32_t i = 0; i < 9; i++) {
                    struct harness_slot *s = start_slot(i, 30 + 11 * i, generates ? 30 : 1);

                    s->late = 2 * i;
                    if (c == 1) {
                        s->source = SOURCE;
                        s->n_source = 1 + i;
                    }
                }
                harness_run(&h);
                take(captured ? &b : &a);
            }
            assert_memory_equal(&a, &b, sizeof a);
            assert_true(n_replayed > 20);
        }
}

static const struct arch *seq_group;
static unsigned n_joined, n_steps;
static struct {
    uint32_t n, longest;
    struct segment segment[64];
} joined[400];

static int
forward_counting(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct step_tokens *c = &s->cross;

    n_joined += c->n_segments < s->rows.n_segments;
    assert_true(n_steps < ARRAY_LEN(joined) && c->n_segments <= ARRAY_LEN(joined->segment));
    joined[n_steps].n = c->n_segments;
    joined[n_steps].longest = c->longest;
    TRY(m->op->mem.get(s->lane, joined[n_steps++].segment, c->segment,
                       c->n_segments * sizeof *c->segment));
    return seq_group->forward(m, s, first, n);
}

/* Slots without search, then searches with 2, 4, 3 and 9 beams: separate beams; joined and plain;
 * joined and captured. */
static void
beams_with_joined_cross_attention_equal_separate_beams(void **state)
{
    static const uint32_t size[] = { 1, 1, 2, 3, 4, 9 };
    struct arch counting;

    (void)state;
    for (uint32_t prompt = 1; prompt <= 3; prompt += 2)
        for (int way = 0; way < 3; way++) {
            struct harness_options o = { .twice = true };

            if (way == 2) {
                o.buckets = true;
                o.opened = captures;
                o.graphs_memory = 1 << 20;
                graph_bytes = 1000;
            }
            open_model(T5, o);
            seq_group = h.m->arch;
            counting = *seq_group;
            counting.forward = forward_counting;
            h.m->arch = &counting;
            for (uint32_t i = 0, k = 0; i < ARRAY_LEN(size); i++)
                for (uint32_t n = 0; n < size[i]; n++, k++) {
                    struct harness_slot *s = start_slot(k, prompt, 40);

                    s->late = 5 * i;
                    s->source = SOURCE + i % 3;
                    s->n_source = 3 + i % 5;
                    s->beam = way && size[i] > 1;
                    s->joins = way && n;
                }
            n_joined = n_steps = 0;
            harness_run(&h);
            take(way ? &b : &a);
            for (unsigned i = 0; way && i < n_steps; i++) /* within the stated maximum */
                for (uint32_t r = 0; joined[i].longest && r < joined[i].n; r++)
                    assert_true(joined[i].segment[r].n_tokens <= joined[i].longest);
            assert_int_equal(n_joined > 0, way > 0);
            if (way) assert_memory_equal(&a, &b, sizeof a);
        }
    assert_true(n_captured >= 3 && n_replayed > 20);
}

/* Without buckets only encoder inputs and projections are captured, not encoder slices. */
static void
captured_encoder_inputs_equal_plain_ones(void **state)
{
    (void)state;
    for (uint32_t enc_layers = 0; enc_layers < 2; enc_layers++) {
        struct harness_options o = { .twice = true, .enc_layers = enc_layers };
        for (int captured = 0; captured < 2; captured++) {
            if (captured) {
                o.opened = captures;
                o.graphs_memory = 1 << 20;
                graph_bytes = 1000;
            }
            open_model(T5, o);
            for (uint32_t i = 0; i < 18; i++) {
                struct harness_slot *s = start_slot(i, 1, 12);

                s->late = 3 * (i / 2); /* two at a time, rows not always consecutive */
                s->source = SOURCE + i % 3;
                s->n_source = 5 + i % 4;
            }
            harness_run(&h);
            take(captured ? &b : &a);
        }
        assert_memory_equal(&a, &b, sizeof a);
        assert_int_equal(n_captured,
                         enc_layers ? 1 : 2); /* 11 to 15 tokens: one bucket of each kind */
        assert_true(n_replayed >= (enc_layers ? 7 : 13));
    }
}

static void
many_short_prompts_are_captured_and_a_long_step_runs_plain(void **state)
{
    static const struct {
        uint32_t n, prompt;
        bool captured;
    } rows[] = { { 17, 2, true }, { HARNESS_SLOTS, 3, true }, { 2, 150, false } };
    struct harness_options o = { .twice = true,
                                 .buckets = true,
                                 .opened = captures,
                                 .graphs_memory = 1 << 20,
                                 .max_tokens = 320 };

    (void)state;
    for (uint32_t k = 0; k < ARRAY_LEN(rows); k++) {
        o.opened = captures;
        open_model(LLAMA, o);
        for (uint32_t i = 0; i < rows[k].n; i++) start_slot(i, rows[k].prompt, 1);
        for (int step = 0; step < 3; step++) harness_run(&h);
        take(&a);
        assert_int_equal(n_replayed, rows[k].captured ? 2 : 0);
        o.opened = NULL;
        open_model(LLAMA, o);
        for (uint32_t i = 0; i < rows[k].n; i++) start_slot(i, rows[k].prompt, 1);
        for (int step = 0; step < 3; step++) harness_run(&h);
        take(&b);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

static void
graphs_that_do_not_both_fit_never_alternate(void **state)
{
    struct harness_options o = {
        .twice = true, .buckets = true, .opened = captures, .graphs_memory = 2500
    };

    (void)state;
    graph_bytes = 1000;
    open_model(LLAMA, o);
    start_mixed(false);
    harness_run(&h);
    take(&b);
    assert_true(n_captured >= 2 && n_captured < 8 && n_replayed > 10);
    assert_int_equal(n_dropped, n_captured);
}

static void
piece_that_cannot_be_captured_always_runs_plain(void **state)
{
    struct harness_options o = { .twice = true };

    (void)state;
    open_model(LLAMA, o);
    start_mixed(false);
    harness_run(&h);
    take(&a);
    o.buckets = true;
    o.opened = captures;
    o.graphs_memory = 1 << 20;
    captures_fail = true;
    open_model(LLAMA, o);
    start_mixed(false);
    harness_run(&h);
    take(&b);
    captures_fail = false;
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(n_captured >= 1 && n_captured <= GRAPHS_MOST); /* once per bucket */
    assert_int_equal(n_replayed + n_dropped, 0);
}

static void
graphs_memory_0_disables_capturing(void **state)
{
    (void)state;
    open_model(LLAMA, (struct harness_options){ .buckets = true, .opened = captures });
    start_mixed(false);
    harness_run(&h);
    harness_close(&h);
    assert_int_equal(n_captured + n_replayed, 0);
}

static struct gpu_ops tuner; /* the device's ops except these two */
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
    tuner = *g->device;
    tuner.lane.tune = tune;
    harness_replace_ops(g, &tuner);
    captures(g);
}

static void
tuning_measures_every_matmul_and_drops_captured_graphs(void **state)
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
        open_model(config[c], (struct harness_options){ .twice = true,
                                                        .buckets = true,
                                                        .opened = tunes,
                                                        .max_tokens = 100,
                                                        .graphs_memory = 1 << 20 });
        start_mixed(c == 1);
        harness_run(&h);
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
        harness_close(&h);
    }
}

static uint32_t passes, max_tokens;
static int (*plain_embed)(struct lane *l, struct tensor x, struct tensor table,
                          const int32_t *token, float scale);

static int
embed(struct lane *l, struct tensor x, struct tensor table, const int32_t *token, float scale)
{
    passes++;
    max_tokens = MAX(max_tokens, x.dim[0]);
    return plain_embed(l, x, table, token, scale);
}

static void
counts_rows(struct gpu *g)
{
    captures(g);
    plain_embed = g->checked.embed;
    g->checked.embed = embed;
    passes = max_tokens = 0;
}

static void
brief_warmup_has_one_token(void **state)
{
    (void)state;
    for (int brief = 0; brief < 2; brief++) {
        open_model(LLAMA, (struct harness_options){ .opened = counts_rows, .brief = brief });
        assert_int_equal(passes, brief ? 2 : 4); /* the only layer is both first and last */
        assert_int_equal(max_tokens, brief ? 1 : 64);
        start_mixed(false);
        harness_run(&h);
        take(brief ? &b : &a);
    }
    assert_memory_equal(&a, &b, sizeof a);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(brief_warmup_has_one_token),
        cmocka_unit_test(captured_decode_step_equals_a_plain_step),
        cmocka_unit_test(captured_prefill_step_equals_a_plain_step),
        cmocka_unit_test(beams_with_joined_cross_attention_equal_separate_beams),
        cmocka_unit_test(captured_encoder_inputs_equal_plain_ones),
        cmocka_unit_test(many_short_prompts_are_captured_and_a_long_step_runs_plain),
        cmocka_unit_test(graphs_that_do_not_both_fit_never_alternate),
        cmocka_unit_test(piece_that_cannot_be_captured_always_runs_plain),
        cmocka_unit_test(graphs_memory_0_disables_capturing),
        cmocka_unit_test(tuning_measures_every_matmul_and_drops_captured_graphs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
