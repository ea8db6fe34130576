/* test_api_fields.c - every field of every body: served with an effect, refused by name, or named
 * as ignored. The table of fields is walked: a field without a row here fails. */
#include "tests/gateway/api_assert.h"

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static int
open_two_models(void **state)
{
    open_fixture(state);
    f.n_models = 2;
    return 0;
}

struct route_row {
    unsigned on;
    const char *path, *base; /* base: the required members */
};

static const struct route_row routes[] = {
    { ON_CHAT, "/v1/chat/completions", "\"model\":\"m\"," MESSAGES },
    { ON_COMPLETIONS, "/v1/completions", "\"model\":\"m\",\"prompt\":[5]" },
    { ON_EMBEDDINGS, "/v1/embeddings", "\"model\":\"e\",\"input\":\"a\"" },
    { ON_TOKENIZE, "/tokenize", "\"model\":\"m\",\"prompt\":\"a\"" },
    { ON_DETOKENIZE, "/detokenize", "\"model\":\"m\",\"tokens\":[5]" },
    { ON_TEMPLATE, "/apply-template", "\"model\":\"m\"," MESSAGES },
};

/* Returns the base without the member of this name. */
static void
base_without(const struct route_row *r, const char *name, char *to, size_t n)
{
    char key[96];
    const char *at;

    snprintf(key, sizeof key, "\"%s\":", name);
    at = strstr(r->base, key);
    if (!at)
        snprintf(to, n, "%s", r->base);
    else if (at == r->base)
        snprintf(to, n, "%s", strchr(at, ',') + 1);
    else
        snprintf(to, n, "%.*s", (int)(at - 1 - r->base), r->base);
}

/* Sends the base and one member. */
static struct http_exchange *
ask_with(const struct route_row *r, const char *name, const char *value)
{
    static char body[1 << 16];
    char base[256];

    base_without(r, name, base, sizeof base);
    snprintf(body, sizeof body, "{%s,\"%s\":%s}", base, name, value);
    return ask(&f, HTTP_POST, r->path, body);
}

/* The names in X-Lagan-Ignored of a request that was taken; "" if there are none. */
static const char *
ignored(struct http_exchange *x)
{
    static char names[600];
    const char *line = ignored_of(x);

    names[0] = '\0';
    if (strncmp(line, "X-Lagan-Ignored: ", 17) == 0)
        snprintf(names, sizeof names, "%.*s", (int)strcspn(line + 17, "\r"), line + 17);
    return names;
}

static void
assert_served(struct http_exchange *x, const char *ignored_name, const char *field)
{
    if (x->started) fail_msg("%s is not served: %.*s", field, (int)x->sent.n, x->sent.p);
    assert_string_equal(ignored(x), ignored_name);
}

static const char *
wildcard(const char *name)
{
    return strcmp(name, "lora*") == 0      ? "lora_request"
           : strcmp(name, "adapter*") == 0 ? "adapter_id"
           : strcmp(name, "guided_*") == 0 ? "guided_json"
                                           : name;
}

/* ---- rules that hold for every row of the table */

static void
null_is_absent_in_every_field(void **state)
{
    (void)state;
    for (enum field i = 0; i < N_FIELDS; i++)
        for (size_t r = 0; r < ARRAY_LEN(routes); r++) {
            const char *name = wildcard(field_rows[i].name);
            char base[256];
            struct http_exchange *x;

            if (!(field_rows[i].routes & routes[r].on)) continue;
            x = ask_with(&routes[r], name, "null");
            base_without(&routes[r], name, base, sizeof base);
            if (strcmp(base, routes[r].base) == 0)
                assert_served(x, "", name);
            else if (i == F_model)
                assert_fault(x, 400, "missing_required_parameter", "model");
            else
                assert_fault(x, 400, "missing_required_parameter", name);
            ask_done(&f, x);
        }
}

static void
wrong_types_and_ranges_are_refused_by_name(void **state)
{
    static const char *const not_bool[] = { "1", "\"true\"", "[]", "{}" };
    static const char *const not_number[] = { "true", "\"5\"", "[5]", "{}" };
    static const char *const not_string[] = { "5", "true", "[\"a\"]", "{}" };
    struct http_exchange *x;
    char value[8192];

    (void)state;
    for (enum field i = 0; i < N_FIELDS; i++) {
        const struct field_row *row = &field_rows[i];
        size_t r = 0;

        while (!(row->routes & routes[r].on)) r++;
        for (int k = 0; k < 4 && row->kind != FIELD_JSON; k++) {
            x = ask_with(&routes[r], row->name,
                         row->kind == FIELD_BOOL  ? not_bool[k]
                         : row->kind == FIELD_STR ? not_string[k]
                                                  : not_number[k]);
            assert_fault(x, 400, "invalid_type", row->name);
            ask_done(&f, x);
        }
        for (int k = 0; k < 4 && (row->kind == FIELD_INT || row->kind == FIELD_NUM); k++) {
            if (k == 0) snprintf(value, sizeof value, "%.17g", row->least - 1);
            if (k == 1) snprintf(value, sizeof value, "%.17g", row->most + 1);
            if (k == 2) snprintf(value, sizeof value, "1e400");
            if (k == 3) snprintf(value, sizeof value, "-99999999999999999999");
            if (i == F_seed && k < 2) continue; /* no double is next to its limits */
            x = ask_with(&routes[r], row->name, value);
            assert_fault(x, 400, "invalid_value", row->name);
            ask_done(&f, x);
        }
        if (row->kind == FIELD_INT) {
            x = ask_with(&routes[r], row->name, "1.5");
            assert_fault(x, 400, "invalid_type", row->name);
            ask_done(&f, x);
        }
        if (row->kind == FIELD_STR) {
            size_t n = (size_t)row->most + 1;

            memset(value, 'a', sizeof value);
            value[0] = value[n + 1] = '"';
            value[n + 2] = '\0';
            x = ask_with(&routes[r], row->name, value);
            assert_fault(x, 400, "invalid_value", row->name);
            ask_done(&f, x);
        }
    }
}

static void
refused_fields_take_their_neutral_values_only(void **state)
{
    struct http_exchange *x;
    char value[128];

    (void)state;
    for (enum field i = 0; i < N_FIELDS; i++) {
        const struct field_row *row = &field_rows[i];

        for (size_t r = 0; r < ARRAY_LEN(routes) && row->use == FIELD_REFUSED; r++) {
            const char *name = wildcard(row->name);

            if (!(row->routes & routes[r].on)) continue;
            x = ask_with(&routes[r], name, "{\"x\": 1}");
            assert_fault(x, 400, "unsupported", name);
            ask_done(&f, x);
            for (const char *at = row->arg; *at; at += strcspn(at, "|"), at += *at == '|') {
                snprintf(value, sizeof value, " %.*s ", (int)strcspn(at, "|"), at);
                x = ask_with(&routes[r], name, value);
                assert_served(x, "", name);
                ask_done(&f, x);
            }
        }
    }
}

static void
accepted_fields_have_no_effect(void **state)
{
    struct http_exchange *x;
    char value[128];

    (void)state;
    for (enum field i = 0; i < N_FIELDS; i++) {
        const struct field_row *row = &field_rows[i];
        size_t r = 0;

        if (row->use != FIELD_ACCEPTED) continue;
        while (!(row->routes & routes[r].on)) r++;
        snprintf(value, sizeof value, "%s", row->kind == FIELD_BOOL ? "true" : "\"other\"");
        x = ask_with(&routes[r], row->name, value);
        assert_served(x, row->arg ? row->name : "", row->name);
        ask_done(&f, x);
        if (!row->arg || strcmp(row->arg, "null") == 0) continue;
        snprintf(value, sizeof value, "%.*s", (int)strcspn(row->arg, "|"), row->arg);
        x = ask_with(&routes[r], row->name, value);
        assert_served(x, "", row->name);
        ask_done(&f, x);
    }
}

static void
unknown_fields_are_named_or_refused(void **state)
{
    struct http_exchange *x;

    (void)state;
    for (size_t r = 0; r < ARRAY_LEN(routes); r++) {
        x = ask_with(&routes[r], "no\\u0074hing", "{\"a\":[1]}");
        assert_served(x, "nothing", "an unknown field");
        ask_done(&f, x);
    }
    f.config.strict = true;
    assert_int_equal(api_configure(f.api, &f.config, NULL), 0);
    x = ask_with(&routes[0], "nothing", "1");
    assert_fault(x, 400, "unknown_parameter", "nothing");
    ask_done(&f, x);
}

/* ---- what each field becomes */

struct row {
    enum field field;
    unsigned on;
    const char *value; /* begins with '+': further members that follow it */
    const char *want;  /* "key=value" of lagand, "!key": it has none; "400 CODE [PARAM]"; "ok" */
};

#define C ON_CHAT
#define T ON_COMPLETIONS
#define A ON_BOTH
static const struct row rows[] = {
    { F_model, A, "\"m\"", "model=m" },
    { F_model, A, "\"alias\"", "model=m" },
    { F_model, A, "\"../../etc\"", "404 model_not_found" },
    { F_model, A, "\"e\\u0301\"", "404 model_not_found" },
    { F_messages, C, "[]", "400 invalid_value" },
    { F_messages, C, "{}", "400 invalid_type" },
    { F_messages, C, "[1]", "400 invalid_type messages[0]" },
    { F_messages, C, "[{}]", "400 missing_required_parameter messages[0].role" },
    { F_messages, C, "[{\"role\":\"user\"}]",
      "400 missing_required_parameter messages[0].content" },
    { F_messages, C, "[{\"role\":\"user\",\"content\":5}]",
      "400 invalid_type messages[0].content" },
    { F_messages, C, "[{\"role\":\"user\",\"content\":{}}]",
      "400 invalid_type messages[0].content" },
    { F_messages, C, "[{\"role\":\"user\",\"content\":[]}]",
      "400 invalid_value messages[0].content" },
    { F_messages, C, "[{\"role\":\"user\",\"content\":[5]}]",
      "400 invalid_type messages[0].content[0]" },
    { F_messages, C, "[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]",
      "400 missing_required_parameter messages[0].content[0].type" },
    { F_messages, C,
      "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
      "\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]",
      "400 unsupported messages[0].content[1].type" },
    { F_messages, C, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
      "400 missing_required_parameter messages[0].content[0].text" },
    { F_messages, C,
      "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\n\"},"
      "{\"text\":\"\\u00e9\",\"type\":\"text\"}]}]",
      "messages=[{\"role\":\"user\",\"content\":\"a\\n\\u00e9\"}]" },
    { F_messages, C, "[{\"role\":5,\"content\":\"a\"}]", "400 invalid_type messages[0].role" },
    { F_messages, C, "[{\"role\":\"boss\",\"content\":\"a\"}]",
      "400 invalid_value messages[0].role" },
    { F_messages, C, "[{\"role\":\"tool\",\"content\":\"a\"}]",
      "400 unsupported messages[0].role" },
    { F_messages, C, "[{\"role\":\"function\",\"content\":\"a\"}]",
      "400 unsupported messages[0].role" },
    { F_messages, C, "[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[{}]}]",
      "400 unsupported messages[0].tool_calls" },
    { F_messages, C, "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]}]",
      "400 unsupported messages[0].tool_calls" },
    { F_messages, C,
      "[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[],\"refusal\":null}]",
      "messages=[{\"role\":\"assistant\",\"content\":\"a\"}]" },
    { F_messages, C,
      "[{\"content\":\"a\",\"name\":\"n\",\"role\":\"developer\"},"
      "{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"c\"}]",
      "messages=[{\"content\":\"a\",\"name\":\"n\",\"role\":\"system\"},"
      "{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"c\"}]" },
    { F_messages, C,
      "[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}]",
      "messages=[{\"role\":\"assistant\",\"content\":\"no\"}]" },
    { F_messages, ON_TOKENIZE, "[{\"role\":\"user\",\"content\":\"a\"}]", "400 invalid_value" },
    { F_prompt, T, "\"a\\u0000\"", "ok" },
    { F_prompt, T, "[5,6]", "ids=5,6" },
    { F_prompt, T, "[[5,6]]", "ids=5,6" },
    { F_prompt, T, "[\"a\"]", "text=a" },
    { F_prompt, T, "\"\"", "400 invalid_value" },
    { F_prompt, T, "[]", "400 invalid_value" },
    { F_prompt, T, "[[]]", "400 invalid_value" },
    { F_prompt, T, "[[5],[]]", "400 invalid_value" },
    { F_prompt, T, "[1,\"a\"]", "400 invalid_type prompt[1]" },
    { F_prompt, T, "[\"a\",1]", "400 invalid_type prompt[1]" },
    { F_prompt, T, "[[1],\"a\"]", "400 invalid_type prompt[1]" },
    { F_prompt, T, "[[1],2]", "400 invalid_type prompt[1]" },
    { F_prompt, T, "[1,[2]]", "400 invalid_type prompt[1]" },
    { F_prompt, T, "[{}]", "400 invalid_type prompt[0]" },
    { F_prompt, T, "[-1]", "400 invalid_value prompt[0]" },
    { F_prompt, T, "[5,100]", "400 invalid_value prompt[1]" },
    { F_prompt, T, "[[5],[6,1.5]]", "400 invalid_value prompt[1][1]" },
    { F_prompt, T, "5", "400 invalid_type" },
    { F_prompt, T, "{}", "400 invalid_type" },
    { F_prompt, T, "[[[5]]]", "400 invalid_type prompt[0][0]" },
    { F_prompt, ON_TOKENIZE, "[5]", "400 invalid_type" },
    { F_input, ON_EMBEDDINGS, "[5,6]", "ids=5,6" },
    { F_input, ON_EMBEDDINGS, "[\"a\"]", "text=a" },
    { F_input, ON_EMBEDDINGS, "[]", "400 invalid_value" },
    { F_tokens, ON_DETOKENIZE, "[5]", "ok" },
    { F_tokens, ON_DETOKENIZE, "[ [5]]", "400 invalid_type" },
    { F_tokens, ON_DETOKENIZE, "\"a\"", "400 invalid_type" },
    { F_max_tokens, A, "7", "max_tokens=7" },
    { F_max_tokens, A, "7", "!fit" },
    { F_max_tokens, T, "0", "400 invalid_value" },
    { F_max_tokens, T, "0+,\"echo\":true", "ok" },
    { F_max_completion_tokens, C, "8", "max_tokens=8" },
    { F_max_completion_tokens, C, "8+,\"max_tokens\":8", "max_tokens=8" },
    { F_max_completion_tokens, C, "8+,\"max_tokens\":9", "400 invalid_value max_tokens" },
    { F_temperature, A, "0.5", "temperature=0.5" },
    { F_temperature, A, "0.000001", "temperature=0" },
    { F_top_p, A, "0.25", "top_p=0.25" },
    { F_top_p, A, "0", "temperature=0" },
    { F_top_k, A, "40", "top_k=40" },
    { F_top_k, A, "-1", "top_k=0" },
    { F_min_p, A, "0.1", "min_p=0.1" },
    { F_repetition_penalty, A, "1.5", "repetition_penalty=1.5" },
    { F_presence_penalty, A, "-2", "presence_penalty=-2" },
    { F_frequency_penalty, A, "2", "frequency_penalty=2" },
    { F_seed, A, "9223372036854775807", "seed=9223372036854775807" },
    { F_seed, A, "-1", "seed=9223372036854775807" },
    { F_seed, A, "5.0", "seed=5" },
    { F_seed, A, "9223372036854775808", "400 invalid_value" },
    { F_n, A, "3", "n=3" },
    { F_n, A, "3+,\"temperature\":0", "400 invalid_value n" },
    { F_best_of, T, "1", "ok" },
    { F_best_of, T, "2+,\"n\":2", "n=2" },
    { F_best_of, T, "2", "400 unsupported" },
    { F_best_of, T, "1+,\"n\":2,\"use_beam_search\":true", "400 invalid_value" },
    { F_best_of, T, "3+,\"n\":2,\"use_beam_search\":true", "beams=3" },
    { F_stop, A, "\"x\"", "stop=x" },
    { F_stop, A, "[\"x\",\"\\n\\u00e9\"]", "stop=x,\n\xc3\xa9" },
    { F_stop, A, "[]", "!stop" },
    { F_stop, A, "\"\"", "400 invalid_value" },
    { F_stop, A, "[\"a\",\"\"]", "400 invalid_value stop[1]" },
    { F_stop, A, "\"a\\u0000\"", "400 invalid_value" },
    { F_stop, A, "5", "400 invalid_type" },
    { F_stop, A, "[5]", "400 invalid_type stop[0]" },
    { F_stop, A, "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "400 invalid_type stop[0]" },
    { F_stop, A,
      "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
      "\"a\","
      "\"a\"]",
      "400 invalid_value" },
    { F_stop_token_ids, A, "[5,6]", "stop_ids=5,6" },
    { F_stop_token_ids, A, "[]", "!stop_ids" },
    { F_stop_token_ids, A, "[100]", "400 invalid_value stop_token_ids[0]" },
    { F_stop_token_ids, A, "5", "400 invalid_type" },
    { F_stop_token_ids, A, "[\"5\"]", "400 invalid_type stop_token_ids[0]" },
    { F_ignore_eos, A, "true", "ignore_eos=true" },
    { F_min_tokens, A, "2", "min_tokens=2" },
    { F_logit_bias, A, "{\"5\":-100,\"6\":0.5}", "logit_bias=5:-100,6:0.5" },
    { F_logit_bias, A, "{}", "!logit_bias" },
    { F_logit_bias, A, "[]", "400 invalid_type" },
    { F_logit_bias, A, "{\"x\":1}", "400 invalid_value logit_bias.x" },
    { F_logit_bias, A, "{\"-1\":1}", "400 invalid_value logit_bias.-1" },
    { F_logit_bias, A, "{\"100\":1}", "400 invalid_value logit_bias.100" },
    { F_logit_bias, A, "{\"2147483648\":1}", "400 invalid_value logit_bias.2147483648" },
    { F_logit_bias, A, "{\"5\":101}", "400 invalid_value logit_bias.5" },
    { F_logit_bias, A, "{\"5\":\"1\"}", "400 invalid_type logit_bias.5" },
    { F_stream, A, "true", "ok" },
    { F_stream_options, A, "{\"include_usage\":true}", "400 invalid_value" },
    { F_stream_options, A,
      "{\"include_usage\":true,\"include_obfuscation\":false}+,\"stream\":true", "ok" },
    { F_stream_options, A, "{\"include_usage\":1}+,\"stream\":true",
      "400 invalid_type stream_options.include_usage" },
    { F_stream_options, A, "{\"continuous_usage_stats\":true}+,\"stream\":true", "ok" },
    { F_stream_options, A, "5+,\"stream\":true", "400 invalid_type" },
    { F_stream_interval, A, "4", "ok" },
    { F_user, A, "\"someone\"", "ok" },
    { F_cache_salt, A, "\"s\\u00e9\"", "cache_salt=s\xc3\xa9" },
    { F_cache_salt, A, "\"\"", "400 invalid_value" },
    { F_priority, A, "-10", "priority=1" },
    { F_priority, A, "10", "priority=0" },
    { F_return_token_ids, A, "true", "ok" },
    { F_return_tokens_as_token_ids, A, "true", "ok" },
    { F_chat_logprobs, C, "true", "ok" },
    { F_chat_logprobs, C, "false", "!logprobs" },
    { F_top_logprobs, C, "5", "400 invalid_value" },
    { F_top_logprobs, C, "5+,\"logprobs\":true", "ok" },
    { F_logprobs, T, "3", "ok" },
    { F_prompt_logprobs, A, "1", "ok" },
    { F_prompt_logprobs, A, "1+,\"stream\":true", "400 unsupported" },
    { F_echo, T, "false", "ok" },
    { F_use_beam_search, A, "true+,\"n\":2,\"beam_width\":4", "beams=4" },
    { F_use_beam_search, A, "true+,\"n\":2", "beams=2" },
    { F_beam_width, A, "4", "400 invalid_value" },
    { F_length_penalty, A, "0.5", "length_penalty=0.5" },
    { F_early_stopping, A, "true", "early_stopping=true" },
    { F_early_stopping, A, "\"never\"", "early_stopping=never" },
    { F_early_stopping, A, "\"x\"", "400 invalid_type" },
    { F_no_repeat_ngram_size, A, "3", "no_repeat_ngram=3" },
    { F_decoder_prompt, T, "[5]", "400 invalid_value" },
    { F_target_lang, T, "\"de_DE\"", "400 invalid_value" },
    { F_encoding_format, ON_EMBEDDINGS, "\"float\"", "ok" },
    { F_encoding_format, ON_EMBEDDINGS, "\"int8\"", "400 invalid_value" },
    { F_add_special_tokens, ON_TOKENIZE, "false", "ok" },
};

static void
check_row(const struct row *row, const struct route_row *r)
{
    const struct field_row *field = &field_rows[row->field];
    char value[2048], key[64], code[64], param[128];
    const char *more = strstr(row->value, "+,"), *equals = strchr(row->want, '=');
    uint32_t before = f.n_sent;
    struct http_exchange *x;
    int status;

    snprintf(value, sizeof value, "%.*s%s",
             (int)(more ? more - row->value : (long)strlen(row->value)), row->value,
             more ? more + 1 : "");
    x = ask_with(r, field->name, value);
    snprintf(param, sizeof param, "%s", field->name);
    if (sscanf(row->want, "%d %63s %127s", &status, code, param) >= 2) {
        assert_fault(x, status, code, param);
        assert_int_equal(f.n_sent, before);
    } else {
        if (x->started) fail_msg("%s %s: %.*s", field->name, value, (int)x->sent.n, x->sent.p);
        if (strcmp(row->want, "ok") != 0) assert_int_equal(f.n_sent, before + 1);
        if (row->want[0] == '!') {
            assert_key(&f.sent[before], row->want + 1, NULL);
        } else if (equals) {
            snprintf(key, sizeof key, "%.*s", (int)(equals - row->want), row->want);
            assert_key(&f.sent[before], key, equals + 1);
        }
    }
    ask_done(&f, x);
}

static void
every_served_field_has_an_effect(void **state)
{
    bool tested[N_FIELDS] = { false };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        tested[rows[i].field] = true;
        for (size_t r = 0; r < ARRAY_LEN(routes); r++)
            if (rows[i].on & routes[r].on) check_row(&rows[i], &routes[r]);
    }
    for (enum field i = 0; i < N_FIELDS; i++)
        if (!tested[i] && (field_rows[i].use == FIELD_SERVED || field_rows[i].use == FIELD_PASSED))
            fail_msg("field %s has no row in this test", field_rows[i].name);
}

/* ---- defaults, headers and limits */

static void
absent_values_are_those_of_the_model(void **state)
{
    struct http_exchange *x;

    (void)state;
    f.models[0].temperature = 0.6;
    f.models[0].top_p = 0.9;
    f.models[0].top_k = 20;
    f.models[0].min_p = 0.05;
    f.models[0].repetition_penalty = 1.1;
    x = ask_with(&routes[0], "user", "\"a\"");
    assert_key(&f.sent[0], "temperature", "0.6");
    assert_key(&f.sent[0], "top_p", "0.9");
    assert_key(&f.sent[0], "top_k", "20");
    assert_key(&f.sent[0], "min_p", "0.05");
    assert_key(&f.sent[0], "repetition_penalty", "1.1");
    assert_key(&f.sent[0], "fit", "true");
    assert_key(&f.sent[0], "request_id", "req-1");
    assert_key(&f.sent[0], "disconnect_timeout_ms", "2000");
    assert_key(&f.sent[0], "max_tokens", "16777216");
    ask_done(&f, x);
    f.models[0].no_evict = true;
    x = ask_with(&routes[0], "user", "\"a\"");
    assert_key(&f.sent[1], "max_tokens", "4096");
    assert_non_null(strstr(((struct exchange *)x->user)->fields.p, "X-Lagan-Max-Tokens: 4096\r\n"));
    ask_done(&f, x);
    f.config.default_max_tokens = 50;
    assert_int_equal(api_configure(f.api, &f.config, NULL), 0);
    x = ask_with(&routes[0], "user", "\"a\"");
    assert_key(&f.sent[2], "max_tokens", "50");
    ask_done(&f, x);
}

static struct http_exchange *
ask_headers(const char *headers)
{
    static const char body[] = "{\"model\":\"m\",\"prompt\":\"a\",\"priority\":5}";

    return ask_bytes(&f, "/v1/completions", headers, body, sizeof body - 1);
}

static void
headers_of_a_request_are_served_or_refused(void **state)
{
    static const struct {
        const char *headers, *want;
    } cases[] = {
        { "X-Lagan-Priority: 0.9\n", "priority=0.9" },
        { "X-Lagan-Priority: 1.1\n", "400 invalid_value X-Lagan-Priority" },
        { "X-Lagan-Priority: \n", "400 invalid_value X-Lagan-Priority" },
        { "X-Lagan-Priority: nan\n", "400 invalid_value X-Lagan-Priority" },
        { "X-Lagan-Deadline-Ms: 500\n", "deadline_ms=500" },
        { "X-Lagan-Deadline-Ms: 0\n", "400 invalid_value X-Lagan-Deadline-Ms" },
        { "Idempotency-Key: k\n", "400 unsupported Idempotency-Key" },
        { "Last-Event-ID: 1:2\n", "400 unsupported Last-Event-ID" },
        { "Content-Type: application/json\n", "priority=0.25" },
        { "Content-Type: application/json; charset=utf-8\n", "priority=0.25" },
        { "Content-Type: text/plain\n", "priority=0.25" },
        { "Content-Type: application/x-www-form-urlencoded\n", "priority=0.25" },
        { "Content-Type: multipart/form-data; boundary=x\n", "415 unsupported_media_type null" },
        { "Content-Type: application/jsonx\n", "415 unsupported_media_type null" },
        { "X-Data-Parallel-Rank: 1\n", "priority=0.25" },
        { "Content-Encoding: gzip\n", "415 unsupported_media_type null" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t before = f.n_sent;
        struct http_exchange *x = ask_headers(cases[i].headers);
        char code[64], param[64], key[64];
        const char *equals = strchr(cases[i].want, '=');
        int status;

        if (sscanf(cases[i].want, "%d %63s %63s", &status, code, param) == 3) {
            assert_fault(x, status, code, strcmp(param, "null") == 0 ? NULL : param);
        } else {
            assert_false(x->started);
            snprintf(key, sizeof key, "%.*s", (int)(equals - cases[i].want), cases[i].want);
            assert_key(&f.sent[before], key, equals + 1);
            assert_string_equal(ignored(x), strstr(cases[i].headers, "form-url") ? "content-type"
                                            : strstr(cases[i].headers, "Rank")
                                                ? "x-data-parallel-rank"
                                                : "");
        }
        ask_done(&f, x);
    }
}

static void
decoder_prompt_goes_to_encoder_decoder_models(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_POST, "/v1/completions",
                                  "{\"model\":\"e\",\"prompt\":\"a\",\"decoder_prompt\":[5,6]}");

    (void)state;
    assert_key(&f.sent[0], "decoder_ids", "5,6");
    ask_done(&f, x);
    x = ask(&f, HTTP_POST, "/v1/completions",
            "{\"model\":\"e\",\"prompt\":\"a\",\"decoder_prompt\":\"\\u00e9\"}");
    assert_string_equal(f.sent[1].verb, "tokenize");
    assert_string_equal(f.sent[1].text, "{\"model\":\"e\",\"text\":\"\xc3\xa9\",\"bare\":true}");
    send_reply(&f, 1, "{\"ids\":[7,8]}");
    assert_key(&f.sent[2], "decoder_ids", "7,8");
    assert_key(&f.sent[2], "text", "a");
    ask_done(&f, x);
    x = ask(&f, HTTP_POST, "/v1/completions", "{\"model\":\"e\",\"prompt\":\"a\",\"echo\":true}");
    assert_fault(x, 400, "unsupported", "echo");
    ask_done(&f, x);
    x = ask(&f, HTTP_POST, "/v1/chat/completions", "{\"model\":\"e\"," MESSAGES "}");
    assert_fault(x, 400, "unsupported", "messages");
    ask_done(&f, x);
    x = ask(&f, HTTP_POST, "/v1/embeddings", "{\"model\":\"m\",\"input\":\"a\"}");
    assert_fault(x, 400, "unsupported", "model");
    ask_done(&f, x);
}

static void
target_lang_is_the_first_token_of_the_output(void **state)
{
    CLEAN(out_free) struct out o = { 0 };
    static const char body[] = "{\"model\":\"e\",\"prompt\":\"a\",\"target_lang\":\"de_DE\"}";
    struct http_exchange *x = ask(&f, HTTP_POST, "/v1/completions", body);

    (void)state;
    assert_string_equal(f.sent[0].verb, "pieces");
    out_put(&o, "[[100,101]");
    for (int i = 1; i < 100; i++) out_put(&o, i == 42 ? ",[100,101,95,68,69]" : ",[97]");
    out_bytes(&o, "]", 2);
    send_reply(&f, 0, o.p);
    assert_key(&f.sent[1], "forced_bos", "42");
    ask_done(&f, x);
    x = ask(&f, HTTP_POST, "/v1/completions",
            "{\"model\":\"e\",\"prompt\":\"a\",\"target_lang\":\"fr_FR\"}");
    assert_fault(x, 400, "invalid_value", "target_lang");
    ask_done(&f, x);
}

static void
prompts_and_outputs_have_limits(void **state)
{
    CLEAN(out_free) struct out o = { 0 };
    struct http_exchange *x;

    (void)state;
    out_put(&o, "{\"model\":\"m\",\"prompt\":[");
    for (int i = 0; i < 129; i++) out_put(&o, i ? ",\"a\"" : "\"a\"");
    out_put(&o, "]}");
    x = ask_bytes(&f, "/v1/completions", NULL, o.p, o.n);
    assert_fault(x, 400, "invalid_value", "prompt");
    ask_done(&f, x);
    f.config.max_n = 4;
    assert_int_equal(api_configure(f.api, &f.config, NULL), 0);
    x = ask_with(&routes[0], "n", "5");
    assert_fault(x, 400, "invalid_value", "n");
    ask_done(&f, x);

    for (int n = 256; n <= 257; n++) { /* bytes of a stop string */
        char value[300];

        snprintf(value, sizeof value, "\"%0*d\"", n, 0);
        x = ask_with(&routes[0], "stop", value);
        if (n > 256)
            assert_fault(x, 400, "invalid_value", "stop");
        else
            assert_served(x, "", "stop");
        ask_done(&f, x);
    }
    o.n = 0;
    out_put(&o, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}");
    for (int i = 0; i < 40000; i++) out_put(&o, ",{\"role\":\"user\",\"content\":\"a\"}");
    out_put(&o, "]}");
    x = ask_bytes(&f, "/v1/chat/completions", NULL, o.p, o.n);
    assert_fault(x, 400, "invalid_value", "messages");
    ask_done(&f, x);
}

static void
many_messages_are_read_in_several_parts(void **state)
{
    CLEAN(out_free) struct out o = { 0 };
    struct http_exchange *x;

    (void)state;
    out_put(&o, "{\"model\":\"m\",\"messages\":[");
    for (int i = 0; i < 20000; i++)
        out_format(&o, "%s{\"role\":\"user\",\"content\":\"%d\"}", i ? "," : "", i);
    out_put(&o, "]}");
    x = ask_bytes(&f, "/v1/chat/completions", NULL, o.p, o.n);
    assert_false(x->started);
    assert_true(x->n_reads > 8);
    ask_done(&f, x);
    for (int i = 0; i < 40000; i++) out_put(&o, "                              ");
    o.p[o.n - 1] = ']';
    memcpy(o.p, "{\"model\":\"m\",\"messages\":[ ", 26);
    x = ask_bytes(&f, "/v1/chat/completions", NULL, o.p, o.n);
    assert_fault(x, 400, "invalid_json", NULL);
    ask_done(&f, x);
}

static void
zero_tokens_are_neither_shown_nor_counted(void **state)
{
    struct http_exchange *x =
        ask(&f, HTTP_POST, "/v1/completions",
            "{\"model\":\"m\",\"prompt\":\"a\",\"echo\":true,\"max_tokens\":0}");

    (void)state;
    assert_key(&f.sent[0], "max_tokens", "1");
    send_tokens(&f, 0, 0, "b", (token_id[]){ 5 }, 1);
    send_output(&f, 0, 0, LAGAN_FINISH_EOS, 1, 2);
    send_done(&f, 0);
    assert_non_null(
        strstr(x->sent.p, "\"text\":\"a\",\"logprobs\":null,\"finish_reason\":\"length\""));
    assert_non_null(strstr(x->sent.p, "\"completion_tokens\":0,"));
    ask_done(&f, x);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_two_models, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(null_is_absent_in_every_field),
        TEST(wrong_types_and_ranges_are_refused_by_name),
        TEST(refused_fields_take_their_neutral_values_only),
        TEST(accepted_fields_have_no_effect),
        TEST(unknown_fields_are_named_or_refused),
        TEST(every_served_field_has_an_effect),
        TEST(absent_values_are_those_of_the_model),
        TEST(headers_of_a_request_are_served_or_refused),
        TEST(decoder_prompt_goes_to_encoder_decoder_models),
        TEST(target_lang_is_the_first_token_of_the_output),
        TEST(prompts_and_outputs_have_limits),
        TEST(zero_tokens_are_neither_shown_nor_counted),
        TEST(many_messages_are_read_in_several_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
