/* test_ctl.c - tests of the output and exit codes of laganctl for requests, errors and --spawn. */
#include "tests/ctl/ctl_fixture.h"
#include "tests/test.h"

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void
generate_prints_text_and_one_summary_line(void **state)
{
    (void)state;
    assert_int_equal(sh("$L generate --text 'echo hello world' --max-tokens 64"), 0);
    assert_string_equal(out, "hello world\n");
    assert_has(err, "ok  ttft ");
    assert_has(err, " · 11 tokens · ");
    assert_has(err, " tok/s · stop: eos\n");
    assert_null(strstr(err, "--json"));
    assert_int_equal(sh("$L generate --ids 104,105 --logprobs 2"), 0);
    assert_string_equal(out, "hi\n");
    assert_has(err, " · use --json to print the requested values\n");
}

/* The final tokens of a beam search arrive at once, so the measured time would be microseconds. */
static void
printed_throughput_never_exceeds_the_observed_rate(void **state)
{
    double ttft, pace;
    const char *at;

    (void)state;
    assert_int_equal(sh("$L generate --text 'echo hello world' --max-tokens 64"), 0);
    at = strstr(err, "ttft ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "ttft %lf ms · 11 tokens · %lf tok/s", &ttft, &pace), 2);
    if (pace > 10 / 0.01) assert_true((pace - 1) * (ttft - 0.06) / 1000 < 11);
}

static void
json_output_has_every_documented_key(void **state)
{
    static const char *const keys[] = { "request", "output",          "ids",      "text",
                                        "finish",  "score",           "cached",   "logprobs",
                                        "error",   "prompt_logprobs", "seed",     "resumed",
                                        "adopted", "recomputed",      "kv_blocks" };
    json_t *o, *lp;
    size_t i;

    (void)state;
    assert_int_equal(sh("$L generate --text logprobs --logprobs 2 --prompt-logprobs 0 --json"), 0);
    assert_string_equal(err, "");
    o = line_of(0);
    for (i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_object_get(o, keys[i])) fail_msg("no %s", keys[i]);
    assert_int_equal(json_object_size(o), sizeof keys / sizeof *keys);
    assert_string_equal(json_string_value(json_object_get(o, "finish")), "eos");
    assert_int_equal(json_integer_value(json_object_get(o, "seed")), 99);
    assert_int_equal(json_integer_value(json_object_get(o, "cached")), 3);
    assert_true(json_is_null(json_object_get(o, "error")));
    lp = json_array_get(json_object_get(o, "logprobs"), 1);
    assert_int_equal(json_integer_value(json_object_get(lp, "id")), 'i');
    assert_true(json_real_value(json_object_get(lp, "logprob")) == -1.5);
    lp = json_array_get(json_object_get(lp, "top"), 0);
    assert_int_equal(json_integer_value(json_array_get(lp, 0)), 'j');
    assert_true(json_real_value(json_array_get(lp, 1)) == -1.25);
    lp = json_object_get(o, "prompt_logprobs");
    assert_int_equal(json_array_size(lp), 3);
    assert_true(json_is_null(json_array_get(lp, 0)));
    json_decref(o);
}

static void
stream_prints_token_batches_then_the_final_line(void **state)
{
    json_t *o;
    int i;

    (void)state;
    assert_int_equal(sh("$L generate --text 'echo abc' --stream"), 0);
    for (i = 0; i < 3; i++) {
        o = line_of(i);
        assert_int_equal(json_integer_value(json_object_get(o, "first")), i);
        assert_int_equal(json_integer_value(json_array_get(json_object_get(o, "ids"), 0)), 'a' + i);
        json_decref(o);
    }
    o = line_of(3);
    assert_string_equal(json_string_value(json_object_get(o, "text")), "abc");
    json_decref(o);
}

static void
skipped_token_index_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(sh("$L generate --text skip"), 3);
    assert_has(err, "invalid values");
}

static void
requests_file_keeps_tags_and_continues_after_errors(void **state)
{
    bool seen[4] = { false };
    int i;

    (void)state;
    assert_int_equal(sh("printf '%s\\n' '{\"text\":\"echo one\",\"tag\":\"a\"}' "
                        "'{\"text\":\"echo two\",\"tag\":{\"x\":1},\"max_tokens\":2}' '{bad' '' "
                        "'{\"ids\":[104,105]}' | $L generate --requests - --concurrency 4 --json"),
                     1);
    for (i = 0; i < 4; i++) {
        json_t *o = line_of(i), *tag = json_object_get(o, "tag");
        long long q = json_integer_value(json_object_get(o, "request"));
        const char *text = json_string_value(json_object_get(o, "text"));

        assert_in_range(q, 0, 3);
        assert_false(seen[q]);
        seen[q] = true;
        if (q == 0) assert_string_equal(json_string_value(tag), "a");
        if (q == 1) assert_true(json_is_object(tag));
        if (q == 1) assert_string_equal(text, "tw");
        if (q == 2)
            assert_has(json_string_value(json_object_get(json_object_get(o, "error"), "message")),
                       "line 3: column");
        if (q == 3) assert_string_equal(text, "hi");
        json_decref(o);
    }
}

static void
exit_code_of_many_requests_is_1_if_their_failures_differ(void **state)
{
    static const struct {
        const char *texts; /* of the requests, one after the other */
        int code;
    } cases[] = {
        { "'echo a' 'error 34'", 75 },
        { "'error 34' 'echo a' 'error 34'", 75 },
        { "'error 34' 'error 39'", 1 },
        { "'error 39' 'error 34'", 1 },
        { "'error 34' 'error 39' 'error 39'", 1 },
        { "'echo a' 'echo b'", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        int code;

        snprintf(line, sizeof line,
                 "printf '{\"text\":\"%%s\"}\\n' %s | $L generate --requests - --json",
                 cases[i].texts);
        code = sh(line);
        if (code != cases[i].code) fail_msg("%s: exit code %d", cases[i].texts, code);
    }
}

static void
each_output_is_printed_before_the_next_input_line(void **state)
{
    (void)state;
    assert_int_equal(
        sh("mkfifo $D/in $D/outputs; $L generate --requests $D/in --concurrency 8 --json "
           ">$D/outputs & exec 4<$D/outputs 3>$D/in; rm $D/in $D/outputs; for i in 1 2 3; do "
           "echo \"{\\\"text\\\":\\\"echo $i\\\"}\" >&3; read output <&4; echo \"$output\"; done; "
           "exec 3>&-; wait $!"),
        0);
    assert_has(out, "\"text\":\"3\"");
}

static void
every_error_has_its_exit_code(void **state)
{
    static const struct {
        const char *line;
        int code;
        const char *words;
    } cases[] = {
        { "$L generate --text 'error 34'", 75, "queue_full: as the test wished" },
        { "$L generate --text 'error 39'", 77, "unauthorized" },
        { "$L generate --text 'error 38'", 4, "model_not_found" },
        { "$L generate --text 'error 37'", 69, "draining" },
        { "$L generate --text 'error 35'", 6, "deadline" },
        { "$L generate --text 'error 33'", 1, "too_long" },
        { "$L generate --text 'error 45'", 1, "internal" },
        { "$L generate --text x --max-tokens 0", 2, "max_tokens is 0" },
        { "$L generate --text x --max-tokens 2147483648", 2, "max_tokens is 2147483648" },
        { "$L generate --text x --ids 1", 2, "both ids and text" },
        { "$L generate --text ''", 2, "text is empty" },
        { "$L generate --ids ''", 2, "ids is empty" },
        { "$L generate --text x --beams 4 --n 5", 2, "n is 5" },
        { "$L generate --text x --n 2", 2, "set temperature" },
        { "$L generate --text $(printf 'caf\\351')", 2, "text is not UTF-8" },
        { "$L generate --text x --stop $(printf '\\351')", 2, "stop is not UTF-8" },
        { "$L tokenize --text $(printf 'caf\\351')", 2, "--text: the text is not UTF-8" },
        { "$L bench --model $(printf 'caf\\351')", 2, "--model: the text is not UTF-8" },
        { "echo '{\"text\":\"x\",\"max_tokens\":0}' | $L generate --requests -", 1,
          "max_tokens is 0" },
        { "$L generate --text x --logit-bias 5:a", 2, "a list TOKEN_ID:BIAS" },
        { "$L generate --text bye", 69, "draining" },
        { "$L generate --text 'raw c1'", 3, "invalid message" },
        { "$L generate --text x --max-tokens y", 2, "'y' is not a whole number" },
        { "$L generate --text x --temperature nan", 2, "not a number" },
        { "$L generate --ids 1,,2", 2, "not a token id" },
        { "$L generate --text x --max-tokes 3", 2, "did you mean max_tokens?" },
        { "$L generate --text", 2, "needs a value" },
        { "$L generate", 2, "the prompt is missing" },
        { "$L generate hello", 2, "'hello' is not an option; use --text or --ids for the prompt" },
        { "$L chat hello", 2, "'hello' is not an option; messages are read from standard input" },
        { "$L detokenize --model x", 2, "detokenize needs --ids 1,2,3" },
        { "$L tokenize --bare", 2, "tokenize needs --text TEXT" },
        { "./laganctl config check /no/such/file", 78,
          "lagand: --config /no/such/file: No such file" },
        { "$L generate --requests /no/such/file", 2, "/no/such/file: No such file" },
        { "$L nonsense", 2, "no command 'nonsense'; `laganctl --help` lists them" },
        { "$L staus", 2, "no command 'staus'; did you mean 'status'?" },
        { "$L kv flsh", 2, "no command 'kv flsh'; did you mean 'kv flush'?" },
        { "$L workers now", 2, "no command 'workers now'" },
        { "$L help nonsense", 2, "no command 'nonsense'" },
        { "$L status --wait=x", 2, "\"x\" is not a whole number" },
        { "$L workers", 2, "'workers' needs one of these words after it: list" },
        { "$L cancel x", 2, "is not a request id" },
        { "$L cancel", 2, "usage: laganctl cancel ID" },
        { "$L cancel 18", 4, "no request has the id" },
        { "./laganctl --connect ipc://$D/ctl.sock cancel 18", 4, "no request has the id" },
        { "$L cancel 99999999999999999999", 2, "is not a request id" },
        { "$L kv stats", 5, "no such verb" },
        { "$L --colour status", 2, "unknown key" },
        { "$L --set a=b status", 2, "need --spawn" },
        { "$L --spawn models/x status", 2, "use only one of them" },
        { "$L reload now", 2,
          "laganctl: reload takes no argument (see `laganctl reload --help`)\n" },
        { "$L workers list w0", 2, "workers list takes no argument" },
        { "$L status w0", 2, "status takes no argument" },
        { "$L panic w0", 2, "panic takes no argument" },
        { "$L top w0", 2, "top takes no argument" },
        { "$L drain", 2, "usage: laganctl drain WORKER|all\n" },
        { "$L drain w0 w1", 2, "usage: laganctl drain WORKER|all\n" },
        { "$L keygen", 2, "usage: laganctl keygen FILE\n" },
        { "./laganctl --connect ipc:///tmp/lagan-no-such/api.sock status", 3, "no lagand at" },
        { "./laganctl --connect nonsense status", 2, "expected ipc://PATH or tcp://HOST:PORT" },
        { "./laganctl --keys /no/keys --connect tcp://localhost:1 status", 78,
          "/no/keys: No such" },
        { "./laganctl --connect", 2, "--connect needs a value: ENDPOINT" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        int code = sh(cases[i].line);

        if (code != cases[i].code || !strstr(err, cases[i].words))
            fail_msg("%s: exit code %d, '%s'", cases[i].line, code, err);
    }
}

static void
single_value_options_reject_a_second_value(void **state)
{
    static const char *const lines[] = {
        "$L --connect ipc://b/api.sock status",
        "$L generate --text a --text b",
        "$L generate --text a --concurrency 2 --json --concurrency=3",
        "$L chat --system a --system b",
        "$L bench --input 3 --json --input 5",
        "$L tokenize --text a --text b",
        "./lagand --model models/a --model models/b",
        "./lagan-worker --path=a --path=b",
        "./lagan-worker --rank=1 --rank=0",
        "./lagan-sim run --model a --model b",
        "./lagan-sim soak --seed 1 --seed 2",
    };

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int code = sh(lines[i]);

        if (code != 2 || !strstr(err, "it takes one value"))
            fail_msg("%s: exit code %d, '%s'", lines[i], code, err);
    }
    assert_int_equal(sh("$L generate --ids 1,2 --ids 1,2 --stop a --stop b"), 0);
}

static void
json_error_is_one_line_with_the_error_name(void **state)
{
    json_t *o, *e;

    (void)state;
    assert_int_equal(sh("$L generate --text 'late 45' --json"), 1);
    o = line_of(0);
    e = json_object_get(o, "error");
    assert_string_equal(json_string_value(json_object_get(o, "finish")), "error");
    assert_string_equal(json_string_value(json_object_get(o, "text")), "a");
    assert_string_equal(json_string_value(json_object_get(e, "code")), "internal");
    assert_string_equal(json_string_value(json_object_get(e, "message")), "after a token");
    assert_true(json_is_true(json_object_get(e, "retryable")));
    json_decref(o);
}

static void
interrupt_cancels_and_exits_with_130(void **state)
{
    json_t *o;

    (void)state;
    /* A shell ignores SIGINT in background processes, so timeout sends the signal. --foreground,
     * because otherwise the process group gets it too and the second interrupt ends the wait. */
    assert_int_equal(sh("timeout --foreground --preserve-status -s INT 2 $L "
                        "generate --text hang --json"),
                     130);
    o = line_of(0);
    assert_string_equal(json_string_value(json_object_get(o, "finish")), "cancelled");
    json_decref(o);
}

static void
second_signal_exits_without_waiting(void **state)
{
    char line[512];

    (void)state;
    /* 130: laganctl waited for the ERROR; 143: the second signal ended it. */
    snprintf(line, sizeof line,
             "$L generate --text hang & p=$!; sleep 1; kill -STOP %d; kill -INT $p; "
             "while grep -q '^ShdPnd:.*2$' /proc/$p/status; do :; done; sleep .2; "
             "kill -TERM $p; wait $p; r=$?; kill -CONT %d; exit $r",
             (int)mock.pid, (int)mock.pid);
    assert_int_equal(sh(line), 143);
}

static void
failed_write_to_standard_output_is_a_failure(void **state)
{
    static const char *const commands[] = { "status", "metrics", "--help",
                                            "generate --text 'echo x' --json" };

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        char line[96];

        snprintf(line, sizeof line, "$L %s >/dev/full", commands[i]);
        assert_int_equal(sh(line), 1);
        assert_has(err, "laganctl: standard output could not be written completely");
    }
    /* The last request of the file is cancelled. */
    assert_int_equal(sh("(for i in 1 2 3 4 5; do echo '{\"text\": \"echo x\"}'; done; "
                        "echo '{\"text\": \"hang\"}') | "
                        "timeout 20 $L generate --requests - --concurrency 1 --json >/dev/full"),
                     1);
}

static void
bench_counts_and_times_requests(void **state)
{
    static const char *const keys[] = { "request_throughput", "output_throughput", "mean_ttft_ms",
                                        "p90_ttft_ms",        "p99_ttft_ms",       "mean_tpot_ms",
                                        "p90_itl_ms",         "p99_itl_ms" };
    json_t *o;

    (void)state;
    assert_int_equal(sh("$L bench --prompts 20 --input 7 --output 5 --rate 40 --seed 3 --json"), 0);
    o = line_of(0);
    assert_int_equal(json_integer_value(json_object_get(o, "completed")), 20);
    assert_int_equal(json_integer_value(json_object_get(o, "failed")), 0);
    assert_int_equal(json_integer_value(json_object_get(o, "total_input_tokens")), 20 * 7);
    assert_int_equal(json_integer_value(json_object_get(o, "total_output_tokens")), 20 * 5);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_true(json_real_value(json_object_get(o, keys[i])) >= 0 &&
                    json_is_real(json_object_get(o, keys[i])));
    assert_string_equal(json_string_value(json_object_get(o, "model_id")), "mock");
    assert_int_equal(strlen(json_string_value(json_object_get(o, "date"))), 15);
    /* a time has at most 6 digits: 4.9148481960000003 shows more than was measured */
    for (const char *p = out; *p; p++) {
        size_t n = strspn(p, "0123456789.");

        if (n > 11 && memchr(p, '.', n)) fail_msg("%.*s in %s", (int)n, p, out);
        p += n ? n - 1 : 0;
    }
    assert_true(json_real_value(json_object_get(o, "duration")) > .15); /* usually 0.5 */
    assert_true(json_real_value(json_object_get(o, "request_throughput")) < 20 / .15);
    json_decref(o);
    assert_int_equal(sh("$L bench --prompts 3 --concurrency 1"), 0);
    assert_has(out, "completed                           3\n");
    assert_int_equal(sh("$L bench 5"), 2);
}

static void
tokenize_and_detokenize_print_json(void **state)
{
    (void)state;
    assert_int_equal(sh("$L tokenize --text hi"), 0);
    assert_string_equal(out, "{\"ids\":[104,105]}\n");
    assert_int_equal(sh("$L detokenize --ids 104,105"), 0);
    assert_string_equal(out, "{\"text\":\"a \\\"quoted\\\" line\\n\"}\n");
    assert_int_equal(sh("printf '{\"text\":\"a\"}\\n{\"text\":\"b\"}' | $L tokenize --requests -"),
                     0);
    assert_string_equal(out, "{\"ids\":[104,105]}\n{\"ids\":[104,105]}\n");
    assert_int_equal(sh("echo '{\"text\":\"a\",\"tag\":[7,\"x\"]}' | $L tokenize --requests -"), 0);
    assert_string_equal(out, "{\"ids\":[104,105],\"tag\":[7,\"x\"]}\n");
    assert_int_equal(sh("$L tokenize --model mock --text hi"), 0);
    assert_int_equal(sh("$L tokenize --model other --text hi"), 4);
    assert_int_equal(sh("echo '{\"text\":\"a\",\"model\":\"mock\"}' | "
                        "$L tokenize --model other --requests -"),
                     0);
    assert_int_equal(sh("$L tokenize"), 2);
    assert_has(err, "--text TEXT, --messages JSON or --requests FILE.jsonl");
    assert_int_equal(sh("$L detokenize"), 2);
    assert_has(err, "--ids 1,2,3 or --requests FILE.jsonl");
}

static void
keygen_writes_a_private_file_and_prints_the_public_key(void **state)
{
    char dir[] = "/tmp/lagan-keygen-XXXXXX", path[sizeof dir + 2], command[128];
    struct stat st;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/k", dir);
    snprintf(command, sizeof command, "$L keygen %s", path);
    assert_int_equal(sh(command), 0);
    assert_has(out, "add to api.keys of lagand    client ");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(sh(command), 1);
    assert_has(err, "exists; keygen does not overwrite");
    unlink(path);
    strcat(command, " --json");
    assert_int_equal(sh(command), 0);
    assert_has(out, "\"public\":\"");
    unlink(path);
    rmdir(dir);
    assert_int_equal(sh("$L keygen"), 2);
    assert_int_equal(sh("$L keygen /no/such/dir/k"), 1);
    assert_int_equal(sh("./laganctl --connect tcp://localhost:1 status"), 2);
    assert_has(err, "needs --keys FILE");
}

static void
help_names_every_command_option_and_exit_code(void **state)
{
    static const char *const commands[] = {
        "generate",      "tokenize",   "detokenize",    "status",    "workers list", "cancel",
        "requests list", "kv stats",   "drain",         "restart",   "config show",  "config check",
        "tune",          "reload",     "daemon reexec", "chat",      "model list",   "model verify",
        "split show",    "split auto", "split off",     "split set", "kv pools",     "kv flush",
        "top",           "bench"
    };
    size_t i;

    (void)state;
    assert_int_equal(sh("./laganctl --help"), 0);
    for (i = 0; i < sizeof commands / sizeof *commands; i++) assert_has(out, commands[i]);
    assert_has(out, "--spawn MODEL_DIR");
    assert_has(out, " 75  ");
    for (i = 0; i < sizeof commands / sizeof *commands; i++) {
        char line[64];

        snprintf(line, sizeof line, "./laganctl %s --help", commands[i]);
        assert_int_equal(sh(line), 0); /* works without a lagand */
        assert_has(out, "Usage: laganctl");
        assert_has(out, "--json");
        assert_has(out, "Exit codes:");
        for (char *p = out; *p; p += strcspn(p, "\n") + 1)
            if (strcspn(p, "\n") > 99) fail_msg("%s: a line is too long: %.110s", line, p);
    }
    assert_int_equal(sh("./laganctl generate --help"), 0);
    assert_has(out, "--repetition-penalty");
    assert_int_equal(sh("./laganctl help generate"), 0);
    assert_has(out, "--repetition-penalty");
    assert_int_equal(sh("./laganctl help"), 0);
    assert_has(out, "Commands:\n  generate ");
    assert_int_equal(sh("./laganctl kv --help && ./laganctl help kv"), 0);
    assert_has(out, "\n  kv flush ");
    assert_has(out, "`laganctl kv WORD --help` describes one command.\n");
    assert_int_equal(sh("./laganctl -h && ./lagand -h && ./lagan-sim -h"), 0);
    assert_int_equal(sh("./lagan-sim --version"), 0);
    assert_has(out, "lagan-sim 0.1.0\n");
    assert_int_equal(sh("./laganctl"), 2);
    assert_int_equal(sh("./laganctl --version"), 0);
    assert_has(out, "laganctl 0.1.0\n");
}

static void
example_program_prints_the_output(void **state)
{
    char line[200];

    (void)state;
    snprintf(line, sizeof line, "client/example 'echo yes' %s", mock.endpoint);
    assert_int_equal(sh(line), 0);
    assert_string_equal(out, "yes\n");
    assert_int_equal(sh("client/example x ipc:///tmp/lagan-no-such/api.sock"), 3);
}

/* ---- --spawn */

static bool
run_dir_is_gone(void)
{
    char dir[128];
    struct stat st;
    FILE *f;

    snprintf(dir, sizeof dir, "%s/rundir", mock.dir);
    f = fopen(dir, "r");
    if (!f || fscanf(f, "%127s", dir) != 1) fail_msg("no run directory was noted");
    fclose(f);
    return stat(dir, &st) < 0;
}

static void
spawn_leaves_no_process_or_file(void **state)
{
    (void)state;
    assert_int_equal(sh("$D/bin/laganctl --spawn models/x --device cpu --set kv.memory=64MiB --set "
                        "max_num_seqs=8 generate --text 'echo hello' && cat $D/args"),
                     0);
    assert_has(out, "hello\n");
    assert_has(out, "--model models/x --device cpu --set kv.memory=64MiB --set max_num_seqs=8");
    assert_true(run_dir_is_gone());
    assert_int_equal(sh("$D/bin/laganctl --spawn models/x generate --text 'error 34'"), 75);
    assert_true(run_dir_is_gone());
}

static void
spawn_prints_why_lagand_cannot_start(void **state)
{
    (void)state;
    assert_int_equal(sh("FAKE=config $D/bin/laganctl --spawn models/x status"), 78);
    assert_has(err, "lagand: lagan.yaml:3: no such key \"colour\"\n");
    assert_has(err, "lagand could not start (exit code 78)");
    assert_int_equal(sh("FAKE=crash $D/bin/laganctl --spawn models/x status"), 1);
    assert_has(err, "something broke");
    assert_has(err, "killed by signal 11");
}

static void
killed_laganctl_leaves_no_process_or_file(void **state)
{
    int tries = 2000;

    (void)state;
    assert_int_equal(sh("$D/bin/laganctl --spawn models/x generate --text hang & p=$!; "
                        "until test -e \"$(cat $D/rundir 2>/dev/null)/api.sock\"; do sleep 0.02; "
                        "done; sleep 0.3; "
                        "kill -9 $p; wait $p"),
                     128 + SIGKILL);
    while (!run_dir_is_gone() && --tries) usleep(10000);
    assert_true(tries > 0);
}

static void
interrupt_during_spawn_stops_lagand(void **state)
{
    (void)state;
    /* --foreground, because otherwise the process group gets the signal too, and a second interrupt
     * exits at once and leaves files. */
    assert_int_equal(
        sh("FAKE=deaf timeout --foreground --preserve-status -s INT 0.3 $D/bin/laganctl "
           "--spawn models/x status"),
        130);
    assert_true(run_dir_is_gone());
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_prints_text_and_one_summary_line),
        cmocka_unit_test(printed_throughput_never_exceeds_the_observed_rate),
        cmocka_unit_test(json_output_has_every_documented_key),
        cmocka_unit_test(stream_prints_token_batches_then_the_final_line),
        cmocka_unit_test(skipped_token_index_is_an_error),
        cmocka_unit_test(requests_file_keeps_tags_and_continues_after_errors),
        cmocka_unit_test(exit_code_of_many_requests_is_1_if_their_failures_differ),
        cmocka_unit_test(each_output_is_printed_before_the_next_input_line),
        cmocka_unit_test(every_error_has_its_exit_code),
        cmocka_unit_test(single_value_options_reject_a_second_value),
        cmocka_unit_test(json_error_is_one_line_with_the_error_name),
        cmocka_unit_test(interrupt_cancels_and_exits_with_130),
        cmocka_unit_test(second_signal_exits_without_waiting),
        cmocka_unit_test(failed_write_to_standard_output_is_a_failure),
        cmocka_unit_test(bench_counts_and_times_requests),
        cmocka_unit_test(tokenize_and_detokenize_print_json),
        cmocka_unit_test(keygen_writes_a_private_file_and_prints_the_public_key),
        cmocka_unit_test(help_names_every_command_option_and_exit_code),
        cmocka_unit_test(example_program_prints_the_output),
        cmocka_unit_test(spawn_leaves_no_process_or_file),
        cmocka_unit_test(spawn_prints_why_lagand_cannot_start),
        cmocka_unit_test(killed_laganctl_leaves_no_process_or_file),
        cmocka_unit_test(interrupt_during_spawn_stops_lagand),
    };

    return cmocka_run_group_tests_name("ctl", tests, ctl_setup, ctl_teardown);
}
