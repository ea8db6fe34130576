/* script_runner.c - runs every *.script file of this folder as a test. The first line of a file is
 * "# TITLE"; the title is the name of the test. */
#include "tests/e2e/script.h"
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <glob.h>
#include <stdio.h>

enum { MAX_SCRIPTS = 100, MAX_TITLE = 100, MAX_SCRIPT = 1 << 16 };

static void
run_script(void **state)
{
    static char text[MAX_SCRIPT], error[8192];
    const char *path = *state;
    FILE *f = fopen(path, "re");

    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    if (!script_run(path, text, error, sizeof error)) fail_msg("%s", error);
}

#define SERVE "serve tests/data/golden/llama2 kv.memory=16MiB threads=1\n"
#define FOUR "ask a {\"ids\":[1],\"max_tokens\":4,\"ignore_eos\":true}\nawait a\n"

static void
wrong_lines_fail_with_line_and_reason(void **state)
{
    static const char *const wrong[][2] = {
        { "# a comment\n\nfrobnicate a\n", "t:3: unknown command frobnicate" },
        { "ask a\n", "t:1: usage: ask NAME {KEYS}" },
        { "stop now\n", "t:1: usage: stop" },
        { "ask a {}\n", "t:1: ask needs a lagand" },
        { "config a\n", "t:1: expected KEY=VALUE, got a" },
        { "repeat 2\nconfig a=1\n", "t:2: repeat without end" },
        { "end\n", "t:1: end without repeat" },
        { "shell echo no; exit 3\n", "t:1: exit code 3: no" },
        { "shell echo yes\noutput contains no\n", "t:2: expected output contains \"no\", got" },
        { "shell echo yes\nexit 1\n", "t:2: expected exit code 1, got 0" },
        { "shell true\noutput was no\n", "t:2: unknown operator was" },
    };
    char error[8192];

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(script_run("t", wrong[i][0], error, sizeof error));
        if (!strstr(error, wrong[i][1])) fail_msg("%s: %s", wrong[i][1], error);
    }
}

static void
false_expectations_fail_with_both_values(void **state)
{
    static const char *const wrong[][2] = {
        { FOUR "expect a n_tokens is 5\n", "t:4: expected n_tokens of a is \"5\", got \"4\"" },
        { FOUR "expect a n_tokens > 4\n", "t:4: expected n_tokens of a > \"4\", got \"4\"" },
        { FOUR "expect a finish is\n  stop\n",
          "t:4: expected finish of a is \"stop\", got \"length" },
        { FOUR "expect a speed is 1\n", "t:4: a request has no field speed" },
        { FOUR "expect b finish is length\n", "t:4: there is no request b" },
        { FOUR "ask b {\"ids\":[1,2],\"max_tokens\":4,\"ignore_eos\":true}\nawait b\n"
               "expect a output same b\n",
          "t:6: expected output of a is" },
        { "ask a {\"ids\":[1],\"max_tokens\":200}\nask a {\"ids\":[1]}\n",
          "t:3: request a has not" },
        { "ask a {\"ids\":[1],\"max_tokens\":200}\nexpect a n_tokens > 0\n",
          "t:3: request a has not" },
        { "ask a {1\n", "t:2: not JSON: {1" },
        { "deadline 1\nmetric lagan_requests_ended_total is 7\n", "is \"7\", got \"0\"" },
        { "deadline 1\nlog contains no such line\n", "t:3: expected log contains" },
        { "call tokenize {}\nexit 0\n", "t:3: expected exit code 0, got 1" },
    };
    char error[8192], text[1024];

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, "%s%s", SERVE, wrong[i][0]);
        assert_false(script_run("t", text, error, sizeof error));
        if (!strstr(error, wrong[i][1])) fail_msg("%s: %s", wrong[i][1], error);
    }
}

/* Returns the title of a script, or its path if the first line is no title. */
static char *
title_of(const char *path)
{
    char line[MAX_TITLE + 3] = "";
    FILE *f = fopen(path, "re");

    if (f && fgets(line, sizeof line, f)) line[strcspn(line, "\n")] = 0;
    if (f) fclose(f);
    return strdup(strncmp(line, "# ", 2) ? path : line + 2);
}

int
main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 + MAX_SCRIPTS] = {
        cmocka_unit_test(wrong_lines_fail_with_line_and_reason),
        cmocka_unit_test(false_expectations_fail_with_both_values),
    };
    size_t n = 2;
    glob_t g;
    int failed;

    serve_args(argc, argv);
    if (glob(source_path("tests/e2e/*.script"), 0, NULL, &g)) {
        fprintf(stderr, "no script in %s\n", source_path("tests/e2e"));
        return 1;
    }
    for (size_t i = 0; i < g.gl_pathc && n < sizeof tests / sizeof *tests; i++)
        tests[n++] = (struct CMUnitTest){ .name = title_of(g.gl_pathv[i]),
                                          .test_func = run_script,
                                          .initial_state = g.gl_pathv[i] };
    failed = _cmocka_run_group_tests("scripts", tests, n, NULL, NULL);
    for (size_t i = 2; i < n; i++) free((char *)(uintptr_t)tests[i].name);
    globfree(&g);
    return failed;
}
