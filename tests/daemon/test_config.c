/* test_config.c - options.h and yaml.h: all errors are reported at once, with their positions. */
#include "daemon/config/options.h"
#include "daemon/ops/memory_sum.h"
#include "tests/test.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static struct config c;
static struct problems p;
static char dir[64], file[96];

static int
set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/lagan-config-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/lagan.yaml", dir);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(dir);
}

/* @ stands for the directory. */
static void
write_file(const char *text)
{
    FILE *f = fopen(file, "w");

    assert_non_null(f);
    for (; *text; text++) {
        if (*text == '@') {
            fputs(dir, f);
        } else {
            fputc(*text, f);
        }
    }
    fclose(f);
}

#define READ(...) read_args((char *[]){ (char *)(uintptr_t) "lagand", __VA_ARGS__, NULL })
#define A (char *)(uintptr_t)

static int
read_args(char **argv)
{
    int argc = 0;
    bool usage;

    while (argv[argc]) argc++;
    return config_read(&c, argc, argv, &p, &usage);
}

static void
says(const char *words)
{
    for (uint32_t i = 0; i < p.n; i++) {
        if (strstr(p.text[i], words)) return;
    }
    for (uint32_t i = 0; i < p.n; i++) fprintf(stderr, "problem: %s\n", p.text[i]);
    fail_msg("no problem has the text '%s'", words);
}

static void
model_on_the_command_line_is_sufficient(void **state)
{
    char from[64];

    (void)state;
    assert_int_equal(READ(A "--model", dir, A "--device", A "cpu", A "--set", A "kv.memory=64MiB",
                          A "--set", A "max_num_seqs=8", A "--runtime-dir", A "/tmp/x/"),
                     0);
    assert_int_equal(c.n_models, 1);
    assert_string_equal(c.model[0].keys.path, dir);
    assert_string_equal(c.model[0].keys.name, strrchr(dir, '/') + 1);
    assert_string_equal(c.model[0].keys.device, "cpu");
    assert_int_equal(c.model[0].keys.kv_memory, 64 << 20);
    assert_int_equal(c.model[0].keys.max_num_seqs, 8);
    assert_string_equal(c.o.runtime_dir, "/tmp/x");
    assert_string_equal(c.o.set, "kv.memory=64MiB\nmax_num_seqs=8");
    assert_string_equal(config_from(&c, c.model[0].from[2], from, sizeof from), "command line");
}

static void
command_line_overrides_the_file(void **state)
{
    char from[128], want[128];

    (void)state;
    write_file("scheduler:\n  max_num_queued_reqs: 7\nsupervisor: { stall_timeout: 500ms }\n"
               "models:\n  - name: a\n    path: @\n    kv:\n      tokens_per_block: 16\n"
               "  - { name: b, path: @, workers: 3 }\n");
    assert_int_equal(READ(A "--config", file, A "--supervisor.stall-timeout", A "2s"), 0);
    assert_int_equal(c.o.max_queued_reqs, 7);
    assert_int_equal(c.o.stall_timeout, 2000000000);
    assert_int_equal(c.n_models, 2);
    assert_int_equal(c.model[0].keys.kv_tokens_per_block, 16);
    assert_string_equal(c.model[1].keys.name, "b");
    assert_int_equal(config_n_workers(&c), 4);
    snprintf(want, sizeof want, "%s:2", file);
    for (uint32_t i = 0; daemon_opts[i].key; i++) {
        if (!strcmp(daemon_opts[i].key, "scheduler.max_num_queued_reqs")) {
            assert_string_equal(config_from(&c, c.from[i], from, sizeof from), want);
        }
        if (!strcmp(daemon_opts[i].key, "supervisor.stall_timeout")) {
            assert_string_equal(config_from(&c, c.from[i], from, sizeof from), "command line");
        }
    }
}

static void
all_errors_of_a_file_are_reported_with_position(void **state)
{
    (void)state;
    write_file("scheduler:\n  max_num_queued_reqs: many\n  max_num_queued_rqs: 3\n"
               "api: [1, 2]\n"
               "models:\n  - path: @\n    kv: { tokens_per_block: 17 }\n    path: /x\n"
               "  - path: /nowhere/at/all\n"
               "log: { level: loud }\nmodel: /x\n");
    assert_int_equal(READ(A "--config", file), -22);
    says("lagan.yaml:2:24: scheduler.max_num_queued_reqs");
    says("lagan.yaml:3:23: unknown key \"scheduler.max_num_queued_rqs\"; did you mean "
         "scheduler.max_num_queued_reqs?");
    says("lagan.yaml:4:6: api must be one value, but is a list");
    says("lagan.yaml:7:29: kv.tokens_per_block");
    says("lagan.yaml:8:5: path was already set in line 6");
    says("/nowhere/at/all: No such file or directory");
    says("lagan.yaml:10:15: log.level");
    says("lagan.yaml:11:8: model can be given on the command line only");
    assert_int_equal(p.n, 8);
}

static void
invalid_yaml_is_reported_with_line_and_column(void **state)
{
    static const struct {
        const char *text, *words;
    } t[] = {
        { "a: [1\nb: 2\n", "lagan.yaml:2:" },
        { "a: [1\nb: 2\n", "the list [ that begins in line 1, column 4 is not closed" },
        { "x: [1,2\n", "lagan.yaml:1:4: unknown key \"x\"" },
        { "log:\n\tlevel: info\n", "lagan.yaml:2:1: a tab indents this line" },
        { "- 1\n", "the file must be a mapping" },
        { "models: 3\n", "models must be a list" },
        { "models: { path: x }\n", "models must be a list" },
        { "models: [ 3 ]\n", "an entry of models must be a mapping" },
        { "models: [ { path: *x } ]\n", "lagan.yaml:1:" },
        { "log:\n  level:\n", "log.level has no value" },
        { "? [a]\n: 1\n", "a key must be a word" },
        { "--- { }\n--- { }\n", "a second YAML document" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        write_file(t[i].text);
        assert_int_equal(READ(A "--config", file), -22);
        says(t[i].words);
    }
}

static void
models_that_share_a_gpu_are_added_up(void **state)
{
    static const struct {
        const char *report[3]; /* of each model */
        bool free;
        const char *error; /* NULL: they fit */
    } t[] = {
        { { "{\"need\":50,\"free\":90,\"total\":100}", "{\"need\":50,\"free\":90,\"total\":100}" },
          false,
          NULL },
        { { "{\"need\":51,\"free\":90,\"total\":100}", "{\"need\":50,\"free\":90,\"total\":100}" },
          false,
          "models that share GPU 0 need" },
        { { "{\"need\":50,\"free\":90,\"total\":100}", "{\"need\":50,\"free\":90,\"total\":100}" },
          true,
          "models that share GPU 0 need" },
        /* two processes of c on GPU 7 */
        { { "", "{}", "{\"kv\":[{\"free\":1}],\"need\":31457280,\"total\":52428800,\"free\":1}" },
          false,
          "models that share GPU 7 need 60.0 MiB together, but it has 50.0 MiB: "
          "c 2 processes of 30.0 MiB; lower kv.memory" },
        { { "{\"need\":51,\"total\":-1}", "{\"need\":\"x\"", "[]" }, true, NULL },
    };

    (void)state;
    write_file("models:\n  - { name: a, path: @, device: \"cuda:0\" }\n"
               "  - { name: b, path: @, device: \"cuda:1,0\", tensor_parallel: 2 }\n"
               "  - { name: c, path: @, device: \"cuda:7\", workers: 2 }\n");
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct memory_sum sum = { 0 };

        assert_int_equal(READ(A "--config", file), 0);
        for (uint32_t k = 0; k < 3 && t[i].report[k]; k++)
            memory_sum_add(&sum, &c, k, t[i].report[k]);
        memory_sum_check(&sum, &c, t[i].free, &p);
        assert_int_equal(p.n, t[i].error != NULL);
        if (t[i].error) says(t[i].error);
    }
}

static void
options_without_effect_are_refused_by_lagand(void **state)
{
    (void)state;
    assert_int_equal(READ(A "--model", dir, A "--device", A "cpu", A "--set", A "cuda.libs=/opt"),
                     -EINVAL);
    assert_int_equal(p.n, 1);
    assert_non_null(strstr(p.text[0], "cuda.libs is /opt, which has no effect here"));
}

static void
last_set_of_a_key_is_used(void **state)
{
    (void)state;
    assert_int_equal(READ(A "--model", dir, A "--set", A "max_num_seqs=8", A "--set", A "workers=2",
                          A "--set", A "max_num_seqs=4", A "--model", dir),
                     0);
    assert_int_equal(c.model[0].keys.max_num_seqs, 4);
    assert_int_equal(c.model[0].keys.workers, 2);
}

static void
invalid_command_lines_are_refused_by_name(void **state)
{
    (void)state;
    assert_int_equal(READ(A "--modle", dir), -22);
    says("did you mean model?");
    assert_int_equal(READ(A "--model", dir, A "extra"), -22);
    says("\"extra\" is not an option");
    assert_int_equal(READ(A "--model", dir, A "--set", A "kv.memroy=1MiB"), -22);
    says("did you mean kv.memory?");
    assert_int_equal(READ(A "--model", dir, A "--set", A "kv.memory"), -22);
    says("KEY=VALUE is expected");
    assert_int_equal(READ(A "--model", dir, A "--model", A "/tmp"), -22);
    says("it takes one value");
    assert_int_equal(READ(A "--model", A "/nowhere/at/all"), -22);
    says("No such file or directory");
    assert_int_equal(READ(A "--model", file), -22);
    assert_int_equal(READ(A "--config", A "/nowhere/lagan.yaml"), -22);
    says("/nowhere/lagan.yaml: No such file or directory");
    write_file("models:\n  - { name: a, path: @ }\n  - { name: a, path: @ }\n");
    assert_int_equal(READ(A "--config", file, A "--set", A "dtype=fp32"), -22);
    says("two models have the name a");
    says("needs exactly one model, but there are several");
    write_file("log: { level: info }\n");
    assert_int_equal(READ(A "--config", file), -22);
    says("there is no model to serve");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_on_the_command_line_is_sufficient),
        cmocka_unit_test(command_line_overrides_the_file),
        cmocka_unit_test(all_errors_of_a_file_are_reported_with_position),
        cmocka_unit_test(invalid_yaml_is_reported_with_line_and_column),
        cmocka_unit_test(last_set_of_a_key_is_used),
        cmocka_unit_test(models_that_share_a_gpu_are_added_up),
        cmocka_unit_test(options_without_effect_are_refused_by_lagand),
        cmocka_unit_test(invalid_command_lines_are_refused_by_name),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
