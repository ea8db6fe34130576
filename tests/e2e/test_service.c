/* test_service.c - one real lagand and worker, as clients meet them: answers, refusals, cancels, deaths.
 *
 * The inputs here are those that only a real model can judge; frames, credit and supervision with a
 * worker that lies are in tests/daemon.
 */
#include "base/base.h"
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LLAMA "tests/data/golden/llama2"
#define T5 "tests/data/golden/t5_relu"

static const char *const small[] = { "max_num_seqs=8", "kv.memory=16MiB", "max_source_tokens=64",
                                     "threads=2", NULL };

static struct lagan *
connect_to(const struct serve *s)
{
    struct lagan *c;

    assert_int_equal(lagan_open(&c, s->endpoint, 5000), 0);
    return c;
}

/* A request from a JSON object: lists of numbers are ids, lists of strings strings. */
static struct lagan_request *
request(const char *text)
{
    struct lagan_request *r = lagan_request_new();
    json_t *o = json_loads(text, 0, NULL), *v;
    const char *key;

    if (!o) fail_msg("not JSON: %s", text);
    json_object_foreach(o, key, v)
    {
        if (json_is_integer(v)) lagan_set_int(r, key, json_integer_value(v));
        if (json_is_real(v)) lagan_set_float(r, key, json_real_value(v));
        if (json_is_boolean(v)) lagan_set_bool(r, key, json_is_true(v));
        if (json_is_string(v)) lagan_set_str(r, key, json_string_value(v), json_string_length(v));
        if (json_is_array(v) && json_is_string(json_array_get(v, 0))) {
            const char *s[32];
            size_t n = json_array_size(v);

            for (size_t i = 0; i < n; i++) s[i] = json_string_value(json_array_get(v, i));
            lagan_set_strs(r, key, s, n);
        } else if (json_is_array(v)) {
            size_t n = json_array_size(v);
            int32_t *ids = calloc(n + 1, sizeof *ids);

            for (size_t i = 0; i < n; i++)
                ids[i] = (int32_t)json_integer_value(json_array_get(v, i));
            lagan_set_ids(r, key, ids, n);
            free(ids);
        }
    }
    json_decref(o);
    return r;
}

static uint64_t
submit(struct lagan *c, const char *text)
{
    struct lagan_request *r = request(text);
    uint64_t id = 0;

    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    return id;
}

/* Read one request to its end. word: how it ended; message: the error's sentence. */
static uint32_t
finish(struct lagan *c, uint64_t id, char word[32], char message[256])
{
    uint32_t n = 0;

    word[0] = message[0] = 0;
    for (;;) {
        struct lagan_event ev = { .size = sizeof ev };
        int r = lagan_next(c, &ev, 20000);

        if (r <= 0) fail_msg("nothing for 20 s: %s", lagan_errmsg(c));
        if (ev.id != id) continue;
        if (ev.kind == LAGAN_EVENT_TOKENS) {
            assert_int_equal(ev.first, n);
            n += ev.n_ids;
        }
        if (ev.kind == LAGAN_EVENT_OUTPUT) snprintf(word, 32, "%s", ev.reason_name);
        if (ev.kind == LAGAN_EVENT_ERROR) {
            snprintf(word, 32, "%s", ev.reason_name);
            snprintf(message, 256, "%s", ev.message ? ev.message : "");
        }
        if (ev.kind == LAGAN_EVENT_ERROR || ev.kind == LAGAN_EVENT_DONE) return n;
    }
}

struct input {
    const char *json, *word, *says;
};

static void
inputs_get_their_words(const char *model, const struct input *in, size_t n)
{
    char word[32], message[256];
    struct serve s;
    struct lagan *c;

    assert_true(serve_start(&s, model, small));
    c = connect_to(&s);
    for (size_t i = 0; i < n; i++) {
        finish(c, submit(c, in[i].json), word, message);
        if (strcmp(word, in[i].word) || (in[i].says && !strstr(message, in[i].says)))
            fail_msg("%s: %s: %s", in[i].json, word, message);
    }
    lagan_close(c);
    serve_stop(&s);
}

static void
a_decoder_answers_every_wrong_request_by_name(void **state)
{
    static const struct input in[] = {
        { "{\"ids\":[1,2,3],\"max_tokens\":4,\"ignore_eos\":true}", "length", NULL },
        { "{\"ids\":[]}", "invalid_request", "empty" },
        { "{\"max_tokens\":4}", "invalid_request", "ids" },
        { "{\"ids\":[1],\"text\":\"a\"}", "invalid_request", "text" },
        { "{\"text\":\"a\"}", "unsupported", "tokenizer" },
        { "{\"ids\":[1],\"decoder_ids\":[1]}", "invalid_request", "decoder_ids" },
        { "{\"ids\":[1,320]}", "invalid_request", "320" },
        { "{\"ids\":[1,-4]}", "invalid_request", "ids" },
        { "{\"ids\":[1],\"max_tokens\":0}", "invalid_request", "max_tokens" },
        { "{\"ids\":[1],\"max_tokens\":2147483648}", "invalid_request", "max_tokens" },
        { "{\"ids\":[1],\"temperature\":-1}", "invalid_request", "temperature" },
        { "{\"ids\":[1],\"top_p\":0.0}", "invalid_request", "top_p" },
        { "{\"ids\":[1],\"logprobs\":1025}", "invalid_request", "logprobs" },
        { "{\"ids\":[1],\"beams\":17}", "invalid_request", "beams" },
        { "{\"ids\":[1],\"n\":2}", "invalid_request", "n" },
        { "{\"ids\":[1],\"return_encoder_output\":true}", "invalid_request", "decoder-only" },
        { "{\"ids\":[1],\"return_logits\":true,\"max_tokens\":3}", "length", NULL },
        { "{\"encoder_features\":true}", "unsupported", "encoder_features" },
        { "{\"ids\":[1],\"no_such_key\":1,\"max_tokens\":2}", "length", NULL },
        { "{\"ids\":[1],\"model\":\"other\"}", "model_not_found", "other" },
    };

    (void)state;
    inputs_get_their_words(LLAMA, in, sizeof in / sizeof *in);
}

static void
an_encoder_decoder_bounds_its_source_and_its_prefix(void **state)
{
    static char longer[512] = "{\"ids\":[9";
    static const struct input in[] = {
        { "{\"ids\":[8,1],\"max_tokens\":3,\"ignore_eos\":true}", "length", NULL },
        { "{\"ids\":[8,1],\"decoder_ids\":[0,5],\"max_tokens\":3,\"ignore_eos\":true}", "length",
          NULL },
        { "{\"ids\":[8,1],\"decoder_ids\":[999]}", "invalid_request", "999" },
        { "{\"ids\":[8,1],\"decoder_ids\":[]}", "invalid_request", "decoder_ids" },
        { "{\"ids\":[]}", "invalid_request", "empty" },
        { longer, "too_long", "64" },
    };

    (void)state;
    for (int i = 0; i < 64; i++) strcat(longer, ",9");
    strcat(longer, "]}");
    inputs_get_their_words(T5, in, sizeof in / sizeof *in);
}

static void
a_prompt_longer_than_the_model_or_the_pool_is_too_long(void **state)
{
    static const char *const tiny[] = { "max_num_seqs=2", "kv.memory=256KiB", "threads=1",
                                        "kv.tokens_per_block=16", NULL };
    char text[4096] = "{\"max_tokens\":4,\"ids\":[1", word[32], message[256];
    struct serve s;
    struct lagan *c;

    (void)state;
    for (int i = 0; i < 255; i++) strcat(text, ",2");
    strcat(text, "]}");
    assert_true(serve_start(&s, LLAMA, small));
    c = connect_to(&s);
    finish(c, submit(c, text), word, message);
    assert_string_equal(word, "too_long");
    lagan_close(c);
    serve_stop(&s);

    strcpy(text, "{\"max_tokens\":100,\"ids\":[1");
    for (int i = 0; i < 140; i++) strcat(text, ",2");
    strcat(text, "]}");
    assert_true(serve_start(&s, LLAMA, tiny));
    c = connect_to(&s);
    finish(c, submit(c, text), word, message);
    assert_string_equal(word, "too_long");
    finish(c, submit(c, "{\"ids\":[1],\"max_tokens\":4,\"ignore_eos\":true}"), word, message);
    assert_string_equal(word, "length");
    lagan_close(c);
    serve_stop(&s);
}

/* A call's answer holds this. */
static void
call(struct lagan *c, const char *verb, const char *args, const char *holds)
{
    char *reply = NULL;
    int r = lagan_call(c, verb, args, &reply, NULL, 5000);

    if (r < 0) fail_msg("%s %s: %s", verb, args, lagan_errmsg(c));
    if (!strstr(reply, holds)) fail_msg("%s %s: %s", verb, args, reply);
    free(reply);
}

static void
prompt_log_probabilities_of_a_text_name_its_tokens(void **state)
{
    struct lagan_event ev = { .size = sizeof ev };
    const int32_t want[] = { 2, 111, 55, 65 };
    struct serve s;
    struct lagan *c;

    (void)state;
    assert_true(serve_start(&s, "models/recall-gemma3", small));
    c = connect_to(&s);
    submit(c, "{\"text\":\"k3=\",\"max_tokens\":2,\"prompt_logprobs\":0}");
    while (ev.kind != LAGAN_EVENT_PROMPT) assert_int_equal(lagan_next(c, &ev, 5000), 1);
    assert_int_equal(ev.first, 0);
    assert_int_equal(ev.n_ids, 4);
    assert_memory_equal(ev.ids, want, sizeof want);
    assert_true(ev.logprob[1] < 0);
    lagan_close(c);
    serve_stop(&s);
}

static void
a_request_to_a_drained_service_is_refused_and_does_not_wait(void **state)
{
    char word[32], message[256], ctl[128];
    struct serve s;
    struct lagan *c, *operator;

    (void)state;
    assert_true(serve_start(&s, LLAMA, small));
    c = connect_to(&s);
    snprintf(ctl, sizeof ctl, "ipc://%s/ctl.sock", s.dir);
    assert_int_equal(lagan_open(&operator, ctl, 5000), 0);
    call(operator, "drain", "{\"worker\":\"w0\"}", "requests");
    finish(c, submit(c, "{\"ids\":[1],\"max_tokens\":4,\"ignore_eos\":true}"), word, message);
    assert_string_equal(word, "draining");
    call(operator, "restart", "{\"worker\":\"w0\"}", "requests");
    assert_true(serve_wait_ready(&s, 10));
    finish(c, submit(c, "{\"ids\":[1],\"max_tokens\":4,\"ignore_eos\":true}"), word, message);
    assert_string_equal(word, "length");
    lagan_close(operator);
    lagan_close(c);
    serve_stop(&s);
}

static void
text_of_any_length_goes_to_ids_and_back(void **state)
{
    struct serve s;
    struct lagan *c;

    (void)state;
    assert_true(serve_start(&s, "models/recall-gemma3", small));
    c = connect_to(&s);
    call(c, "tokenize", "{\"text\":\"k\",\"bare\":true}", "[111]");
    call(c, "tokenize", "{\"text\":\"k3\",\"bare\":true}", "[111,55]");
    call(c, "tokenize", "{\"text\":\"k3=\",\"bare\":true}", "[111,55,65]");
    call(c, "tokenize", "{\"text\":\"k3=\"}", "[2,111,55,65]");
    call(c, "detokenize", "{\"ids\":[111,55,65]}", "\"k3=\"");
    call(c, "detokenize", "{\"ids\":[111,55]}", "\"k3\"");
    assert_true(lagan_call(c, "detokenize", "{\"ids\":[111,264]}", NULL, NULL, 30000) < 0);
    assert_non_null(strstr(lagan_errmsg(c), "ids[1] is 264, the vocabulary has 264"));
    assert_true(lagan_call(c, "detokenize", "{\"ids\":[-1]}", NULL, NULL, 30000) < 0);
    lagan_close(c);
    serve_stop(&s);
}

/* The ids of another model's vocabulary look as if they were right. */
static void
text_to_one_of_two_models_says_to_which(void **state)
{
    char path[] = "/tmp/lagan-e2e-yaml-XXXXXX", config[80], top[1024], said[512];
    const char *const set[] = { config, NULL };
    int fd = mkstemp(path);
    struct serve s;
    struct lagan *c;

    (void)state;
    snprintf(top, sizeof top, "%s", source_path("models"));
    assert_true(fd >= 0);
    assert_true(dprintf(fd,
                        "models:\n  - { name: a, path: %s/recall-gemma3, device: cpu }\n"
                        "  - { name: b, path: %s/numbers-t5, device: cpu }\n",
                        top, top) > 0);
    close(fd);
    snprintf(config, sizeof config, "--config=%s", path);
    assert_true(serve_start(&s, NULL, set));
    assert_int_equal(serve_ask(&s, "tokenize --model a --text k3", said, sizeof said), 0);
    assert_non_null(strstr(said, "[2,111,55]"));
    c = connect_to(&s);
    assert_true(lagan_call(c, "tokenize", "{\"text\":\"k3\"}", NULL, NULL, 30000) < 0);
    assert_non_null(strstr(lagan_errmsg(c), "model is missing: 2 models are served here"));
    lagan_close(c);
    serve_stop(&s);
    unlink(path);
}

/* When the only file in dir/vocab was made, after a service has turned text into ids; damaged: with four bytes
 * in its middle changed before. */
static long
serve_with_cache(const char *dir, bool damaged)
{
    char pattern[128];
    struct stat st;
    struct serve s;
    struct lagan *c;
    glob_t g;

    snprintf(pattern, sizeof pattern, "%s/vocab/*", dir);
    if (damaged) {
        int fd;

        assert_int_equal(glob(pattern, 0, NULL, &g), 0);
        fd = open(g.gl_pathv[0], O_WRONLY);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(pwrite(fd, "\xff\xff\xff\xff", 4, st.st_size / 2), 4);
        close(fd);
        globfree(&g);
    }
    setenv("CACHE_DIRECTORY", dir, 1);
    assert_true(serve_start(&s, "models/recall-gemma3", small));
    unsetenv("CACHE_DIRECTORY");
    c = connect_to(&s);
    call(c, "tokenize", "{\"text\":\"k3=\"}", "[2,111,55,65]");
    call(c, "detokenize", "{\"ids\":[111,55,65]}", "\"k3=\"");
    lagan_close(c);
    serve_stop(&s);
    assert_int_equal(glob(pattern, 0, NULL, &g), 0);
    assert_int_equal(g.gl_pathc, 1);
    assert_int_equal(stat(g.gl_pathv[0], &st), 0);
    globfree(&g);
    return st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

static void
a_vocabulary_is_kept_in_the_service_s_cache_and_made_again_when_damaged(void **state)
{
    char dir[] = "/tmp/lagan-test-vocab-XXXXXX", path[256];
    long first;
    glob_t g;

    (void)state;
    assert_non_null(mkdtemp(dir));
    first = serve_with_cache(dir, false);
    assert_true(serve_with_cache(dir, false) == first);
    assert_true(serve_with_cache(dir, true) != first);
    snprintf(path, sizeof path, "%s/vocab/*", dir);
    assert_int_equal(glob(path, 0, NULL, &g), 0);
    unlink(g.gl_pathv[0]);
    globfree(&g);
    snprintf(path, sizeof path, "%s/vocab", dir);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void
a_cancelled_request_ends_as_cancelled_and_the_next_one_runs(void **state)
{
    char word[32], message[256];
    struct serve s;
    struct lagan *c;
    uint64_t id;

    (void)state;
    assert_true(serve_start(&s, LLAMA, small));
    c = connect_to(&s);
    for (int i = 0; i < 20; i++) {
        id = submit(c, "{\"ids\":[1,5],\"max_tokens\":250,\"ignore_eos\":true}");
        assert_int_equal(lagan_cancel(c, id), 0);
        assert_int_equal(lagan_cancel(c, id + 1000), -ENOENT);
        assert_true(finish(c, id, word, message) < 250);
        assert_string_equal(word, "cancelled");
    }
    id = submit(c, "{\"ids\":[1,5],\"max_tokens\":9,\"ignore_eos\":true}");
    assert_int_equal(finish(c, id, word, message), 9);
    lagan_close(c);
    serve_stop(&s);
}

/* Tokens of theirs are on the way then. */
static void
cancelled_outputs_of_one_request_do_not_cost_its_worker(void **state)
{
    struct serve s;
    struct lagan *c;
    pid_t worker;

    (void)state;
    assert_true(serve_start(&s, LLAMA, small));
    c = connect_to(&s);
    worker = serve_worker(&s);
    for (int i = 0; i < 20; i++) {
        struct lagan_event ev = { .size = sizeof ev };
        uint64_t id = submit(
            c, "{\"ids\":[1,5],\"max_tokens\":250,\"ignore_eos\":true,\"n\":3,\"temperature\":1}");

        for (bool cancelled = false; ev.kind != LAGAN_EVENT_ERROR;) {
            assert_true(lagan_next(c, &ev, 20000) > 0);
            assert_true(ev.kind != LAGAN_EVENT_DONE);
            if (ev.kind != LAGAN_EVENT_TOKENS || cancelled) continue;
            assert_int_equal(lagan_cancel(c, id), 0);
            cancelled = true;
        }
        assert_string_equal(ev.reason_name, "cancelled");
    }
    assert_int_equal(serve_worker(&s), worker);
    lagan_close(c);
    serve_stop(&s);
}

static void
a_deadline_that_passes_ends_the_request(void **state)
{
    char word[32], message[256];
    struct serve s;
    struct lagan *c;

    (void)state;
    assert_true(serve_start(&s, LLAMA, small));
    c = connect_to(&s);
    finish(c, submit(c, "{\"ids\":[1,5],\"max_tokens\":250,\"ignore_eos\":true,\"deadline_ms\":1}"),
           word, message);
    assert_string_equal(word, "deadline");
    lagan_close(c);
    serve_stop(&s);
}

struct answer {
    int32_t id[250];
    float logprob[250];
    uint32_t n, resumed, recomputed;
    float score;
    uint64_t seed;
    char text[2000];
    size_t n_text;
};

/* One request; with kills, its worker is killed so often, each time after another token. */
static struct answer
answer(struct serve *s, struct lagan *c, const char *json, int kills)
{
    static struct answer a;
    pid_t worker = kills ? serve_worker(s) : 0; /* known beforehand: an answer may be over soon */
    uint64_t id = submit(c, json);
    uint32_t next = 1;

    a = (struct answer){ 0 };
    for (;;) {
        struct lagan_event ev = { .size = sizeof ev };

        if (lagan_next(c, &ev, 20000) <= 0) fail_msg("nothing for 20 s: %s", lagan_errmsg(c));
        assert_int_equal(ev.id, id);
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev.reason_name, ev.message);
        if (ev.kind == LAGAN_EVENT_TOKENS) {
            assert_int_equal(ev.first, a.n);
            assert_true(a.n + ev.n_ids <= 250 && a.n_text + ev.text_len < sizeof a.text);
            memcpy(a.id + a.n, ev.ids, ev.n_ids * sizeof *ev.ids);
            memcpy(a.logprob + a.n, ev.logprob, ev.n_ids * sizeof *ev.logprob);
            if (ev.text_len) memcpy(a.text + a.n_text, ev.text, ev.text_len);
            a.n += ev.n_ids;
            a.n_text += ev.text_len;
        }
        if (ev.kind == LAGAN_EVENT_TOKENS && kills && a.n >= next) {
            if (worker <= 0) worker = serve_worker(s);
            if (worker > 0 && kill(worker, SIGKILL) == 0) kills--;
            worker = 0;
            next = a.n + 1;
        }
        if (ev.kind == LAGAN_EVENT_OUTPUT) {
            a.resumed = ev.resumed;
            a.recomputed = ev.recomputed;
            a.score = ev.score;
            a.seed = ev.seed;
        }
        if (ev.kind == LAGAN_EVENT_DONE) return a;
    }
}

static void
a_killed_worker_is_replaced_takes_its_weights_and_its_requests_go_on_bit_for_bit(void **state)
{
    static const char *const requests[] = {
        "{\"ids\":[1,5],\"max_tokens\":250,\"ignore_eos\":true,\"logprobs\":0,\"seed\":3}",
        "{\"ids\":[1,5],\"max_tokens\":250,\"ignore_eos\":true,\"logprobs\":0,\"seed\":7,"
        "\"temperature\":1.3,\"top_p\":0.9,\"repetition_penalty\":1.2,\"min_tokens\":9}",
    };
    static struct answer want, got;
    char command[160];
    struct serve s;
    struct lagan *c;

    (void)state;
    assert_true(serve_start(&s, LLAMA, small));
    c = connect_to(&s);
    for (int i = 0; i < 2; i++) {
        want = answer(&s, c, requests[i], 0);
        got = answer(&s, c, requests[i], 3);
        assert_int_equal(want.n, 250);
        assert_int_equal(want.resumed, 0);
        assert_in_range(got.resumed, 1, 3);
        got.resumed = got.recomputed = 0;
        assert_memory_equal(&got, &want, sizeof want);
        assert_true(serve_wait_ready(&s, 10));
    }
    snprintf(command, sizeof command, "grep -q 'weights (adopted)' %s", s.log);
    assert_int_equal(system(command), 0);
    lagan_close(c);
    serve_stop(&s);
}

/* What was computed of its state since the last snapshot is lost, and no more than that. */
static void
a_killed_model_with_recurrent_state_goes_on_from_its_last_snapshot_bit_for_bit(void **state)
{
    enum { KILLS = 4, INTERVAL = 16 };
    static const char *const set[] = { "kv.snapshot_interval=16",   "kv.tokens_per_block=8",
                                       "kv.memory=16MiB",           "max_num_seqs=8",
                                       "max_num_batched_tokens=24", "threads=2",
                                       "numerics=invariant",        NULL };
    static const char *const models[] = { "tests/data/golden/bamba",
                                          "tests/data/golden/nemotron_h" };
    static struct answer want, got;
    char request[1000] =
        "{\"max_tokens\":250,\"ignore_eos\":true,\"logprobs\":0,\"seed\":3,\"ids\":[1";

    (void)state;
    for (int i = 0; i < 90; i++) sprintf(request + strlen(request), ",%d", 3 + i * 7 % 90);
    strcat(request, "]}");
    for (int i = 0; i < 2; i++) {
        struct serve s;
        struct lagan *c;

        uint32_t n_resumed = 0;

        assert_true(serve_start(&s, models[i], set));
        c = connect_to(&s);
        want = answer(&s, c, request, 0);
        assert_int_equal(want.n, 250);
        for (int k = 0; k < 3; k++) {
            got = answer(&s, c, request, KILLS);
            n_resumed += got.resumed;
            print_message("%s: killed %u times, %u positions computed again\n", models[i],
                          got.resumed, got.recomputed);
            assert_in_range(got.recomputed, 0, INTERVAL); /* by the last one */
            got.resumed = got.recomputed = 0;
            assert_memory_equal(&got, &want, sizeof want);
            assert_true(serve_wait_ready(&s, 10));
        }
        assert_true(n_resumed > 0); /* a short answer may be over before its worker dies */
        lagan_close(c);
        serve_stop(&s);
    }
}

static void
the_same_seed_draws_the_same_tokens_alone_and_in_company(void **state)
{
    static const char draw[] =
        "{\"ids\":[1,5,9],\"max_tokens\":40,\"ignore_eos\":true,\"temperature\":1.2,"
        "\"top_k\":50,\"top_p\":0.95,\"min_p\":0.01,\"repetition_penalty\":1.1,"
        "\"seed\":42}";
    int32_t alone[40], ids[8][40];
    uint32_t n[8] = { 0 }, over = 0;
    uint64_t id[8];
    struct serve s;
    struct lagan *c;

    (void)state;
    assert_true(serve_start(&s, LLAMA, small));
    c = connect_to(&s);
    for (int round = 0; round < 2; round++) {
        uint32_t k = round ? 8 : 1;

        over = 0;
        for (uint32_t i = 0; i < k; i++) {
            id[i] = submit(c, draw);
            n[i] = 0;
        }
        while (over < k) {
            struct lagan_event ev = { .size = sizeof ev };

            assert_int_equal(lagan_next(c, &ev, 20000), 1);
            for (uint32_t i = 0; i < k; i++) {
                if (ev.id != id[i]) continue;
                if (ev.kind == LAGAN_EVENT_TOKENS) {
                    memcpy(ids[i] + n[i], ev.ids, ev.n_ids * sizeof *ev.ids);
                    n[i] += ev.n_ids;
                }
                if (ev.kind == LAGAN_EVENT_DONE) {
                    assert_int_equal(n[i], 40);
                    over++;
                }
                assert_true(ev.kind != LAGAN_EVENT_ERROR);
            }
        }
        if (!round) memcpy(alone, ids[0], sizeof alone);
        for (uint32_t i = 0; i < k; i++) assert_memory_equal(ids[i], alone, sizeof alone);
    }
    lagan_close(c);
    serve_stop(&s);
}

/* Until lagand has taken so many requests in. */
static void
wait_accepted(struct lagan *c, uint32_t n)
{
    uint32_t taken = 0;

    for (uint32_t looks = 0; taken < n; looks++) {
        char *reply = NULL;
        json_t *o;

        if (lagan_call(c, "status", "{}", &reply, NULL, 20000) < 0) fail_msg("%s", lagan_errmsg(c));
        o = json_loads(reply, 0, NULL);
        taken = (uint32_t)json_integer_value(json_object_get(o, "accepted"));
        json_decref(o);
        free(reply);
        assert_true(looks < 20000);
    }
}

/* How many answers of a flood that came before are over when the last of four requests of another client is.
 * Long ones go before the flood, so that all is there before any of it has run. Answers wait for this reader,
 * so it takes one event of each client at a time where many would be wrong (few), or all of the flood's first. */
static uint32_t
answers_before(const char *quantum, const char *ask, bool few)
{
    enum { LONG = 20, FLOOD = 600, FEW = 4 };
    const char *const set[] = { "max_num_seqs=2", "kv.memory=16MiB", "threads=2", quantum, NULL };
    struct lagan *flood, *other;
    uint32_t over = 0, done = 0, looks = 0;
    struct serve s;

    assert_true(serve_start(&s, LLAMA, set));
    flood = connect_to(&s);
    other = connect_to(&s);
    for (int i = 0; i < LONG; i++)
        submit(flood, "{\"ids\":[1,5],\"max_tokens\":250,\"ignore_eos\":true}");
    for (int i = 0; i < FLOOD; i++)
        submit(flood, "{\"ids\":[1,5],\"max_tokens\":8,\"ignore_eos\":true}");
    wait_accepted(flood, LONG + FLOOD);
    for (int i = 0; i < FEW; i++) submit(other, ask);
    wait_accepted(other, LONG + FLOOD + FEW);
    while (done < FEW) {
        struct lagan_event ev = { .size = sizeof ev };

        while (lagan_next(flood, &ev, 0) > 0) {
            over += ev.kind == LAGAN_EVENT_DONE;
            if (few) break;
        }
        assert_true(++looks < 200000);
        if (lagan_next(other, &ev, 1) <= 0) continue;
        assert_true(ev.kind != LAGAN_EVENT_ERROR && ev.kind != LAGAN_EVENT_DISCONNECTED);
        done += ev.kind == LAGAN_EVENT_DONE;
    }
    lagan_close(flood);
    lagan_close(other);
    serve_stop(&s);
    return over;
}

static void
a_flood_of_one_client_holds_up_neither_another_nor_what_is_urgent(void **state)
{
    const char *ask = "{\"ids\":[1,5],\"max_tokens\":8,\"ignore_eos\":true}";
    const char *urgent = "{\"ids\":[1,5],\"max_tokens\":8,\"ignore_eos\":true,\"priority\":0.9}";

    (void)state;
    assert_in_range(answers_before("fairness_quantum=64", ask, true), 0, 300);
    assert_in_range(answers_before("fairness_quantum=0", urgent, true), 0, 300);
    assert_in_range(answers_before("fairness_quantum=0", ask, false), 610,
                    620); /* by arrival alone */
}

/* KiB of its own that a process has touched. What it shares is bounded by the rings and the KV arena,
 * whose pages are touched once round. */
static long
own_memory(pid_t pid)
{
    char path[64], line[128];
    long kib = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %ld kB", &kib) == 1) break;
    fclose(f);
    assert_true(kib > 0);
    return kib;
}

struct client {
    struct lagan *c;
    uint64_t id;
    uint32_t n, done;
};

/* What has come for one client: positions follow each other, every request ends once. */
static void
read_client(struct client *k)
{
    struct lagan_event ev = { .size = sizeof ev };

    while (k->id && lagan_next(k->c, &ev, 0) > 0) {
        assert_int_equal(ev.id, k->id);
        assert_true(ev.kind != LAGAN_EVENT_ERROR && ev.kind != LAGAN_EVENT_DISCONNECTED);
        if (ev.kind == LAGAN_EVENT_TOKENS) {
            assert_int_equal(ev.first, k->n);
            k->n += ev.n_ids;
        }
        if (ev.kind != LAGAN_EVENT_DONE) continue;
        assert_int_equal(k->n, 20);
        k->id = 0;
        k->done++;
    }
}

/* 64 connections for LAGAN_SOAK_SECONDS, 3 by default. */
static void
many_clients_stream_at_once_nothing_is_lost_and_memory_stays(void **state)
{
    /* An answer is kept for ten minutes: daemon/ledger/ledger.h. */
    enum { CLIENTS = 64, GROWTH_KIB = 2048, KEPT_KIB = 2, KEPT_MOST = 8192 };
    static const char *const set[] = { "max_num_seqs=64", "kv.memory=64MiB", "threads=2", NULL };
    static const char ask[] = "{\"text\":\"k3=blue;q7=stone;m1=river;q7?\",\"max_tokens\":20,"
                              "\"ignore_eos\":true}";
    const char *seconds = getenv("LAGAN_SOAK_SECONDS");
    struct client *k = calloc(CLIENTS, sizeof *k);
    long daemon = 0, worker = 0;
    bool open = true;
    struct serve s;
    uint32_t all = 0, before = 0;
    time_t start, end;
    pid_t pid;

    (void)state;
    assert_true(serve_start(&s, "models/recall-gemma3", set));
    pid = serve_worker(&s);
    for (int i = 0; i < CLIENTS; i++) k[i].c = connect_to(&s);
    start = time(NULL);
    end = start + (seconds ? atoi(seconds) : 3);
    while (open) {
        time_t now = time(NULL);

        open = now < end;
        for (int i = 0; i < CLIENTS; i++) {
            if (!k[i].id && now < end) {
                k[i].id = submit(k[i].c, ask);
                k[i].n = 0;
            }
            read_client(&k[i]);
            open |= k[i].id != 0;
        }
        if (!daemon && now > start + (end - start) / 3) {
            daemon = own_memory(s.pid);
            worker = own_memory(pid);
            for (int i = 0; i < CLIENTS; i++) before += k[i].done;
        }
        assert_true(now < end + 20);
        usleep(500);
    }
    daemon = own_memory(s.pid) - daemon;
    worker = own_memory(pid) - worker;
    for (int i = 0; i < CLIENTS; i++) {
        assert_true(k[i].done > 0);
        all += k[i].done;
        lagan_close(k[i].c);
    }
    print_message(
        "%u requests of %d clients; since a third of the time lagand grew %ld KiB, its worker "
        "%ld\n",
        all, CLIENTS, daemon, worker);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* they keep what is freed */
    assert_true(daemon < GROWTH_KIB + KEPT_KIB * (long)MIN(all - before, (uint32_t)KEPT_MOST));
    assert_true(worker < 4096);
#endif
    free(k);
    serve_stop(&s);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_decoder_answers_every_wrong_request_by_name),
        cmocka_unit_test(an_encoder_decoder_bounds_its_source_and_its_prefix),
        cmocka_unit_test(a_prompt_longer_than_the_model_or_the_pool_is_too_long),
        cmocka_unit_test(prompt_log_probabilities_of_a_text_name_its_tokens),
        cmocka_unit_test(a_request_to_a_drained_service_is_refused_and_does_not_wait),
        cmocka_unit_test(text_of_any_length_goes_to_ids_and_back),
        cmocka_unit_test(text_to_one_of_two_models_says_to_which),
        cmocka_unit_test(a_vocabulary_is_kept_in_the_service_s_cache_and_made_again_when_damaged),
        cmocka_unit_test(a_cancelled_request_ends_as_cancelled_and_the_next_one_runs),
        cmocka_unit_test(cancelled_outputs_of_one_request_do_not_cost_its_worker),
        cmocka_unit_test(a_deadline_that_passes_ends_the_request),
        cmocka_unit_test(
            a_killed_worker_is_replaced_takes_its_weights_and_its_requests_go_on_bit_for_bit),
        cmocka_unit_test(
            a_killed_model_with_recurrent_state_goes_on_from_its_last_snapshot_bit_for_bit),
        cmocka_unit_test(the_same_seed_draws_the_same_tokens_alone_and_in_company),
        cmocka_unit_test(a_flood_of_one_client_holds_up_neither_another_nor_what_is_urgent),
        cmocka_unit_test(many_clients_stream_at_once_nothing_is_lost_and_memory_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
