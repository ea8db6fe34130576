/* test_tune.c - `laganctl tune` from the command line to the file. On a GPU matmuls are measured
 * once and the next worker reads the results; a CPU has none. */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define LLAMA "tests/data/golden/llama3"
enum { TOKENS = 20 };

static void
generate(const struct serve *s, int32_t ids[TOKENS])
{
    static const int32_t prompt[] = { 5, 17, 40, 8, 23 };
    struct lagan_request *r = lagan_request_new();
    struct lagan_event ev = { .size = sizeof ev };
    uint32_t n = 0;
    uint64_t id;
    struct lagan *c;

    assert_int_equal(lagan_open(&c, s->endpoint, 5000), 0);
    lagan_set_ids(r, "ids", prompt, sizeof prompt / sizeof *prompt);
    lagan_set_int(r, "max_tokens", TOKENS);
    lagan_set_bool(r, "ignore_eos", true);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    do {
        if (lagan_next(c, &ev, 30000) <= 0) fail_msg("nothing for 30 s: %s", lagan_errmsg(c));
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev.reason_name, ev.message);
        if (ev.kind != LAGAN_EVENT_TOKENS) continue;
        assert_true(n + ev.n_ids <= TOKENS);
        memcpy(ids + n, ev.ids, ev.n_ids * sizeof *ids);
        n += ev.n_ids;
    } while (ev.kind != LAGAN_EVENT_DONE);
    assert_int_equal(n, TOKENS);
    lagan_close(c);
}

/* Rows of a whole pass. */
static size_t
tune_all(const struct serve *s)
{
    static char output[1 << 20];
    json_error_t e;
    json_t *o, *rows, *row;
    size_t i, n;

    if (serve_ctl(s, "tune --json", output, sizeof output) != 0) fail_msg("%s", output);
    o = json_loads(strchr(output, '{') ? strchr(output, '{') : output, 0, &e);
    if (!o) fail_msg("%s: %s", e.text, output);
    assert_true(json_integer_value(json_object_get(o, "total")) > 0);
    assert_int_equal(json_integer_value(json_object_get(o, "done")),
                     json_integer_value(json_object_get(o, "total")));
    assert_string_equal(json_string_value(json_object_get(o, "why")), "");
    rows = json_object_get(o, "rows");
    json_array_foreach(rows, i, row)
        assert_true(json_number_value(json_object_get(row, "best_us")) > 0);
    n = json_array_size(rows);
    json_decref(o);
    return n;
}

static void
a_gpus_products_are_measured_once_and_the_next_worker_knows_them(void **state)
{
    char path[64], key[96];
    const char *set[] = {
        key, "dtype=fp32", "max_num_seqs=8", "kv.memory=64MiB", "max_num_batched_tokens=256", NULL
    };
    int32_t first[TOKENS], then[TOKENS];
    size_t n_measured;
    struct stat st;
    struct serve s;

    (void)state;
    if (!serve_on_gpu()) skip();
    snprintf(path, sizeof path, "/tmp/lagan-tuned-%d", (int)getpid());
    snprintf(key, sizeof key, "cuda.tuning_file=%s", path);
    unlink(path);
    assert_true(serve_start(&s, LLAMA, set));
    generate(&s, first);
    n_measured = tune_all(&s);
    assert_true(n_measured > 0);
    generate(&s, then); /* with the measured algorithms; graphs are captured again */
    assert_memory_equal(first, then, sizeof first);
    assert_int_equal(tune_all(&s), 0);
    serve_stop(&s);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 0);
    assert_true(serve_start(&s, LLAMA, set));
    assert_int_equal(tune_all(&s), 0);
    generate(&s, then);
    assert_memory_equal(first, then, sizeof first);
    serve_stop(&s);
    unlink(path);
    print_message("%zu products measured\n", n_measured);
}

static void
a_worker_without_anything_to_tune_says_so_and_laganctl_exits_with_5(void **state)
{
    static const char *const set[] = { "max_num_seqs=8", "kv.memory=16MiB", "threads=1",
                                       "dtype=fp32", NULL };
    char output[512];
    struct serve s;

    (void)state;
    assert_true(serve_start(&s, LLAMA, set));
    for (int named = 0; named < 2; named++) {
        assert_int_equal(serve_ctl(&s, named ? "tune w0" : "tune", output, sizeof output), 5);
        assert_string_equal(output, serve_on_gpu()
                                        ? "laganctl: there is no file for the results: set this "
                                          "model's key cuda.tuning_file, then run `laganctl daemon "
                                          "reexec`\n"
                                        : "laganctl: the CPU device has no matmuls to tune\n");
    }
    serve_stop(&s);
}

/* Only one rank would use the results before the next start. */
static void
a_model_on_several_ranks_is_not_tuned(void **state)
{
    static const char *const set[] = { "max_num_seqs=8", "kv.memory=16MiB", "threads=2",
                                       "tensor_parallel=2", NULL };
    char output[512];
    struct serve s;

    (void)state;
    if (serve_on_gpu()) skip();
    assert_true(serve_start(&s, LLAMA, set));
    assert_int_equal(serve_ctl(&s, "tune", output, sizeof output), 5);
    assert_non_null(strstr(output, "tensor_parallel models are not tuned"));
    serve_stop(&s);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpus_products_are_measured_once_and_the_next_worker_knows_them),
        cmocka_unit_test(a_worker_without_anything_to_tune_says_so_and_laganctl_exits_with_5),
        cmocka_unit_test(a_model_on_several_ranks_is_not_tuned),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
