/* test_steps.c - steps of a GPU with batches made by the test: equal results however they are
 * queued, and no allocations or waits in steady state.
 *
 * A step that has run before neither allocates nor waits: its driver calls queue work or ask
 * whether queued work is done. The same requests run several times; then every kernel is loaded and
 * every graph captured. The calls of one more run are counted by name (driver_calls.h).
 */
#include "tests/exec/tiny_exec.h"
#include "tests/gpu/driver_calls.h"
#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include <stdio.h>

enum { WARM = 6, TRIES = 20 };

/* Heads that Hopper kernels support; a window; a bias. */
static const char DECODER[] =
    "{\"model_type\": \"mistral\", \"vocab_size\": 3000, \"hidden_size\": 512,"
    " \"intermediate_size\": 1024, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"head_dim\": 128, \"sliding_window\": 32,"
    " \"max_position_embeddings\": 512}";
static const char ENCODER[] =
    "{\"model_type\": \"t5\", \"vocab_size\": 3000, \"d_model\": 512, \"d_kv\": 64,"
    " \"num_heads\": 8, \"d_ff\": 1024, \"num_layers\": 2, \"num_decoder_layers\": 2,"
    " \"feed_forward_proj\": \"gated-gelu\", \"decoder_start_token_id\": 0}";

static const struct kind {
    const char *config;
    bool encoder;
} kinds[] = { { DECODER, false }, { ENCODER, true } };

static void
open_kind(const struct kind *k, struct harness_options o)
{
    o.device = "cuda";
    o.kv = o.dtype;
    o.graphs_memory = o.buckets ? (uint64_t)1 << 30 : 0;
    open_model(k->config, o);
    start_mixed(k->encoder);
}

static uint64_t
graphs_now(void)
{
    uint64_t n, bytes;

    exec_graphs(h.x, &n, &bytes);
    return n;
}

/* All ways give the same results, for every model kind and dtype. On parts graphs are not
 * counted. */
static void
compare_ways(const struct harness_options *way, unsigned n)
{
    static struct made first, other;

    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++)
            for (unsigned w = 0; w < n; w++) {
                struct harness_options o = way[w];

                o.dtype = t;
                open_kind(&kinds[k], o);
                harness_run(&h);
                if (!o.parts) assert_int_equal(graphs_now() > 0, o.buckets);
                take(w ? &other : &first);
                if (w) assert_memory_equal(&first, &other, sizeof first);
            }
}

static void
tokens_and_bits_ignore_graphs_overlap_chunks_and_lanes(void **state)
{
    static const struct harness_options way[] = {
        { .max_tokens = 64 },
        { .twice = true },
        { .buckets = true },
        { .max_tokens = 5, .enc_layers = 1 },
        { .n_lanes = 2 },
        { .twice = true, .buckets = true },
        { .twice = true, .buckets = true, .max_tokens = 5, .n_lanes = 2, .drop = true },
    };

    (void)state;
    if (!fixture_cuda()) skip();
    compare_ways(way, ARRAY_LEN(way));
}

/* Steps of two lanes, each on another part than its last step, concurrent with the other lane's. */
static void
tokens_and_bits_ignore_the_partition_of_a_step(void **state)
{
    static const struct harness_options way[] = {
        { .max_tokens = 64 },
        { .n_lanes = 2, .parts = true },
        { .n_lanes = 2, .parts = true, .twice = true, .max_tokens = 5, .drop = true },
        { .n_lanes = 2, .parts = true, .twice = true, .buckets = true },
    };

    (void)state;
    if (!fixture_cuda()) skip();
    compare_ways(way, ARRAY_LEN(way));
}

/* Calls that queue kernels, ask without waiting, or belong to the runtime. No copies: from unpinned
 * memory they may wait. */
/* clang-format off */
static const char *const steady[] = {
    "cuLaunchKernel",         "cuLaunchKernelEx",       "cuGraphLaunch",
    "cuEventRecord",          "cuStreamWaitEvent",      "cuStreamQuery",
    "cuEventQuery",           "cuCtxGetCurrent",        "cuCtxSetCurrent",
    "cuCtxGetDevice",         "cuStreamIsCapturing",    "cuStreamGetCaptureInfo",
    "cuKernelGetFunction",    "cuKernelGetAttribute",   "cuKernelSetAttribute",
    "cuTensorMapEncodeTiled", NULL
};
/* clang-format on */

static void
once_more(void)
{
    for (uint32_t i = 0; i < HARNESS_SLOTS; i++)
        h.slot[i].late = h.started[i % h.o.n_lanes] + 3 * (i / 2);
    harness_run(&h);
}

/* If a graph was captured in this run, because the device was busy only then, the test tries
 * again. */
static void
is_steady(const struct kind *k, struct harness_options o)
{
    const char *other;
    uint64_t graphs;
    int tries = 0;

    o.dtype = DT_BF16;
    o.twice = true;
    open_kind(k, o);
    for (int i = 0; i < WARM; i++) once_more();
    do {
        assert_true(tries++ < TRIES);
        graphs = graphs_now();
        driver_calls_begin();
        once_more();
        driver_calls_end();
    } while (graphs_now() != graphs);
    driver_calls_print();
    other = driver_calls_beside(steady);
    if (other)
        fail_msg("a step that was done before calls %s(), %lu times", other, driver_calls(other));
    assert_true(driver_calls("cuLaunchKernelEx") + driver_calls("cuLaunchKernel") > 0);
    assert_int_equal(driver_calls("cuGraphLaunch") > 0, o.buckets);
    assert_int_equal(driver_calls_allocations(), 0);
    harness_close(&h);
}

static void
a_plain_step_neither_allocates_nor_waits(void **state)
{
    (void)state;
    if (!fixture_cuda()) skip();
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        is_steady(&kinds[k], (struct harness_options){ .drop = true });
        is_steady(&kinds[k], (struct harness_options){ .n_lanes = 2, .fast = true });
    }
}

static void
a_captured_step_neither_allocates_nor_waits(void **state)
{
    (void)state;
    if (!fixture_cuda()) skip();
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        is_steady(&kinds[k], (struct harness_options){ .buckets = true, .drop = true });
        is_steady(&kinds[k],
                  (struct harness_options){ .buckets = true, .n_lanes = 2, .fast = true });
    }
}

static void
the_counter_detects_allocations_and_waits(void **state)
{
    struct lane *lane;
    struct err e = { 0 };

    (void)state;
    if (!fixture_cuda()) skip();
    open_kind(&kinds[0], (struct harness_options){ 0 });
    driver_calls_begin();
    assert_int_equal(gpu_ops(h.gpu)->lane.open(h.gpu, 8, &lane, &e), 0);
    gpu_ops(h.gpu)->lane.close(lane);
    driver_calls_end();
    assert_non_null(driver_calls_beside(steady));
    assert_true(driver_calls("cuMemAlloc") > 0);
    assert_true(driver_calls("cuStreamSynchronize") > 0);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    assert_true(driver_calls_allocations() > 0);
#endif
    harness_close(&h);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_and_bits_ignore_graphs_overlap_chunks_and_lanes),
        cmocka_unit_test(tokens_and_bits_ignore_the_partition_of_a_step),
        cmocka_unit_test(a_plain_step_neither_allocates_nor_waits),
        cmocka_unit_test(a_captured_step_neither_allocates_nor_waits),
        cmocka_unit_test(the_counter_detects_allocations_and_waits),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
