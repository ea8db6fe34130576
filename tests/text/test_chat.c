/* test_chat.c - tests of chat templates against transformers (tools/chat_cases.py), of template
 * selection, and of replies in channels. */
#include "tests/test.h"
#include "tests/text/golden.h"
#include "worker/text/chat.h"
#include "worker/text/chat_file.h"
#include "worker/text/detok.h"

#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

enum { TEXT_MAX = 1 << 14 };
static const char DAY[] = "2026-11-21\n";

static struct tokenizer *
open_tokenizer(const char *name)
{
    char path[256];
    struct tokenizer *t;
    struct err e;

    snprintf(path, sizeof path, "tests/data/tokenizers/%s", name);
    if (tokenizer_open(&t, golden_path(path), &e) < 0) fail_msg("%s", e.text);
    return t;
}

static uint32_t
number_of(const char *name)
{
    uint32_t i = 0;

    while (chat_name(i) && strcmp(chat_name(i), name)) i++;
    assert_non_null(chat_name(i));
    return CHAT_NAMED + i;
}

static struct chat
named(const char *name, struct tokenizer *t)
{
    struct chat c;
    char note[240];

    chat_open(&c, "/nowhere", number_of(name), t, note);
    assert_string_equal(note, "");
    return c;
}

/* Returns the length, or the error of chat_render(). */
static int
render(const struct chat *c, const char *json, char *buf, size_t cap, struct err *e)
{
    size_t n = sizeof DAY - 1 + strlen(json);
    char *text = malloc(n), *work = malloc(n);
    int r;

    memcpy(text, DAY, sizeof DAY - 1);
    memcpy(text + sizeof DAY - 1, json, n - (sizeof DAY - 1));
    r = chat_render(c, text, n, work, buf, cap, e);
    free(text);
    free(work);
    return r;
}

static json_t *
read_cases(void)
{
    size_t n;
    char *text = golden_read(golden_path("tests/data/chat/cases.json"), &n);
    json_t *cases = json_loadb(text, n, 0, NULL);

    free(text);
    assert_true(json_array_size(cases) > 100);
    return cases;
}

static const char *
word(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static void
one_case(const json_t *one)
{
    struct tokenizer *t = open_tokenizer(word(one, "tokenizer"));
    struct chat c = named(word(one, "template"), t);
    char *json = json_dumps(json_object_get(one, "messages"), JSON_ENSURE_ASCII);
    const json_t *want = json_object_get(one, "text"), *ids = json_object_get(one, "ids"), *id;
    static char buf[TEXT_MAX];
    static token_id got[TEXT_MAX];
    struct err e = { .text = "it was taken" };
    int n = render(&c, json, buf, sizeof buf, &e), k;
    size_t i;

    if (!want) {
        if (n != -EINVAL) fail_msg("%s: %s: %s", word(one, "template"), json, e.text);
    } else {
        if (n < 0) fail_msg("%s: %s: %s", word(one, "template"), json, e.text);
        assert_int_equal(n, json_string_length(want));
        if (memcmp(buf, json_string_value(want), (size_t)n))
            fail_msg("%s: %s: '%.*s', not '%s'", word(one, "template"), json, n, buf,
                     json_string_value(want));
        k = tokenizer_encode(t, buf, (size_t)n, true, got, TEXT_MAX, &e);
        assert_int_equal(k, json_array_size(ids));
        json_array_foreach(ids, i, id) assert_int_equal(got[i], json_integer_value(id));
        assert_int_equal(render(&c, json, buf, (size_t)n - 1, &e), -EMSGSIZE);
    }
    free(json);
    tokenizer_close(t);
}

static void
rendered_conversations_match_transformers_in_text_and_ids(void **state)
{
    json_t *cases = read_cases(), *one;
    size_t i;

    (void)state;
    json_array_foreach(cases, i, one) one_case(one);
    json_decref(cases);
}

static void
invalid_conversation_is_rejected_with_a_sentence(void **state)
{
    static const struct {
        const char *json, *says;
    } cases[] = {
        { "", "line 1" },
        { "{}", "messages is not a list" },
        { "[]", "messages is empty" },
        { "[1]", "messages[0]: is not an object with role and content" },
        { "[{}]", "messages[0]: has no role" },
        { "[{\"role\": \"user\"}]", "messages[0]: has no content" },
        { "[{\"role\": \"user\", \"content\": [1]}]", "messages[0]: content is not a string" },
        { "[{\"role\": \"tool\", \"content\": \"\"}]", "messages[0]: role is not" },
        { "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"tool_calls\": "
          "[]}]",
          "messages[1]: tool_calls is not supported" },
        { "[{\"role\": \"user\", \"content\": \"a\"}", "line 1" },
        { "[{\"role\": \"user\", \"content\": \"a\"}] x", "line 1" },
        { "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"developer\", \"content\": "
          "\"\"}]",
          "messages[1]: this model's chat template does not accept role developer" },
        { "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": \"\"}]",
          "messages[1]: role system is allowed only" },
    };
    struct tokenizer *t = open_tokenizer("bpe_o200k");
    struct chat c = named("harmony", t);
    static char buf[TEXT_MAX], work[TEXT_MAX];
    struct err e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int r = render(&c, cases[i].json, buf, sizeof buf, &e);

        if (r != -EINVAL && r != -EBADMSG) fail_msg("%s: %d", cases[i].json, r);
        if (!strstr(e.text, cases[i].says)) fail_msg("%s: %s", cases[i].json, e.text);
    }
    assert_int_equal(chat_render(&c, "2026-13-01\n[]", 13, work, buf, sizeof buf, &e), -EINVAL);
    assert_int_equal(chat_render(&c, "2026", 4, work, buf, sizeof buf, &e), -EINVAL);
    tokenizer_close(t);
}

/* ---- template selection */

static char dir[64];

static void
put(const char *name, const char *text)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void
drop(const char *name)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static const char *
chosen(uint32_t wanted, const char *tokenizer, char note[240])
{
    static char buf[TEXT_MAX];
    struct tokenizer *t = open_tokenizer(tokenizer);
    struct err e;
    struct chat c;
    int n;

    chat_open(&c, dir, wanted, t, note);
    tokenizer_close(t);
    n = render(&c, "[{\"role\": \"user\", \"content\": \"x\"}]", buf, sizeof buf - 1, &e);
    if (n == -ENOTSUP) return strcpy(buf, e.text);
    assert_true(n > 0);
    buf[n] = 0;
    return buf;
}

static void
template_is_selected_by_hash_then_by_architecture(void **state)
{
    char note[240];

    (void)state;
    strcpy(dir, "/tmp/lagan-chat-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_non_null(strstr(chosen(CHAT_AUTO, "spm_gemma", note), "has no chat template"));
    assert_string_equal(note, "");
    put("config.json", "{\"architectures\": [], \"model_type\": \"gemma3_text\"}");
    assert_non_null(strstr(chosen(CHAT_AUTO, "spm_gemma", note), "<start_of_turn>user\nx"));
    assert_string_equal(note, "");
    /* An unknown template. */
    put("tokenizer_config.json", "{\"a\": {\"chat_template\": 1}, \"chat_template\": \"{{ 1 }}\"}");
    assert_non_null(strstr(chosen(CHAT_AUTO, "spm_gemma", note), "<start_of_turn>user\nx"));
    assert_non_null(strstr(note, "using gemma3 for the architecture"));
    put("config.json", "{\"model_type\": \"t5\"}");
    assert_non_null(strstr(chosen(CHAT_AUTO, "spm_gemma", note), "is unknown"));
    assert_non_null(strstr(chosen(CHAT_NONE, "spm_gemma", note), "chat_template is none"));
    assert_non_null(strstr(chosen(number_of("gemma"), "spm_gemma", note), "<start_of_turn>"));
    assert_non_null(
        strstr(chosen(number_of("harmony"), "spm_gemma", note), "needs the special token"));
    assert_non_null(strstr(note, "needs the special token <|start|>"));
    put("tokenizer_config.json", "{\"chat_template\": 1}");
    assert_non_null(strstr(chosen(CHAT_AUTO, "spm_gemma", note), "chat_template is not a string"));
    put("tokenizer_config.json", "{");
    assert_non_null(strstr(chosen(CHAT_AUTO, "spm_gemma", note), "tokenizer_config.json"));
    drop("tokenizer_config.json");
    drop("config.json");
    assert_int_equal(rmdir(dir), 0);
}

/* The Jinja program prints the checkpoint's tokens, our function those of the published checkpoint.
 */
static void
checkpoint_with_other_special_tokens_is_not_recognised(void **state)
{
    static const struct {
        const char *config, *say;
    } cases[] = {
        { "{\"eos_token\": \"<eos>\"}", "<bos><start_of_turn>user\nx" },
        { "{\"bos_token\": {\"lstrip\": false, \"content\": \"<bos>\", \"x\": [1]}}",
          "<bos><start_of_turn>user\nx" },
        { "{\"x\": {\"bos_token\": 1}, \"bos_token\": \"<pad>\"}",
          "gemma3 has <bos> for bos_token, tokenizer_config.json has \"<pad>\"" },
        { "{\"bos_token\": {\"content\": \"<pad>\"}}", "tokenizer_config.json has \"<pad>\"" },
        { "{\"bos_token\": null}", "tokenizer_config.json has \"\"" },
        { "{\"bos_token\": 3}", "the token" },
    };
    char note[240];

    (void)state;
    strcpy(dir, "/tmp/lagan-chat-XXXXXX");
    assert_non_null(mkdtemp(dir));
    put("config.json", "{\"model_type\": \"gemma3_text\"}");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        put("tokenizer_config.json", cases[i].config);
        if (!strstr(chosen(CHAT_AUTO, "spm_gemma", note), cases[i].say))
            fail_msg("%s: %s", cases[i].config, chosen(CHAT_AUTO, "spm_gemma", note));
    }
    /* A named template is not checked against the checkpoint. */
    assert_non_null(strstr(chosen(number_of("gemma3"), "spm_gemma", note), "<bos>"));
    drop("tokenizer_config.json");
    drop("config.json");
    assert_int_equal(rmdir(dir), 0);
}

/* chat_template.json belongs to the processor; the tokenizers of transformers ignore it. */
static void
tokenizer_template_precedes_the_processor_template(void **state)
{
    uint64_t hash[2][2];
    struct err e;

    (void)state;
    strcpy(dir, "/tmp/lagan-chat-XXXXXX");
    assert_non_null(mkdtemp(dir));
    put("tokenizer_config.json", "{\"chat_template\": \"{{ 1 }}\"}");
    assert_int_equal(chat_file_hash(dir, hash[0], &e), 1);
    put("chat_template.json", "{\"chat_template\": \"{{ 2 }}\"}");
    assert_int_equal(chat_file_hash(dir, hash[1], &e), 1);
    assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
    drop("tokenizer_config.json");
    assert_int_equal(chat_file_hash(dir, hash[1], &e), 1);
    assert_memory_not_equal(hash[0], hash[1], sizeof hash[0]);
    drop("chat_template.json");
    assert_int_equal(rmdir(dir), 0);
}

static void
template_hash_is_independent_of_its_file(void **state)
{
    static const struct {
        const char *file, *text;
    } places[] = {
        { "chat_template.jinja", "{{ '\n' }}\n" },
        { "chat_template.json", "{\"chat_template\": \"{{ '\\n' }}\\n\\n\"}" },
        { "tokenizer_config.json", "{\"x\": [{}], \"chat_template\": \"{{ '\\n' }}\"}" },
    };
    /* Gemma 2, as published by Google. */
    static const uint64_t gemma[2] = { UINT64_C(0x8b30bb763d138e69), UINT64_C(0x2c2e86beabccd2a4) };
    uint64_t hash[3][2];
    struct err e;

    (void)state;
    strcpy(dir, "/tmp/lagan-chat-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chat_file_hash(dir, hash[0], &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        put(places[i].file, places[i].text);
        assert_int_equal(chat_file_hash(dir, hash[i], &e), 1);
        assert_memory_equal(hash[i], hash[0], sizeof hash[0]);
        drop(places[i].file);
    }
    assert_int_equal(rmdir(dir), 0);
    assert_null(chat_file_known(hash[0]));
    assert_string_equal(chat_file_known(gemma), "gemma");
}

/* ---- the reply */

static void
only_the_final_channel_of_a_reply_is_output(void **state)
{
    static const char reply[] = "<|channel|>analysis<|message|>They say "
                                "hello.<|end|><|start|>assistant<|channel|>commentary "
                                "json<|message|>{}<|call|><|start|>assistant<|channel|>final<|"
                                "message|>Hello, 世界!<|return|>";
    struct tokenizer *t = open_tokenizer("bpe_o200k");
    struct chat c = named("harmony", t);
    static token_id ids[TEXT_MAX];
    static char buf[TEXT_MAX];
    struct detok d;
    char text[256];
    int n = tokenizer_encode(t, reply, sizeof reply - 1, true, ids, TEXT_MAX, NULL), len = 0;
    bool stopped;

    (void)state;
    for (int with = 0; with < 2; with++, len = 0) {
        detok_init(&d, t, false);
        if (with) chat_reply_begin(&d.reply, &c);
        for (int i = 0; i < n; i++) {
            int k = detok_add(&d, ids[i], buf, sizeof buf, &stopped);

            assert_true(k >= 0 && !stopped);
            memcpy(text + len, buf, (size_t)k);
            len += k;
        }
        text[len] = 0;
        assert_string_equal(text, with ? "Hello, 世界!"
                                       : "analysisThey say hello.assistantcommentary json{}"
                                         "assistantfinalHello, 世界!");
    }
    tokenizer_close(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rendered_conversations_match_transformers_in_text_and_ids),
        cmocka_unit_test(invalid_conversation_is_rejected_with_a_sentence),
        cmocka_unit_test(template_is_selected_by_hash_then_by_architecture),
        cmocka_unit_test(checkpoint_with_other_special_tokens_is_not_recognised),
        cmocka_unit_test(tokenizer_template_precedes_the_processor_template),
        cmocka_unit_test(template_hash_is_independent_of_its_file),
        cmocka_unit_test(only_the_final_channel_of_a_reply_is_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
