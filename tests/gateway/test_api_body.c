/* test_api_body.c - bodies that are no JSON, hostile JSON, and JSON that is read in parts. */
#include "tests/gateway/api_assert.h"

static struct http_exchange *
complete_bytes(const char *body, size_t n)
{
    return ask_bytes(&f, "/v1/completions", NULL, body, n);
}

#define TEXT(s) s, sizeof s - 1
static const struct {
    const char *body;
    size_t n;
    const char *code, *param; /* code NULL: the request is taken */
} bodies[] = {
    { TEXT(""), "invalid_json", NULL },
    { TEXT("  "), "invalid_json", NULL },
    { TEXT("null"), "invalid_type", NULL },
    { TEXT("[]"), "invalid_type", NULL },
    { TEXT("\"x\""), "invalid_type", NULL },
    { TEXT("5"), "invalid_type", NULL },
    { TEXT("{}"), "missing_required_parameter", "prompt" },
    { TEXT("{\"model\":1}"), "invalid_type", "model" },
    { TEXT("{\"prompt\":\"a\"}"), NULL, NULL },
    { TEXT(" {\"prompt\" : \"a\" }\r\n\t "), NULL, NULL },
    { TEXT("{\"prompt\":\"a\",}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"a\"}x"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"a\"}{}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"a\"}\0"), "invalid_json", NULL },
    { TEXT("{/* c */\"prompt\":\"a\"}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"a\",\"temperature\":NaN}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"a\",\"temperature\":Infinity}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"a\",\"temperature\":1e400}"), "invalid_value", "temperature" },
    { TEXT("{\"prompt\":\"a\",\"temperature\":-0}"), NULL, NULL },
    { TEXT("{\"prompt\":\"a\",\"max_tokens\":12345678901234567890}"), "invalid_value",
      "max_tokens" },
    { TEXT("{\"prompt\":\"a\",\"max_tokens\":01}"), "invalid_json", NULL },
    { TEXT("{'prompt':'a'}"), "invalid_json", NULL },
    { TEXT("\xef\xbb\xbf{\"prompt\":\"a\"}"), "invalid_json", NULL },
    { TEXT("{\0\"\0p\0\"\0"), "invalid_json", NULL },
    { TEXT("\xff\xfe{\0"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"\xc0\xaf\"}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"\xed\xa0\x80\"}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"\\ud800\"}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"\\udc00\\ud800\"}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"\\ud83d\\ude00\"}"), NULL, NULL },
    { TEXT("{\"prompt\":\"\\u0000\"}"), NULL, NULL },
    { TEXT("{\"prompt\":\"a\n\"}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"a\",\"stop\":\"\\u0000\"}"), "invalid_value", "stop" },
    { TEXT("{\"prompt\":\"a\",\"prompt\":\"a\"}"), "invalid_json", "prompt" },
    { TEXT("{\"prompt\":\"a\",\"pro\\u006dpt\":\"a\"}"), "invalid_json", "prompt" },
    { TEXT("{\"prompt\":\"a\",\"x\":{\"y\":{\"k\":1,\"k\":1}}}"), "invalid_json", NULL },
    { TEXT("{\"prompt\":\"a\",\"x\":[{\"k\":1},{\"k\":1}]}"), NULL, NULL },
    { TEXT("{\"prompt\":\"a\",\"x\":[[{\"k\":{\"k\":1}}]],\"k\":1}"), NULL, NULL },
    { TEXT("{\"pro\\u006dpt\":\"\"}"), "invalid_value", "prompt" },
    { TEXT("{\"\":1,\"prompt\":\"a\"}"), NULL, NULL },
    { TEXT("{\"prompt\":\"a\",\"stop\":[\"a\",[]]}"), "invalid_type", "stop[1]" },
    { TEXT("{\"prompt\":\"a\",\"model\":\"m\\u0000\"}"), "model_not_found", "model" },
};

static void
hostile_bodies_get_a_clear_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        struct http_exchange *x = complete_bytes(bodies[i].body, bodies[i].n);

        if (bodies[i].code)
            assert_fault(x, strcmp(bodies[i].code, "model_not_found") == 0 ? 404 : 400,
                         bodies[i].code, bodies[i].param);
        else if (x->started)
            fail_msg("%s: %.*s", bodies[i].body, (int)x->sent.n, x->sent.p);
        ask_done(&f, x);
    }
}

static void
a_body_cut_at_any_byte_is_refused(void **state)
{
    static const char body[] =
        "{\"model\":\"m\",\"prompt\":[\"a\\u00e9\",\"\xc3\xa9\"],\"stop\":[\"x\"],\"logit_bias\":"
        "{\"5\":-1.5e0},\"stream\":true,\"n\":2,\"unknown\":{\"a\":[null,false]}}";

    (void)state;
    for (size_t n = 0; n < sizeof body - 1; n++) {
        char *exact = malloc(n ? n : 1); /* so that a read beyond the end is seen */
        struct http_exchange *x;

        memcpy(exact, body, n);
        x = complete_bytes(exact, n);
        assert_fault(x, 400, "invalid_json", NULL);
        ask_done(&f, x);
        free(exact);
    }
    assert_int_equal(f.n_sent, 0);
}

static void
a_body_in_parts_of_any_length_has_the_same_result(void **state)
{
    static const char body[] =
        "{\"model\":\"m\",\"prompt\":[[1,2,3],[4,5]],\"stop\":[\"x\",\"\\n\"],\"unknown\":[1,{}],"
        "\"seed\":7,\"logit_bias\":{\"5\":-1.5}}";
    static const char chat[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":["
        "{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"text\",\"text\":\"c\"}]},{\"role\":"
        "\"user\","
        "\"content\":\"d\"}],\"max_tokens\":3}";
    struct http_exchange *x;

    (void)state;
    ask_done(&f, complete_bytes(body, sizeof body - 1));
    ask_done(&f, ask_bytes(&f, "/v1/chat/completions", NULL, chat, sizeof chat - 1));
    assert_int_equal(f.n_sent, 3);
    for (size_t most = 1; most < sizeof chat; most++) {
        uint32_t before = f.n_sent;

        f.api->read_bytes = most;
        x = complete_bytes(body, sizeof body - 1);
        assert_string_equal(ignored_of(x), "X-Lagan-Ignored: unknown\r\n");
        ask_done(&f, x);
        x = ask_bytes(&f, "/v1/chat/completions", NULL, chat, sizeof chat - 1);
        assert_true(x->n_reads >= sizeof chat / (most + 64));
        ask_done(&f, x);
        for (uint32_t i = 0; i < 3; i++)
            assert_string_equal(f.sent[before + i].text, f.sent[i].text);
    }
}

/* Appends s n times. */
static void
repeat(struct out *o, const char *s, int n)
{
    for (int i = 0; i < n; i++) out_put(o, s);
}

static void
deep_and_wide_bodies_are_limited(void **state)
{
    struct http_exchange *x;

    (void)state;
    for (int depth = 62; depth <= 64; depth++) { /* with the object of the body: 63 to 65 */
        CLEAN(out_free) struct out o = { 0 };

        out_put(&o, "{\"prompt\":\"a\",\"x\":");
        repeat(&o, "[", depth);
        repeat(&o, "]", depth);
        out_put(&o, "}");
        x = complete_bytes(o.p, o.n);
        if (depth == 64)
            assert_fault(x, 400, "invalid_json", NULL);
        else
            assert_false(x->started);
        ask_done(&f, x);
    }
    for (int kind = 0; kind < 4; kind++) {
        CLEAN(out_free) struct out o = { 0 };

        if (kind == 0) repeat(&o, "[", 1000000);
        out_put(&o, "{\"prompt\":\"a\"");
        if (kind == 1) out_put(&o, ",\"x\":{\"y\":1");
        for (int i = 0; (kind == 1 && i < 100000) || (kind == 2 && i < 200); i++)
            out_format(&o, ",\"k%d\":%d", i, i);
        if (kind == 1) out_put(&o, "}");
        if (kind == 3) {
            out_put(&o, ",\"");
            repeat(&o, "k", 1 << 20);
            out_put(&o, "\":1");
        }
        out_put(&o, "}");
        x = complete_bytes(o.p, o.n);
        if (kind == 1)
            assert_false(x->started);
        else
            assert_fault(x, 400, kind ? "invalid_json" : "invalid_type", NULL);
        ask_done(&f, x);
    }
}

static void
a_million_keys_are_refused(void **state)
{
    CLEAN(out_free) struct out o = { 0 };
    struct http_exchange *x;

    (void)state;
    out_put(&o, "{\"x\":[");
    for (int i = 0; i < 200000; i++) out_put(&o, i ? ",{\"a\":1}" : "{\"a\":1}");
    out_put(&o, "]}");
    x = complete_bytes(o.p, o.n);
    assert_fault(x, 400, "invalid_json", NULL);
    ask_done(&f, x);
}

static void
errors_repeat_at_most_64_bytes_of_the_input(void **state)
{
    CLEAN(out_free) struct out o = { 0 };
    struct http_exchange *x;

    (void)state;
    out_put(&o, "{\"prompt\":\"a\",\"n\":\"");
    repeat(&o, "q", 5000);
    out_put(&o, "\"}");
    x = complete_bytes(o.p, o.n);
    assert_fault(x, 400, "invalid_type", "n");
    assert_true(x->sent.n < 300);
    ask_done(&f, x);
    o.n = 0;
    out_put(&o, "{\"prompt\":\"a\",\"model\":\"");
    repeat(&o, "\xc3\xa9", 100);
    out_put(&o, "\"}");
    x = complete_bytes(o.p, o.n);
    assert_fault(x, 404, "model_not_found", "model");
    assert_true(x->sent.n < 300);
    ask_done(&f, x);
}

static void
the_ignored_line_is_short_and_clean(void **state)
{
    CLEAN(out_free) struct out o = { 0 };
    struct http_exchange *x;

    (void)state;
    out_put(&o, "{\"prompt\":\"a\",\"\\r\\nX: y\":1,\"\xc3\xa9\":1");
    for (int i = 0; i < 100; i++) out_format(&o, ",\"a_very_long_name_of_a_field_%d\":1", i);
    out_put(&o, "}");
    x = complete_bytes(o.p, o.n);
    assert_memory_equal(ignored_of(x),
                        "X-Lagan-Ignored: ??X??y, ??, a_very_long_name_of_a_field_0, a", 60);
    assert_true(strlen(ignored_of(x)) < 550);
    ask_done(&f, x);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        T(hostile_bodies_get_a_clear_error),
        T(a_body_cut_at_any_byte_is_refused),
        T(a_body_in_parts_of_any_length_has_the_same_result),
        T(deep_and_wide_bodies_are_limited),
        T(a_million_keys_are_refused),
        T(errors_repeat_at_most_64_bytes_of_the_input),
        T(the_ignored_line_is_short_and_clean),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
