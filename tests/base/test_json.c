#include "base/json.h"

#include "tests/test.h"

#include <stdio.h>

/* Reads a whole document from a buffer of exactly its size, so that a sanitizer detects an overrun.
 */
static int
walk_n(const char *text, size_t n, struct err *e)
{
    char *copy = malloc(n ? n : 1);
    struct json j;
    int r;

    assert_non_null(copy);
    memcpy(copy, text, n);
    json_open(&j, copy, n);
    do {
        r = json_next(&j, e);
        if (r == 0 && (j.kind == JSON_KEY || j.kind == JSON_STRING)) {
            char buf[256];
            int len = json_unescape(&j, buf, sizeof buf);

            assert_in_range(len, 0, sizeof buf - 1);
            assert_true(json_is(&j, buf) || memchr(buf, 0, (size_t)len));
        }
    } while (r == 0 && j.kind != JSON_END);
    free(copy);
    return r;
}

static int
walk(const char *text, struct err *e)
{
    return walk_n(text, strlen(text), e);
}

static void
documents_valid_by_rfc_8259_are_accepted(void **state)
{
    static const char *const good[] = { "null",
                                        "true",
                                        "false",
                                        "0",
                                        "-0",
                                        "-1",
                                        "10",
                                        "1.5",
                                        "1e1",
                                        "1E+2",
                                        "1e-2",
                                        "0.1e+00",
                                        "-123.456e78",
                                        "\"\"",
                                        "\" \"",
                                        "[]",
                                        "{}",
                                        " [ ] ",
                                        "\t\r\n{ }\n",
                                        "[1,2]",
                                        "[[],[[]],{}]",
                                        "{\"a\":1}",
                                        "{\"a\":1,\"a\":2}",
                                        "{\"\":{\"\":[null]}}",
                                        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]",
                                        "\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"",
                                        "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"",
                                        "\"\xef\xbf\xbf\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\"",
                                        "\"\\u0000\"",
                                        "[1 , 2\n,3]",
                                        "{ \"k\" : [ true , false ] , \"l\" : null }" };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct err e = { 0 };

        if (walk(good[i], &e) != 0) fail_msg("%s: %s", good[i], e.text);
    }
}

static void
documents_invalid_by_rfc_8259_are_rejected(void **state)
{
    static const char *const bad[] = { "",
                                       " ",
                                       "nul",
                                       "nulll",
                                       "True",
                                       "tru",
                                       "NaN",
                                       "Infinity",
                                       "-Infinity",
                                       "+1",
                                       "-",
                                       "01",
                                       "-01",
                                       "1.",
                                       ".5",
                                       "1.e1",
                                       "1e",
                                       "1e+",
                                       "0x10",
                                       "1_000",
                                       "1 2",
                                       "'a'",
                                       "\"",
                                       "\"a",
                                       "\"\\",
                                       "\"\\\"",
                                       "\"\\a\"",
                                       "\"\\x41\"",
                                       "\"\\u12\"",
                                       "\"\\u12g4\"",
                                       "\"\\U0041\"",
                                       "\"a\nb\"",
                                       "\"a\tb\"",
                                       "[",
                                       "]",
                                       "[1",
                                       "[1,",
                                       "[1,]",
                                       "[,1]",
                                       "[1 2]",
                                       "[1,,2]",
                                       "[1}",
                                       "{",
                                       "}",
                                       "{]",
                                       "{\"a\"",
                                       "{\"a\":",
                                       "{\"a\":1",
                                       "{\"a\":1,",
                                       "{\"a\":1,}",
                                       "{\"a\" 1}",
                                       "{a:1}",
                                       "{1:1}",
                                       "{'a':1}",
                                       "{\"a\":}",
                                       "{,\"a\":1}",
                                       "{\"a\":1 \"b\":2}",
                                       "{\"a\",1}",
                                       "{\"a\":1:2}",
                                       "[] []",
                                       "{}x",
                                       "1,",
                                       "//c\n1",
                                       "/*c*/1",
                                       "[1] // c",
                                       "\v1",
                                       "\f1",
                                       "\xc2\xa0"
                                       "1",
                                       "\xef\xbb\xbf"
                                       "1",
                                       "\"\\ud800\"",
                                       "\"\\udc00\"",
                                       "\"\\ud800\\u0041\"",
                                       "\"\\ud800x\"",
                                       "\"\\ud83d\\\"",
                                       "\"\\ud83d\\ud83d\"",
                                       "\"\\ude00\\ud83d\"" };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err e = { 0 };

        if (walk(bad[i], &e) != -EBADMSG) fail_msg("accepted: %s", bad[i]);
        assert_memory_equal(e.text, "line ", 5);
    }
    assert_int_equal(walk_n("1\0", 2, NULL), -EBADMSG);
    assert_int_equal(walk_n("\"a\0b\"", 5, NULL), -EBADMSG);
}

static void
malformed_utf8_is_rejected_at_any_position(void **state)
{
    static const char *const bad[] = {
        "\x80",         "\xbf",          "\xc0\x80",         "\xc1\xbf",         "\xc3",
        "\xc3(",        "\xe0\x80\x80",  "\xe0\x9f\xbf",     "\xe2\x82",         "\xe2(\xa1",
        "\xe2\x82(",    "\xed\xa0\x80",  "\xed\xbf\xbf",     "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf",
        "\xf0\x9f\x98", "\xf0\x9f\x98(", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xfe",
        "\xff"
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char text[64];

        snprintf(text, sizeof text, "\"%s\"", bad[i]);
        assert_int_equal(walk(text, NULL), -EBADMSG);
        snprintf(text, sizeof text, "\"%s", bad[i]);
        assert_int_equal(walk(text, NULL), -EBADMSG);
        snprintf(text, sizeof text, "{\"a%sb\":0}", bad[i]);
        assert_int_equal(walk(text, NULL), -EBADMSG);
        assert_int_equal(walk(bad[i], NULL), -EBADMSG);
    }
}

static void
every_truncation_of_a_document_is_rejected(void **state)
{
    static const char text[] =
        "{\"a\\n\":[1,-2.5e3,true,null,\"\\ud83d\\ude00\xc3\xa9\"],\"b\":{}}";

    (void)state;
    assert_int_equal(walk(text, NULL), 0);
    for (size_t n = 0; n < sizeof text - 1; n++) assert_int_equal(walk_n(text, n, NULL), -EBADMSG);
}

static void
depth_64_is_accepted_and_65_is_rejected(void **state)
{
    char text[2 * JSON_MAX_DEPTH + 3];
    struct err e;

    (void)state;
    for (size_t depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(walk_n(text, 2 * depth, &e), depth > JSON_MAX_DEPTH ? -EBADMSG : 0);
    }
    assert_string_equal(e.text, "line 1, column 65: more than 64 levels of nesting");
}

static void
errors_name_line_column_and_expected_token(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        { "{\n \"a\": 1,\n \"b\" 2}", "line 3, column 6: expected ':' after the key" },
        { "[1,\n2\n 3]", "line 3, column 2: expected ',' or ']'" },
        { "{\"a\":1]", "line 1, column 7: expected ',' or '}'" },
        { "[\"\xc3\xa9\xe2\x82\xac\", x]", "line 1, column 8: expected a value" },
        { "[1,]", "line 1, column 4: expected a value" },
        { "{\"a\":1,}", "line 1, column 8: expected a key in quotes" },
        { "[1", "line 1, column 3: the JSON text ends too early" },
        { "[\"ab\\q\"]", "line 1, column 5: invalid escape sequence in a string" },
        { "[\"ab\xff\"]", "line 1, column 5: a string is not valid UTF-8" },
        { "[\"ab\n\"]", "line 1, column 5: a string contains a control character" },
        { "[01]", "line 1, column 3: a number of several digits must not begin with 0" },
        { "[-x]", "line 1, column 3: expected a digit of a number" },
        { "1\r\n2", "line 2, column 1: there is text after the end of the document" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = { 0 };

        assert_int_equal(walk(cases[i].text, &e), -EBADMSG);
        assert_string_equal(e.text, cases[i].expected);
    }
}

static void
errors_and_end_of_document_repeat(void **state)
{
    struct json j;

    (void)state;
    json_open(&j, "[1 2]", 5);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_int_equal(json_next(&j, NULL), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(json_next(&j, NULL), -EBADMSG);

    json_open(&j, "1 ", 2);
    assert_int_equal(json_next(&j, NULL), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(json_next(&j, NULL), 0);
        assert_int_equal(j.kind, JSON_END);
    }
}

static void
events_follow_the_order_of_the_text(void **state)
{
    static const char text[] = "{\"k\":[1,\"s\",true,false,null,{}],\"l\":-2}";
    static const enum json_kind kinds[] = {
        JSON_OBJECT,    JSON_KEY,   JSON_ARRAY,  JSON_NUMBER,     JSON_STRING,
        JSON_TRUE,      JSON_FALSE, JSON_NULL,   JSON_OBJECT,     JSON_OBJECT_END,
        JSON_ARRAY_END, JSON_KEY,   JSON_NUMBER, JSON_OBJECT_END, JSON_END,
    };
    struct json j;

    (void)state;
    json_open(&j, text, sizeof text - 1);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        assert_int_equal(json_next(&j, NULL), 0);
        assert_int_equal(j.kind, kinds[i]);
        if (j.kind == JSON_KEY) assert_true(json_is(&j, i < 5 ? "k" : "l"));
        if (j.kind == JSON_STRING) assert_true(json_is(&j, "s"));
    }
}

static void
skip_consumes_exactly_one_value(void **state)
{
    static const char text[] = "[{\"a\":[1,{\"b\":2}]},3,{\"c\":[[]],\"d\":4}]";
    struct json j;
    uint64_t n;

    (void)state;
    json_open(&j, text, sizeof text - 1);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_int_equal(json_next(&j, NULL), 0); /* the first object */
    assert_int_equal(json_skip(&j, NULL), 0);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_int_equal(json_skip(&j, NULL), 0); /* a scalar: stays */
    assert_int_equal(json_u64(&j, &n), 0);
    assert_int_equal(n, 3);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_true(json_is(&j, "c"));
    assert_int_equal(json_skip(&j, NULL), 0); /* the value of the key */
    assert_int_equal(json_next(&j, NULL), 0);
    assert_true(json_is(&j, "d"));
    assert_int_equal(json_skip(&j, NULL), 0);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_int_equal(j.kind, JSON_OBJECT_END);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_int_equal(j.kind, JSON_ARRAY_END);

    json_open(&j, "[[1,2", 5);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_int_equal(json_skip(&j, NULL), -EBADMSG);
}

static void
unescaped_strings_are_utf8_and_fit_the_buffer(void **state)
{
    static const char text[] = "\"a\\u0000\\n\\u00e9\\u20ac\\ud83d\\ude00\xc3\xa9\\/\"";
    static const char want[] = "a\0\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa9/";
    struct json j;

    (void)state;
    json_open(&j, text, sizeof text - 1);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_true(j.escaped);
    for (size_t capacity = 0; capacity <= sizeof want; capacity++) {
        char *buf = malloc(capacity ? capacity : 1); /* exactly the stated size */
        int n = json_unescape(&j, buf, capacity);

        assert_int_equal(n, capacity < sizeof want ? -EMSGSIZE : (int)sizeof want - 1);
        if (n >= 0) assert_memory_equal(buf, want, sizeof want);
        free(buf);
    }
}

static void
strings_are_compared_after_unescaping(void **state)
{
    struct json j;

    (void)state;
    json_open(&j, "\"\\u0061b\\t\\u20ac\"", 17);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_true(json_is(&j, "ab\t\xe2\x82\xac"));
    assert_false(json_is(&j, "ab\t"));
    assert_false(json_is(&j, "ab\t\xe2\x82\xac"
                             "c"));
    assert_false(json_is(&j, "\\u0061b\\t\\u20ac"));

    json_open(&j, "\"a\\u0000\"", 9);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_false(json_is(&j, "a"));

    json_open(&j, "\"ab\"", 4);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_true(json_is(&j, "ab"));
    assert_false(json_is(&j, "a"));
    assert_false(json_is(&j, "abc"));
}

static void
integers_are_exact_up_to_64_bits(void **state)
{
    static const struct {
        const char *text;
        int r;
        uint64_t v;
    } cases[] = {
        { "0", 0, 0 },
        { "42", 0, 42 },
        { "18446744073709551615", 0, UINT64_MAX },
        { "18446744073709551616", -ERANGE, 0 },
        { "99999999999999999999999", -ERANGE, 0 },
        { "-1", -ERANGE, 0 },
        { "1.0", -EINVAL, 0 },
        { "-1.5", -EINVAL, 0 },
        { "1e3", -EINVAL, 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t v = 7;
        struct json j;

        json_open(&j, cases[i].text, strlen(cases[i].text));
        assert_int_equal(json_next(&j, NULL), 0);
        assert_int_equal(json_u64(&j, &v), cases[i].r);
        assert_true(v == (cases[i].r ? 7 : cases[i].v));
    }
}

static void
doubles_are_rounded_to_nearest_and_infinity_is_rejected(void **state)
{
    char many[600];
    struct json j;
    double v = 7;

    (void)state;
    json_open(&j, "[0.1,-2.5e-3,1e308,5e-324,1e-999,1e309]", 39);
    assert_int_equal(json_next(&j, NULL), 0);
    for (int i = 0; i < 6; i++) {
        static const double want[] = { 0.1, -2.5e-3, 1e308, 5e-324, 0.0, 0.0 };

        assert_int_equal(json_next(&j, NULL), 0);
        assert_int_equal(json_f64(&j, &v), i < 5 ? 0 : -ERANGE);
        assert_true(v == want[i]);
    }
    memset(many, '1', sizeof many);
    json_open(&j, many, sizeof many);
    assert_int_equal(json_next(&j, NULL), 0);
    assert_int_equal(json_f64(&j, &v), -ERANGE);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_valid_by_rfc_8259_are_accepted),
        cmocka_unit_test(documents_invalid_by_rfc_8259_are_rejected),
        cmocka_unit_test(malformed_utf8_is_rejected_at_any_position),
        cmocka_unit_test(every_truncation_of_a_document_is_rejected),
        cmocka_unit_test(depth_64_is_accepted_and_65_is_rejected),
        cmocka_unit_test(errors_name_line_column_and_expected_token),
        cmocka_unit_test(errors_and_end_of_document_repeat),
        cmocka_unit_test(events_follow_the_order_of_the_text),
        cmocka_unit_test(skip_consumes_exactly_one_value),
        cmocka_unit_test(unescaped_strings_are_utf8_and_fit_the_buffer),
        cmocka_unit_test(strings_are_compared_after_unescaping),
        cmocka_unit_test(integers_are_exact_up_to_64_bits),
        cmocka_unit_test(doubles_are_rounded_to_nearest_and_infinity_is_rejected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
