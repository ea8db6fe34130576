/* test_model_options.c - tests of the model options as both programs read them. */
#include "tests/test.h"

#include "ipc/model_options.h"

#include <stdio.h>

static struct model_options k;
static struct err e;

static int
setup(void **state)
{
    (void)state;
    opt_defaults(model_opts, &k);
    return 0;
}

static int
set(const char *key, const char *value)
{
    return opt_set(model_opts, &k, key, value, "--set", &e);
}

static void
defaults_match_the_manual(void **state)
{
    (void)state;
    assert_int_equal(k.max_num_seqs, 256);
    assert_int_equal(k.max_num_batched_tokens, 0); /* auto */
    assert_int_equal(k.max_source_tokens, 4096);
    assert_int_equal(k.max_model_len, 0);
    assert_true(k.kv_memory == 0);
    assert_true(k.kv_reserve == UINT64_C(1) << 30);
    assert_true(k.kv_host_memory == 0);
    assert_true(k.graphs_memory == UINT64_C(2) << 30);
    assert_int_equal(k.kv_tokens_per_block, 0);
    assert_int_equal(k.numerics, 0);
    assert_int_equal(k.split_mode, SPLIT_OFF);
    assert_int_equal(k.dtype, DTYPE_AUTO);
    assert_int_equal(k.workers, 1);
    assert_int_equal(k.tensor_parallel, 1);
    assert_int_equal(k.standby, 0);
    assert_string_equal(k.device, "auto");
    assert_string_equal(k.weights, "checkpoint");
    assert_string_equal(k.isa, "auto");
}

static void
every_documented_option_is_accepted(void **state)
{
    static const char *const lines[][2] = {
        { "kv.memory", "64MiB" },
        { "kv.memory", "auto" },
        { "kv.tokens_per_block", "16" },
        { "max_num_batched_tokens", "64" },
        { "max_num_seqs", "8" },
        { "max_source_tokens", "512" },
        { "weights", "random:7" },
        { "dtype", "fp32" },
        { "dtype", "bf16" },
        { "dtype", "fp16" },
        { "kv.dtype", "fp8" },
        { "kv.dtype", "auto" },
        { "kv.sink_tokens", "4" },
        { "split.mode", "off" },
        { "split.mode", "auto" },
        { "split.mode", "fixed" },
        { "split.context_sm", "64" },
        { "split.context_sm", "1.0" },
        { "split.context_max_tokens", "-1" },
        { "split.context_max_seqs", "0" },
        { "policy", "max_utilization" },
        { "policy", "static" },
        { "policy", "max_requests" },
        { "policy", "no_evict" },
        { "chunk_policy", "equal_progress" },
        { "prefill_batch_tokens", "512" },
        { "encoder_batch_size", "4" },
        { "batch_wait_timeout", "5ms" },
        { "kv.shares", "full=0.6,window=0.4" },
        { "cross_kv_cache_fraction", "0.5" },
        { "numerics", "invariant" },
        { "tensor_parallel", "2" },
        { "workers", "2" },
        { "standby", "1" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        if (set(lines[i][0], lines[i][1]) < 0) fail_msg("%s", e.text);
    }
    assert_int_equal(k.kv_tokens_per_block, 16);
    assert_int_equal(k.split_context_max_tokens, -1);
    assert_int_equal(k.split_mode, SPLIT_FIXED);
    assert_int_equal(k.dtype, DTYPE_FP16);
}

static void
tokens_per_block_is_a_power_of_two_from_4_to_128(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 260; i++) {
        char text[16];
        bool ok = i >= 4 && i <= 128 && (i & (i - 1)) == 0;

        snprintf(text, sizeof text, "%u", i);
        assert_int_equal(set("kv.tokens_per_block", text), ok ? 0 : -EINVAL);
    }
}

/* lagand passes the text of opt_text() to a worker. */
static void
every_option_reaches_the_worker_unchanged(void **state)
{
    (void)state;
    assert_int_equal(set("kv.memory", "1.5GiB"), 0);
    assert_int_equal(set("split.context_max_seqs", "-3"), 0);
    assert_int_equal(set("path", "/a dir/with=signs"), 0);
    assert_int_equal(set("kv.dtype", "fp8"), 0);
    for (const struct opt *o = model_opts; o->key; o++) {
        struct model_options there;
        char text[1100];

        opt_defaults(model_opts, &there);
        assert_int_equal(
            opt_set(model_opts, &there, o->key, opt_text(o, &k, text, sizeof text), "--set", &e),
            0);
        if (o->type == OPT_STR) {
            assert_string_equal((char *)&there + o->offset, (char *)&k + o->offset);
        } else {
            assert_memory_equal((char *)&there + o->offset, (char *)&k + o->offset, o->size);
        }
    }
}

static void
every_row_has_a_unique_key_and_a_sentence(void **state)
{
    (void)state;
    for (const struct opt *o = model_opts; o->key; o++) {
        assert_ptr_equal(opt_find(model_opts, o->key, strlen(o->key)), o);
        assert_true(strlen(o->sentence) > 10);
        assert_int_not_equal(o->sentence[strlen(o->sentence) - 1], '.');
        assert_true(o->type == OPT_ENUM || o->arg);
    }
}

/* Returns the result of model_options_check() with the options of a line "KEY=VALUE KEY=VALUE". */
static int
check_line(const char *line)
{
    char text[200], *rest = text, *word;

    snprintf(text, sizeof text, "%s", line);
    opt_defaults(model_opts, &k);
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');

        *value++ = 0;
        if (set(word, value) < 0) fail_msg("%s", e.text);
    }
    return model_options_check(&k, &e);
}

static void
an_option_without_effect_is_refused_by_name(void **state)
{
    static const struct {
        const char *line, *refusal; /* NULL: accepted */
    } cases[] = {
        { "device=cpu", NULL },
        { "device=cpu isa=scalar", NULL },
        { "device=cuda isa=scalar",
          "isa is scalar, which has no effect here: it needs device cpu" },
        { "device=cpu graphs.memory=1GiB", "graphs.memory is 1GiB, which has no effect here: it "
                                           "needs a GPU as device" },
        { "device=cpu graphs.memory=0", "graphs.memory is 0, " },
        { "device=cuda:1 graphs.memory=0", NULL },
        { "device=cpu cuda.libs=/opt", "cuda.libs is /opt, " },
        { "device=cpu cuda.tuning_file=/tmp/t", "cuda.tuning_file is /tmp/t, " },
        { "device=cuda cuda.libs=/opt cuda.tuning_file=/tmp/t", NULL },
        { "device=cpu kernels=attend=generic", "kernels is attend=generic, " },
        { "device=cuda kernels=attend=generic step_timing=true", NULL },
        { "device=cpu step_timing=true", "step_timing is true, " },
        { "device=cpu split.context_sm=0.5", "it needs split.mode=fixed" },
        { "device=cpu split.mode=auto split.context_sm=x", "split.context_sm is x, " },
        { "device=cpu split.mode=fixed split.context_sm=0.5", NULL },
        { "device=cpu kv.host_memory=1MiB", "it needs kv.reuse=true" },
        { "device=cpu kv.host_memory=1MiB kv.reuse=true", NULL },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int want = cases[i].refusal ? -EINVAL : 0, got = check_line(cases[i].line);

        if (got != want || (want && !strstr(e.text, cases[i].refusal)))
            fail_msg("%s: %d %s", cases[i].line, got, got ? e.text : "");
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(defaults_match_the_manual, setup),
        cmocka_unit_test_setup(every_documented_option_is_accepted, setup),
        cmocka_unit_test_setup(tokens_per_block_is_a_power_of_two_from_4_to_128, setup),
        cmocka_unit_test_setup(every_option_reaches_the_worker_unchanged, setup),
        cmocka_unit_test_setup(an_option_without_effect_is_refused_by_name, setup),
        cmocka_unit_test_setup(every_row_has_a_unique_key_and_a_sentence, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
