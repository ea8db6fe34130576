/* test_operation.c - tests of the laganctl commands that show or control lagand and workers. */
#include "tests/ctl/ctl_fixture.h"
#include "tests/test.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void
tables_are_aligned_and_json_is_the_reply(void **state)
{
    (void)state;
    assert_int_equal(sh("$L workers list"), 0);
    assert_string_equal(
        out, "WORKER   PID  MODEL  DEVICE  STATE  RUNNING  WAITING  KV USED  ARENAS  RESTARTS\n"
             "w0      4711  mock   cpu     ready        3       12      62%     0 B         0\n");
    assert_int_equal(sh("$L workers list --json"), 0);
    assert_int_equal(out[0], '[');
    assert_int_equal(sh("$L model list"), 0);
    assert_string_equal(out, "MODEL  DEVICE  WORKERS  READY  WEIGHTS  DTYPE  LENGTH  TEXT  CHAT\n"
                             "mock   cpu           1      1      0 B  bf16     4096  yes   no\n");
    assert_int_equal(sh("$L model list --json"), 0);
    assert_has(out, "[{\"model\":\"mock\",\"device\":\"cpu\",\"workers\":1,\"ready\":1,"
                    "\"weights\":0,\"dtype\":\"bf16\",\"max_len\":4096,\"text\":\"yes\","
                    "\"chat\":\"no\"}]");
    assert_int_equal(sh("MOCK_TEXT=fault $D/bin/laganctl --spawn models/x model list"), 0);
    assert_has(out, "  ids only (fault)  no\n");
    assert_int_equal(sh("MOCK_TEXT=fault $D/bin/laganctl --spawn models/x status"), 0);
    assert_has(out, "w0: ids only, no text: the tokenizer of model mock could not be loaded;");
    assert_int_equal(sh("$L status"), 0);
    assert_has(out, "lagand 0.1.0  pid 42  up 3d04h  ready  1 of 1 workers ready\n");
    assert_has(out, "requests 15 of 1024\n");
    assert_int_equal(sh("$L requests list"), 0);
    assert_has(out, "17");
    assert_has(out, "1.5 s\n");
    assert_int_equal(sh("$L cancel 17"), 0);
    assert_string_equal(out, "request 17 cancelled\n");
    assert_int_equal(sh("$L drain w0"), 0);
    assert_string_equal(out, "w0  draining, 2 requests to finish\n");
    assert_int_equal(sh("$L drain w9"), 4);
    assert_int_equal(sh("$L drain --json all"), 0);
    assert_string_equal(out, "{\"requests\":2}\n");
}

static void
control_characters_in_names_are_escaped(void **state)
{
    (void)state;
    assert_int_equal(sh("MOCK_MODEL=$(printf 'a\\nb\\033[2Jc') $D/bin/laganctl --spawn models/x "
                        "workers list"),
                     0);
    assert_string_equal(
        out,
        "WORKER   PID  MODEL     DEVICE  STATE  RUNNING  WAITING  KV USED  ARENAS  RESTARTS\n"
        "w0      4711  a b [2Jc  cpu     ready        3       12      62%     0 B         0\n");
}

static void
status_shows_load_progress_or_advice(void **state)
{
    static const char *const states[][2] = {
        { "down", "w0 stays stopped; `laganctl restart w0` starts it\n" },
        { "failed", "w0 is not started again automatically; `laganctl restart w0` starts it\n" },
        { "loading", "  loading 37%  " },
        { "backoff", "w0 will be started again; `laganctl restart w0` starts it now" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        struct mock other;
        char line[160];

        mock_dir(&other);
        setenv("MOCK_DOWN", states[i][0], 1);
        mock_start(&other, "1");
        unsetenv("MOCK_DOWN");
        snprintf(line, sizeof line, "$D/bin/laganctl --connect %s workers list", other.endpoint);
        assert_int_equal(sh(line), 0);
        assert_has(out, "w0        -  mock ");
        assert_has(out, states[i][1]);
        mock_done(&other);
    }
}

static void
status_exits_with_0_only_if_every_worker_is_ready(void **state)
{
    static const struct {
        const char *state, *worker, *options;
        int code;
    } cases[] = {
        { "ready", NULL, "", 0 },
        { "ready", NULL, "--wait", 0 },
        { "degraded", "failed", "", 7 },
        { "degraded", "failed", "--wait", 7 },
        { "degraded", "down", "--json --wait", 7 },
        { "starting", "loading", "", 69 },
        { "starting", "loading", "--wait=1", 6 },
        { "draining", "stopping", "--wait", 69 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mock other;
        char line[160];
        int code;

        mock_dir(&other);
        setenv("MOCK_STATE", cases[i].state, 1);
        if (cases[i].worker) setenv("MOCK_DOWN", cases[i].worker, 1);
        mock_start(&other, "1");
        unsetenv("MOCK_STATE");
        unsetenv("MOCK_DOWN");
        snprintf(line, sizeof line, "./laganctl --connect %s status %s", other.endpoint,
                 cases[i].options);
        code = sh(line);
        if (code != cases[i].code)
            fail_msg("%s %s: exit code %d", cases[i].state, cases[i].options, code);
        mock_done(&other);
    }
}

static void
status_waits_for_a_lagand_that_starts(void **state)
{
    (void)state;
    assert_int_equal(sh("{ sleep 0.5; exec tests/client/mock_lagand $D/late; } & "
                        "./laganctl --connect ipc://$D/late/api.sock status --wait; r=$?; "
                        "kill $!; wait $!; exit $r"),
                     0);
    assert_has(out, "1 of 1 workers ready");
    assert_int_equal(sh("./laganctl --connect ipc://$D/late/api.sock status --wait=1"), 3);
}

static void
top_refreshes_and_shows_rates_from_the_second_sample(void **state)
{
    json_t *o;

    (void)state;
    assert_int_equal(sh("$L top --count 1"), 0);
    assert_string_equal(out, "lagand 0.1.0  ready  requests 15 of 1024, 0 queued\n\n"
                             "WORKER  STATE  RUNNING  WAITING  PROMPT/S  TOKENS/S  STEPS/S  "
                             "STEP MS  TOK/STEP  KV USED  CACHED\n"
                             "w0      ready        3       12         -         -        -      "
                             "2.5        40      62%      0%\n");
    assert_int_equal(sh("$L top --count 2 --every 1 --json"), 0);
    for (int i = 0; i < 2; i++) {
        o = line_of(i);
        assert_int_equal(json_is_null(json_object_get(json_array_get(o, 0), "tokens_s")), i == 0);
        json_decref(o);
    }
    o = line_of(1); /* 1,000 tokens more in each sample */
    assert_in_range(json_number_value(json_object_get(json_array_get(o, 0), "tokens_s")), 1, 1000);
    json_decref(o);
    assert_int_equal(sh("$L top w0"), 2);
    assert_int_equal(sh("timeout --foreground --preserve-status -s INT 2 $L top"), 0);
}

static void
kv_flush_reports_freed_blocks_of_each_worker(void **state)
{
    (void)state;
    assert_int_equal(sh("$L kv flush"), 0);
    assert_string_equal(out, "WORKER  BLOCKS     BYTES  HOST BLOCKS  HOST BYTES\n"
                             "w0          12  12.0 KiB            3     3.0 KiB\n");
    assert_int_equal(sh("$L kv flush w0 --json"), 0);
    assert_string_equal(out, "[{\"worker\":\"w0\",\"blocks\":12,\"bytes\":12288,\"host_blocks\":3,"
                             "\"host_bytes\":3072}]\n");
    assert_int_equal(sh("$L kv flush nope"), 4);
    assert_string_equal(out, "");
    assert_int_equal(sh("$L kv flush w0 w1"), 2);
}

static void
failure_of_one_worker_does_not_stop_the_others(void **state)
{
    (void)state;
    assert_int_equal(sh("MOCK_WORKERS=3 $D/bin/laganctl --spawn models/x drain all"), 4);
    assert_string_equal(out, "w0  draining, 2 requests to finish\n");
    assert_int_equal(sh("MOCK_WORKERS=3 $D/bin/laganctl --spawn models/x kv flush"), 1);
    assert_has(out, "w0  ");
    assert_has(out, "w2  ");
    assert_has(err, "the worker is not there");
}

static void
tune_waits_and_prints_the_selected_algorithms(void **state)
{
    json_t *o;

    (void)state;
    assert_int_equal(sh("$L tune"), 0);
    assert_string_equal(out, "MATMUL        ROWS  USED      BEFORE us  AFTER us\n"
                             "[6144, 4096]    24  measured       20.0      14.5\n"
                             "[6144, 4096]    48  default        20.0      20.0\n"
                             "1 of 2 are faster than the algorithms that cuBLASLt proposes\n");
    assert_int_equal(sh("$L tune w0 --json"), 0);
    o = line_of(0);
    assert_int_equal(json_array_size(json_object_get(o, "rows")), 2);
    assert_int_equal(json_integer_value(json_object_get(o, "total")), 3);
    json_decref(o);
    assert_int_equal(sh("$L tune full"), 1);
    assert_has(out, "1 of 2 are faster");
    assert_has(err, "ended after 3 of 3 matmuls: the disk is full");
    assert_int_equal(sh("$L tune cpu"), 5);
    assert_has(err, "this worker has nothing to tune");
    assert_int_equal(sh("$L tune w0 w1"), 2);
}

/* Starts laganctl in the background; its output goes to a file. */
static pid_t
begin(const char *command, const char *path)
{
    char line[512];
    pid_t pid;

    snprintf(line, sizeof line, "exec ./laganctl --connect %s %s >%s 2>&1", mock.endpoint, command,
             path);
    pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    return pid;
}

static void
await_words(pid_t pid, const char *path, const char *words)
{
    char text[8192];

    for (;;) {
        FILE *f = fopen(path, "r");

        text[f ? fread(text, 1, sizeof text - 1, f) : 0] = '\0';
        if (f) fclose(f);
        if (strstr(text, words)) return;
        if (waitpid(pid, NULL, WNOHANG) != 0) fail_msg("it ended without '%s': %s", words, text);
        usleep(10000);
    }
}

static void
follow_mode_continues_after_a_lagand_restart(void **state)
{
    static const struct {
        const char *command, *first;
        int signal, status;
    } cases[] = {
        { "events -f", "loading -> ready", SIGINT, 130 },
        { "top --every 1 --count 3", "WORKER", 0, 0 },
    };
    char path[128];
    int status;

    (void)state;
    snprintf(path, sizeof path, "%s/watched", mock.dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pid_t pid = begin(cases[i].command, path);

        await_words(pid, path, cases[i].first);
        mock_kill(&mock);
        await_words(pid, path, "laganctl: ");
        mock_start(&mock, "1");
        if (cases[i].signal) {
            usleep(700000); /* the request has arrived by then */
            kill(pid, cases[i].signal);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), cases[i].status);
        unlink(path);
    }
}

static void
panic_prints_the_last_or_all_failures(void **state)
{
    (void)state;
    assert_int_equal(sh("$L events --last 1"), 0);
    assert_has(out, ".713  worker    w0   loading -> ready");
    assert_null(strstr(out, "down -> loading"));
    assert_int_equal(sh("$L events --json"), 0);
    assert_has(out, "{\"number\":1,\"at_ms\":1795278406713,");
    assert_has(out, "\"number\":3,");
    assert_int_equal(sh("timeout -s INT 2 $L events -f"), 124);
    assert_has(out, "loading -> ready");
    assert_int_equal(sh("$L panic"), 0);
    assert_has(out, "panic message: x.c:7: check(sky) failed");
    assert_has(out, "  | the last line");
    assert_int_equal(sh("$L panic --json"), 0);
    assert_has(out, "\"cause\":\"check\"");
    assert_int_equal(sh("$L metrics"), 0);
    assert_string_equal(out, "# TYPE mock gauge\nmock 1\n");
    assert_int_equal(sh("$L metrics now"), 2);
}

static void
numbered_rows_are_followed_and_losses_printed(void **state)
{
    (void)state;
    assert_int_equal(sh("$L steps"), 0);
    assert_has(out, "77");
    assert_has(out, "2.500  5+6 / ");
    assert_int_equal(sh("$L steps --json --last 1"), 0);
    assert_has(out, "{\"number\":4,");
    assert_has(out, "\"worker\":\"w0\"}");
    assert_null(strstr(out, "\"number\":3,"));
    assert_int_equal(sh("$L steps --json --last 4"), 0); /* asks for step 1 */
    assert_has(out, "{\"worker\":\"w0\",\"lost\":2}\n{\"number\":3,");
    assert_int_equal(sh("$L steps w7"), 4);
    assert_has(err, "there is no worker w7");
    assert_int_equal(sh("$L kv events --json"), 0);
    assert_has(out, "{\"number\":6,\"op\":\"stored\",");
    assert_has(out, "{\"number\":7,\"op\":\"removed\",");
    assert_int_equal(sh("$L kv events --last 1"), 0);
    assert_string_equal(out, "w0              7  removed  pressure  00ff  after aa00  group 0  "
                             "host    16 tokens\n");
    assert_int_equal(sh("timeout -s INT 2 $L kv events -f --json w0"), 124);
    assert_has(out, "{\"name\":\"00ff\",\"parent\":\"aa00\"");
    assert_null(strstr(out, "number")); /* the events before are in the blocks */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_aligned_and_json_is_the_reply),
        cmocka_unit_test(control_characters_in_names_are_escaped),
        cmocka_unit_test(status_shows_load_progress_or_advice),
        cmocka_unit_test(status_exits_with_0_only_if_every_worker_is_ready),
        cmocka_unit_test(status_waits_for_a_lagand_that_starts),
        cmocka_unit_test(top_refreshes_and_shows_rates_from_the_second_sample),
        cmocka_unit_test(kv_flush_reports_freed_blocks_of_each_worker),
        cmocka_unit_test(failure_of_one_worker_does_not_stop_the_others),
        cmocka_unit_test(tune_waits_and_prints_the_selected_algorithms),
        cmocka_unit_test(follow_mode_continues_after_a_lagand_restart),
        cmocka_unit_test(panic_prints_the_last_or_all_failures),
        cmocka_unit_test(numbered_rows_are_followed_and_losses_printed),
    };

    return cmocka_run_group_tests_name("operation", tests, ctl_setup, ctl_teardown);
}
