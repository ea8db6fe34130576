/* test_text.c - text in and text out give the same as ids in and ids out, through every process.
 *
 * Models have the shapes of the goldens, random weights and a real tokenizer. Conversations and
 * their ids are those of transformers (tools/chat_cases.py).
 */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <jansson.h>
#include <stdio.h>

enum { MAX_TOKENS = 16, MAX_PROMPT = 300, MAX_TEXT = 4096 };

static const struct model {
    const char *golden, *vocab_size, *tokenizer, *chat;
} models[] = {
    { "llama2", "760", "spm_llama2", "llama2" },
    { "llama3", "512", "bpe_llama3", "llama3.1" },
    { "gemma3", "760", "spm_gemma", "gemma3" },
    { "t5_relu", "612", "spm_t5", NULL },
    { "mistral", "760", "spm_llama2", "mistral" },
    { "qwen2", "512", "bpe_qwen2", "qwen2.5" },
    { "qwen3", "512", "bpe_qwen2", "qwen3" },
    { "gemma3n", "760", "spm_gemma", NULL },
    { "gemma4_dense", "760", "spm_gemma4", "gemma4" },
    { "gemma4_e", "760", "spm_gemma4", "gemma4-e" },
    { "gemma4_moe", "760", "spm_gemma", NULL },
    { "gemma4_big", "760", "spm_gemma", NULL },
    { "gpt_oss", "512", "bpe_o200k", NULL },
    { "gpt_oss_mxfp4", "512", "bpe_o200k", NULL },
    { "bamba", "512", "bpe_llama3", NULL },
    { "granite_hybrid", "512", "bpe_llama3", NULL },
    { "nemotron_h", "512", "bpe_llama3", NULL },
    { "t5_gated", "612", "spm_t5", NULL },
    { "bart", "512", "bpe_bart", NULL },
    { "mbart", "566", "spm_mbart", NULL },
};
enum { KINDS = 4 }; /* of tokenizers' decoders, in front */

/* One lane; prefill and decode in a lane each; two ranks with half of the model each. */
enum way { ONE, LANES, RANKS, WAYS };
static const char *const way_set[WAYS][3] = {
    { "split.mode=off", "tensor_parallel=1", "threads=1" },
    { "split.mode=fixed", "split.context_sm=1", "threads=2" },
    { "split.mode=off", "tensor_parallel=2", "threads=2" },
};

struct result {
    int32_t ids[MAX_TOKENS];
    uint32_t n;
    char text[MAX_TEXT], finish[32];
    size_t len;
};

static char dir[64];

static void
shell(const char *line)
{
    assert_int_equal(system(line), 0);
}

static struct lagan *
start_in(struct serve *s, const struct model *m, enum way way)
{
    char line[2300], below[128], chat[64];
    const char *set[] = { "weights=random:11",
                          "max_num_seqs=4",
                          way_set[way][0],
                          way_set[way][1],
                          way_set[way][2],
                          m->chat ? chat : NULL,
                          NULL };
    struct lagan *c;

    strcpy(dir, "/tmp/lagan-text-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(below, sizeof below, "tests/data/golden/%s", m->golden);
    snprintf(line, sizeof line,
             "sed 's/\\(\"vocab_size[a-z_]*\"\\): [0-9]*/\\1: %s/; s/\"num_heads\": "
             "3/\"num_heads\": 4/' "
             "%s/config.json > %s/config.json", /* heads: two ranks have as many */
             m->vocab_size, source_path(below), dir);
    shell(line);
    snprintf(line, sizeof line, "cp %s/generation_config.json %s", source_path(below), dir);
    shell(line);
    snprintf(below, sizeof below, "tests/data/tokenizers/%s/tokenizer.json", m->tokenizer);
    snprintf(line, sizeof line, "cp %s %s", source_path(below), dir);
    shell(line);
    snprintf(chat, sizeof chat, "chat_template=%s", m->chat ? m->chat : "none");
    assert_true(serve_start(s, dir, set));
    assert_int_equal(lagan_open(&c, s->endpoint, 20000), 0);
    return c;
}

static struct lagan *
start(struct serve *s, const struct model *m)
{
    return start_in(s, m, ONE);
}

static void
stop(struct serve *s, struct lagan *c)
{
    char line[96];

    lagan_close(c);
    serve_stop(s);
    snprintf(line, sizeof line, "rm -rf %s", dir);
    shell(line);
}

static struct result
ask(struct lagan *c, struct lagan_request *r)
{
    struct result a = { .n = 0 };
    uint64_t id;

    lagan_set_int(r, "max_tokens", MAX_TOKENS);
    lagan_set_bool(r, "ignore_eos", 1);
    lagan_set_float(r, "temperature", 1);
    lagan_set_int(r, "seed", 5);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    for (;;) {
        struct lagan_event ev = { .size = sizeof ev };

        if (lagan_next(c, &ev, 30000) <= 0) fail_msg("nothing for 30 s: %s", lagan_errmsg(c));
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev.reason_name, ev.message);
        if (ev.kind == LAGAN_EVENT_TOKENS) {
            assert_true(a.n + ev.n_ids <= MAX_TOKENS && a.len + ev.text_len < MAX_TEXT);
            memcpy(a.ids + a.n, ev.ids, ev.n_ids * sizeof *ev.ids);
            memcpy(a.text + a.len, ev.text, ev.text_len);
            a.n += (uint32_t)ev.n_ids;
            a.len += ev.text_len;
        }
        if (ev.kind == LAGAN_EVENT_OUTPUT)
            snprintf(a.finish, sizeof a.finish, "%s", ev.reason_name);
        if (ev.kind == LAGAN_EVENT_DONE) return a;
    }
}

static struct result
ask_ids(struct lagan *c, const int32_t *ids, size_t n)
{
    struct lagan_request *r = lagan_request_new();

    assert_int_equal(lagan_set_ids(r, "ids", ids, n), 0);
    return ask(c, r);
}

static struct result
ask_text(struct lagan *c, const char *key, const char *text, const char *stop)
{
    struct lagan_request *r = lagan_request_new();

    assert_int_equal(lagan_set_str(r, key, text, strlen(text)), 0);
    if (stop) assert_int_equal(lagan_set_strs(r, "stop", &stop, 1), 0);
    return ask(c, r);
}

/* What lagand says to a verb. */
static json_t *
call(struct lagan *c, const char *verb, json_t *args)
{
    char *text = json_dumps(args, JSON_COMPACT), *reply = NULL;
    json_t *o;

    if (lagan_call(c, verb, text, &reply, NULL, 30000) < 0) fail_msg("%s", lagan_errmsg(c));
    o = json_loads(reply, 0, NULL);
    assert_non_null(o);
    free(text);
    free(reply);
    json_decref(args);
    return o;
}

static size_t
read_ids(const json_t *list, int32_t *ids)
{
    size_t n = json_array_size(list);

    for (size_t i = 0; i < n && i < MAX_PROMPT; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static void
same(const struct result *a, const struct result *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_string_equal(a->text, b->text);
    assert_string_equal(a->finish, b->finish);
}

/* Checks that the text of an output is the text of its ids. */
static void
text_is_that_of_the_ids(struct lagan *c, const struct result *a)
{
    json_t *list = json_array(), *o;

    for (uint32_t i = 0; i < a->n; i++) json_array_append_new(list, json_integer(a->ids[i]));
    o = call(c, "detokenize", json_pack("{s:o}", "ids", list));
    assert_string_equal(json_string_value(json_object_get(o, "text")), a->text);
    json_decref(o);
}

static void
text_in_is_its_ids_in_and_text_out_its_ids_out(void **state)
{
    static const char *const texts[] = { "Hello", "  two  spaces \n", "Grüße, 世界 🙂",
                                         "a=1;b=2", "0123456789 The quick brown fox" };
    static int32_t ids[MAX_PROMPT];
    static struct result alone[sizeof texts / sizeof *texts];
    struct serve s;

    (void)state;
    for (size_t run = 0; run < WAYS * sizeof models / sizeof *models; run++) {
        enum way way = (enum way)(run % WAYS);
        struct lagan *c = start_in(&s, &models[run / WAYS], way);

        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            json_t *o = call(c, "tokenize", json_pack("{s:s}", "text", texts[i]));
            size_t n = read_ids(json_object_get(o, "ids"), ids);
            struct result by_text = ask_text(c, "text", texts[i], NULL);
            struct result by_ids = ask_ids(c, ids, n);

            assert_int_equal(by_ids.n, MAX_TOKENS);
            same(&by_text, &by_ids);
            text_is_that_of_the_ids(c, &by_ids);
            if (way == ONE) alone[i] = by_ids;
            if (way == LANES) same(&by_ids, &alone[i]); /* ranks add in another order */
            json_decref(o);
        }
        stop(&s, c);
    }
}

/* A stop that begins and ends inside tokens, and one of a single byte. */
static void
a_stop_string_ends_the_text_wherever_tokens_were_cut(void **state)
{
    struct serve s;

    (void)state;
    for (size_t m = 0; m < KINDS; m++) {
        struct lagan *c = start(&s, &models[m]);
        struct result whole = ask_text(c, "text", "Hello", NULL);

        for (size_t at = 1; at + 6 < whole.len; at += 3) {
            char stop_at[8] = { 0 }, want[MAX_TEXT];
            struct result a;

            if ((whole.text[at] & 0xc0) == 0x80 || (whole.text[at + 5] & 0xc0) == 0x80) continue;
            memcpy(stop_at, whole.text + at, 5);
            memcpy(want, whole.text, sizeof want);
            *strstr(want, stop_at) = 0;
            a = ask_text(c, "text", "Hello", stop_at);
            assert_string_equal(a.text, want);
            assert_string_equal(a.finish, "stop");
            assert_true(a.n <= whole.n);
            assert_memory_equal(a.ids, whole.ids, a.n * sizeof *a.ids);
        }
        stop(&s, c);
    }
}

static json_t *
read_cases(void)
{
    json_error_t e;
    json_t *cases = json_load_file(source_path("tests/data/chat/cases.json"), 0, &e);

    if (!cases) fail_msg("%s", e.text);
    return cases;
}

static void
a_conversation_is_answered_as_its_ids_are(void **state)
{
    static int32_t ids[MAX_PROMPT], want[MAX_PROMPT];
    json_t *cases = read_cases(), *one;
    struct serve s;

    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        size_t i, n, done = 0;
        struct lagan *c;

        if (!models[m].chat) continue;
        c = start(&s, &models[m]);
        json_array_foreach(cases, i, one)
        {
            const json_t *list = json_object_get(one, "ids");
            char *json = json_dumps(json_object_get(one, "messages"), JSON_COMPACT);
            json_t *o;

            if (!strcmp(json_string_value(json_object_get(one, "template")), models[m].chat) &&
                json_array_size(list) && json_array_size(list) < MAX_PROMPT) {
                struct result by_ids, by_talk;

                n = read_ids(list, want);
                o = call(c, "tokenize", json_pack("{s:s}", "messages", json));
                assert_int_equal(read_ids(json_object_get(o, "ids"), ids), n);
                assert_memory_equal(ids, want, n * sizeof *ids);
                json_decref(o);
                by_talk = ask_text(c, "messages", json, NULL);
                by_ids = ask_ids(c, want, n);
                same(&by_talk, &by_ids);
                done++;
            }
            free(json);
        }
        assert_true(done > 5);
        stop(&s, c);
    }
    json_decref(cases);
}

/* A line of shell, $L is laganctl at that service: what it prints. */
static const char *
laganctl(const struct serve *s, const char *line)
{
    static char out[16384];
    char command[2048];
    size_t n;
    FILE *f;

    snprintf(command, sizeof command, "L='%s --connect %s'; %s", program_path("laganctl"),
             s->endpoint, line);
    f = popen(command, "r");
    assert_non_null(f);
    n = fread(out, 1, sizeof out - 1, f);
    out[n] = 0;
    assert_int_equal(pclose(f), 0);
    return out;
}

static void
laganctl_chat_sends_the_conversation_so_far(void **state)
{
    static const char line[] =
        "printf 'Hello\\n\\nAnd \"then\"?\\n' | $L chat --system Be --max-tokens 16 --ignore-eos "
        "--temperature 1 --seed 5 --json";
    struct serve s;
    struct lagan *c = start(&s, &models[2]);
    const char *out = laganctl(&s, line), *second = strchr(out, '\n');
    json_t *first = json_loadb(out, (size_t)(second - out), 0, NULL);
    json_t *then = json_loads(second, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *talk = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", "Be", "role",
                             "user", "content", "Hello");
    struct result a;
    char *text;

    (void)state;
    for (int round = 0; round < 2; round++) {
        const json_t *got = json_object_get(round ? then : first, "text");

        text = json_dumps(talk, JSON_COMPACT);
        a = ask_text(c, "messages", text, NULL);
        assert_string_equal(json_string_value(got), a.text);
        free(text);
        json_array_append_new(talk, json_pack("{s:s,s:s}", "role", "assistant", "content", a.text));
        json_array_append_new(talk,
                              json_pack("{s:s,s:s}", "role", "user", "content", "And \"then\"?"));
    }
    json_decref(talk);
    json_decref(first);
    json_decref(then);
    assert_non_null(strstr(laganctl(&s, "echo Hello | $L chat --max-tokens 2"), "\n"));
    assert_non_null(strstr(laganctl(&s, "$L chat </dev/null 2>&1; test $? = 2"),
                           "standard input has no message"));
    assert_non_null(strstr(laganctl(&s, "$L model list"), "MODEL  "));
    stop(&s, c);
}

static void
model_verify_says_what_a_directory_can_do(void **state)
{
    struct serve s;
    struct lagan *c = start(&s, &models[3]);
    char line[256];

    (void)state;
    snprintf(line, sizeof line,
             "${L%%%% *} --device cpu --set weights=x --set weights=random:1 model verify %s", dir);
    assert_non_null(strstr(laganctl(&s, line), " ok, "));
    assert_non_null(strstr(laganctl(&s, line), "text      yes"));
    assert_non_null(strstr(laganctl(&s, line), "chat      the checkpoint has no chat template"));
    snprintf(line, sizeof line, "${L%%%% *} model verify %s 2>&1; test $? = 78 && echo refused",
             dir);
    assert_non_null(strstr(laganctl(&s, line), "refused")); /* there are no weights in it */
    stop(&s, c);
}

/* Nothing of them is filled: the largest would not fit here. */
static void
every_published_shape_opens_or_is_refused_with_numbers(void **state)
{
    struct serve s;
    struct lagan *c = start(&s, &models[3]);
    const char *output, *end;
    int n = 0, refused = 0;

    (void)state;
    output = laganctl(&s, "for d in ${srcdir:-.}/bench/configs/*; do ${L%% *} --device cpu --set "
                          "weights=random:1 model verify $d 2>&1 || echo refused $?; done");
    for (const char *at = output; (at = strstr(at, "  ok, ")); n++) at++;
    for (const char *at = output; (at = strstr(at, " do not fit: the host has")); refused++) at++;
    for (end = output; (end = strstr(end, "refused 78\n")); n++) end++;
    print_message("%d shapes, %d of them refused\n", n, refused);
    assert_int_equal(n, 29); /* and one that is not: bench/README.md */
    for (end = output; (end = strstr(end, "refused ")); refused--) end++;
    assert_int_equal(refused, 0);
    stop(&s, c);
}

static void
a_model_without_a_template_says_so(void **state)
{
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"x\"}]";
    struct lagan_event ev = { .size = sizeof ev };
    struct lagan_request *r = lagan_request_new();
    struct serve s;
    struct lagan *c = start(&s, &models[3]);
    uint64_t id;

    (void)state;
    lagan_set_str(r, "messages", talk, strlen(talk));
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    assert_non_null(
        strstr(laganctl(&s, "$L chat </dev/null 2>&1; test $? = 5"), "no chat template"));
    while (lagan_next(c, &ev, 30000) == 1 && ev.kind != LAGAN_EVENT_ERROR) continue;
    assert_int_equal(ev.kind, LAGAN_EVENT_ERROR);
    assert_string_equal(ev.reason_name, "unsupported");
    assert_string_equal(ev.message, "the checkpoint has no chat template; set the option "
                                    "chat_template to a template name or none");
    stop(&s, c);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_in_is_its_ids_in_and_text_out_its_ids_out),
        cmocka_unit_test(a_stop_string_ends_the_text_wherever_tokens_were_cut),
        cmocka_unit_test(a_conversation_is_answered_as_its_ids_are),
        cmocka_unit_test(laganctl_chat_sends_the_conversation_so_far),
        cmocka_unit_test(model_verify_says_what_a_directory_can_do),
        cmocka_unit_test(every_published_shape_opens_or_is_refused_with_numbers),
        cmocka_unit_test(a_model_without_a_template_says_so),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
