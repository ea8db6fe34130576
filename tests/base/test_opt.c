/* test_opt.c - tests of base/opt.h: parsing, printing and error sentences of every type. */
#include "tests/test.h"

#include "base/clock.h"
#include "base/opt.h"

#include <math.h>

struct settings {
    bool quiet;
    uint32_t seqs, block;
    uint64_t big, memory;
    double ratio;
    nsec stall;
    uint32_t mode;
    char name[8], set[32];
    int32_t level;
};

#define AT(field) OPT_AT(settings, field)
/* clang-format off */
static const struct opt table[] = {
    { "quiet", OPT_BOOL, AT(quiet), "false", NULL, 0, 0, 0, NULL, "say less" },
    { "max_seqs", OPT_U32, AT(seqs), "256", NULL, 1, 1024, 0, "N", "sequences at once" },
    { "kv.block", OPT_U32, AT(block), "auto", NULL, 4, 128, OPT_AUTO | OPT_POW2 | OPT_RESTART, "N",
      "tokens in a block, a sentence that is long enough to be broken in two lines of help" },
    { "big", OPT_U64, AT(big), "0", NULL, 0, 0, 0, "N", "a large number" },
    { "kv.memory", OPT_BYTES, AT(memory), "auto", NULL, 1024, 0, OPT_AUTO, "SIZE", "memory" },
    { "ratio", OPT_F64, AT(ratio), "0.5", NULL, 0, 1, 0, "X", "a share" },
    { "stall", OPT_NSEC, AT(stall), "3s", NULL, 1e6, 60e9, 0, "TIME", "how long is too long" },
    { "split.mode", OPT_ENUM, AT(mode), "auto", "off|auto|fixed", 0, 0, 0, NULL, "how to split" },
    { "name", OPT_STR, AT(name), "lagan", NULL, 0, 0, 0, "NAME", ".name\\it" },
    { "set", OPT_STR, AT(set), "", NULL, 0, 0, OPT_REPEAT, "KEY=VALUE", "settings" },
    { "level", OPT_I32, AT(level), "-1", NULL, 0, 0, 0, "N", "a number of either sign" },
    { "hidden", OPT_BOOL, AT(quiet), NULL, NULL, 0, 0, OPT_HIDDEN, NULL, "not shown" },
    { NULL },
};
/* clang-format on */

static struct settings s;
static uint64_t given;
static struct err e;

static int
setup(void **state)
{
    (void)state;
    memset(&s, 0xa5, sizeof s);
    opt_defaults(table, &s);
    e = (struct err){ 0 };
    given = 0;
    return 0;
}

static int
set(const char *key, const char *value)
{
    return opt_set(table, &s, key, value, "lagan.yaml:12", &e);
}

static void
defaults_fill_every_field(void **state)
{
    (void)state;
    assert_false(s.quiet);
    assert_int_equal(s.seqs, 256);
    assert_int_equal(s.block, 0);
    assert_int_equal(s.big, 0);
    assert_int_equal(s.memory, 0);
    assert_true(s.ratio == 0.5);
    assert_int_equal(s.stall, 3 * NSEC_S);
    assert_int_equal(s.mode, 1);
    assert_string_equal(s.name, "lagan");
    assert_string_equal(s.set, "");
    assert_int_equal(s.level, -1);
}

static void
booleans_accept_true_yes_1_and_opposites(void **state)
{
    static const char *const yes[] = { "true", "yes", "1" }, *const no[] = { "false", "no", "0" };

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(set("quiet", yes[i]), 0);
        assert_true(s.quiet);
        assert_int_equal(set("quiet", no[i]), 0);
        assert_false(s.quiet);
    }
    assert_int_equal(set("quiet", "on"), -EINVAL);
    assert_string_equal(e.text, "lagan.yaml:12: quiet: \"on\" is not true or false");
}

static void
unsigned_numbers_accept_digits_only(void **state)
{
    static const char *const bad[] = { "",    "-1",  "+1",  " 1",         "1 ",
                                       "0x1", "1e3", "1.0", "4294967296", "99999999999999999999" };

    (void)state;
    assert_int_equal(set("max_seqs", "7"), 0);
    assert_int_equal(s.seqs, 7);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(set("max_seqs", bad[i]), -EINVAL);
        assert_int_equal(s.seqs, 7);
    }
    assert_int_equal(set("big", "18446744073709551615"), 0);
    assert_true(s.big == UINT64_MAX);
    assert_int_equal(set("big", "18446744073709551616"), -EINVAL);
}

static void
signed_numbers_cover_their_whole_type(void **state)
{
    (void)state;
    assert_int_equal(set("level", "-2147483648"), 0);
    assert_int_equal(s.level, INT32_MIN);
    assert_int_equal(set("level", "2147483647"), 0);
    assert_int_equal(s.level, INT32_MAX);
    assert_int_equal(set("level", "2147483648"), -EINVAL);
    assert_int_equal(set("level", "-2147483649"), -EINVAL);
    assert_int_equal(set("level", "--1"), -EINVAL);
    assert_int_equal(set("level", "-"), -EINVAL);
    assert_int_equal(s.level, INT32_MAX);
}

static void
out_of_range_error_names_the_range(void **state)
{
    (void)state;
    assert_int_equal(set("max_seqs", "0"), -EINVAL);
    assert_string_equal(
        e.text, "lagan.yaml:12: max_seqs: 0 is out of range; the value must be from 1 to 1024");
    assert_int_equal(set("max_seqs", "1025"), -EINVAL);
    assert_int_equal(set("max_seqs", "1024"), 0);
    assert_int_equal(set("kv.memory", "1023"), -EINVAL);
    assert_non_null(strstr(e.text, "at least 1KiB, or auto"));
    assert_int_equal(set("ratio", "1.01"), -EINVAL);
    assert_int_equal(set("stall", "2min"), -EINVAL);
    assert_non_null(strstr(e.text, "from 1ms to 1min"));
}

static void
zero_is_not_auto_where_min_is_above_0(void **state)
{
    (void)state;
    assert_int_equal(set("kv.block", "16"), 0);
    assert_int_equal(set("kv.block", "auto"), 0);
    assert_int_equal(s.block, 0);
    assert_int_equal(set("kv.block", "0"), -EINVAL);
    assert_non_null(strstr(e.text, "kv.block: 0 is out of range"));
    assert_int_equal(set("kv.memory", "0"), -EINVAL);
    assert_int_equal(set("max_seqs", "auto"), -EINVAL);
}

static void
power_of_two_error_names_the_requirement(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < 300; i++) {
        char text[8];
        bool ok = i == 4 || i == 8 || i == 16 || i == 32 || i == 64 || i == 128;

        snprintf(text, sizeof text, "%u", i);
        assert_int_equal(set("kv.block", text), ok ? 0 : -EINVAL);
    }
    assert_non_null(strstr(e.text, "a power of two from 4 to 128, or auto"));
}

static void
sizes_accept_binary_and_decimal_units_and_fractions(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        { "2048", 2048 },
        { "2048B", 2048 },
        { "64KiB", 65536 },
        { "1.5GiB", 1610612736 },
        { "64MB", 64000000 },
        { "2kB", 2000 },
        { "1TiB", UINT64_C(1) << 40 },
        { "0.5MiB", 524288 },
        { "16777215TiB", UINT64_C(16777215) << 40 },
    };
    static const char *const bad[] = { "",         "GiB", "1XB",         "1 GiB", "1gib",   "-1GiB",
                                       "1.2.3GiB", "1e3", "16777216TiB", ".",     "9e99GiB" };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        assert_int_equal(set("kv.memory", good[i].text), 0);
        assert_true(s.memory == good[i].bytes);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) assert_int_equal(set("kv.memory", bad[i]), -EINVAL);
    assert_int_equal(set("kv.memory", "12XB"), -EINVAL);
    assert_string_equal(e.text, "lagan.yaml:12: kv.memory: \"12XB\" is not a size such as 512, "
                                "64KiB or 1.5GiB, or auto");
}

static void
times_need_a_unit(void **state)
{
    (void)state;
    assert_int_equal(set("stall", "250ms"), 0);
    assert_int_equal(s.stall, 250 * NSEC_MS);
    assert_int_equal(set("stall", "1.5s"), 0);
    assert_int_equal(s.stall, 1500 * NSEC_MS);
    assert_int_equal(set("stall", "1min"), 0);
    assert_int_equal(s.stall, 60 * NSEC_S);
    assert_int_equal(set("stall", "3"), -EINVAL);
    assert_string_equal(e.text,
                        "lagan.yaml:12: stall: \"3\" is not a time such as 250ms, 3s or 10min");
}

static void
fractions_are_finite_and_decimal(void **state)
{
    static const char *const bad[] = { "", "nan", "inf", "0x1", "1x", "1e999", " 1" };

    (void)state;
    assert_int_equal(set("ratio", "0.25"), 0);
    assert_true(s.ratio == 0.25);
    assert_int_equal(set("ratio", "1e-3"), 0);
    assert_true(s.ratio == 1e-3);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) assert_int_equal(set("ratio", bad[i]), -EINVAL);
}

static void
enum_value_is_the_index_of_the_choice(void **state)
{
    (void)state;
    assert_int_equal(set("split.mode", "off"), 0);
    assert_int_equal(s.mode, 0);
    assert_int_equal(set("split.mode", "fixed"), 0);
    assert_int_equal(s.mode, 2);
    assert_int_equal(set("split.mode", "fix"), -EINVAL);
    assert_string_equal(e.text, "lagan.yaml:12: split.mode: \"fix\" is not one of off|auto|fixed");
    assert_int_equal(set("split.mode", ""), -EINVAL);
    assert_int_equal(set("split.mode", "off|auto"), -EINVAL);
    assert_int_equal(s.mode, 2);
}

static void
string_that_does_not_fit_is_rejected(void **state)
{
    (void)state;
    assert_int_equal(set("name", "seven77"), 0);
    assert_int_equal(set("name", "eight888"), -EINVAL);
    assert_string_equal(s.name, "seven77");
    assert_string_equal(e.text, "lagan.yaml:12: name: the value has 8 bytes, the maximum is 7");
}

static void
repeated_option_joins_its_values(void **state)
{
    (void)state;
    assert_int_equal(set("set", "a=1"), 0);
    assert_int_equal(set("set", "b=2"), 0);
    assert_string_equal(s.set, "a=1\nb=2");
    assert_int_equal(set("set", "0123456789012345678901234"), -EINVAL);
    assert_string_equal(s.set, "a=1\nb=2");
}

static void
unknown_key_error_suggests_a_similar_key(void **state)
{
    (void)state;
    assert_int_equal(set("kv.memroy", "1"), -ENOENT);
    assert_string_equal(e.text,
                        "lagan.yaml:12: unknown key \"kv.memroy\"; did you mean kv.memory?");
    assert_int_equal(set("zzzzzzzzzz", "1"), -ENOENT);
    assert_string_equal(e.text, "lagan.yaml:12: unknown key \"zzzzzzzzzz\"");
    assert_int_equal(set("hiddn", "1"), -ENOENT);
    assert_null(strstr(e.text, "hidden"));
}

static void
command_line_accepts_values_flags_and_dashes(void **state)
{
    char a0[] = "lagand", a1[] = "--max-seqs=8", a2[] = "--kv.memory", a3[] = "2KiB",
         a4[] = "--quiet", a5[] = "model", a6[] = "--level=3";
    char *argv[] = { a0, a1, a2, a3, a4, a5, a6 };
    int at = 1;

    (void)state;
    assert_int_equal(opt_argv(table, &s, &given, 7, argv, &at, &e), 0);
    assert_int_equal(at, 5);
    assert_int_equal(s.seqs, 8);
    assert_int_equal(s.memory, 2048);
    assert_true(s.quiet);
    assert_int_equal(s.level, -1);
}

static void
two_dashes_end_the_options(void **state)
{
    char a0[] = "lagand", a1[] = "--quiet=no", a2[] = "--", a3[] = "--quiet";
    char *argv[] = { a0, a1, a2, a3 };
    int at = 1;

    (void)state;
    assert_int_equal(opt_argv(table, &s, &given, 4, argv, &at, &e), 0);
    assert_int_equal(at, 3);
    assert_false(s.quiet);
}

static void
command_line_errors_name_option_and_value(void **state)
{
    static const struct {
        const char *arg;
        int code;
        const char *text;
    } bad[] = {
        { "--max-seqs", -EINVAL,
          "command line: --max_seqs needs a value: a whole number of 0 or more" },
        { "--max-seq=1", -ENOENT, "command line: unknown key \"max_seq\"; did you mean max_seqs?" },
        { "--max-seqs=x", -EINVAL,
          "command line: max_seqs: \"x\" is not a whole number of 0 or more" },
        { "--0123456789012345678901234567890123456789012345678901234567890123456789", -ENOENT,
          "command line: unknown key "
          "\"012345678901234567890123456789012345678901234567890123456789\"" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char a0[] = "lagand", *a1 = strdup(bad[i].arg), *argv[] = { a0, a1 };
        int at = 1;

        assert_int_equal(opt_argv(table, &s, &given, 2, argv, &at, &e), bad[i].code);
        assert_string_equal(e.text, bad[i].text);
        free(a1);
    }
}

static void
bare_option_takes_only_a_value_after_an_equals_sign(void **state)
{
    static const struct opt bare[] = {
        { "wait", OPT_U32, AT(seqs), "7", NULL, 0, 600, OPT_BARE, "SECONDS", "how long to wait" },
        { "quiet", OPT_BOOL, AT(quiet), "false", NULL, 0, 0, 0, NULL, "say less" },
        { NULL },
    };
    char option[] = "--wait", five[] = "5", with_value[] = "--wait=5";
    char *argv[] = { option, five }, *with[] = { with_value, five };
    int at = 0;

    (void)state;
    assert_int_equal(opt_argv(bare, &s, &given, 2, argv, &at, &e), 0);
    assert_int_equal(s.seqs, 0);
    assert_int_equal(at, 1); /* 5 is an operand */
    at = 0;
    given = 0;
    assert_int_equal(opt_argv(bare, &s, &given, 2, with, &at, &e), 0);
    assert_int_equal(s.seqs, 5);
}

static void
option_without_repeat_rejects_a_second_value(void **state)
{
    static const struct {
        const char *key, *first, *same, *other;
    } v[] = {
        { "quiet", "true", "yes", "no" },
        { "max_seqs", "256", "256", "8" }, /* the default */
        { "big", "4000000000", "4000000000", "4000000001" },
        { "kv.memory", "1MiB", "1024KiB", "auto" },
        { "ratio", "0.5", ".50", "0.25" },
        { "stall", "2s", "2000ms", "3s" },
        { "split.mode", "fixed", "fixed", "off" },
        { "name", "a", "a", "ab" },
        { "level", "-1", "-1", "1" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char was[32], is[32];
        const struct opt *o = opt_find(table, v[i].key, strlen(v[i].key));

        assert_int_equal(opt_give(table, &s, &given, v[i].key, v[i].first, &e), 0);
        opt_text(o, &s, was, sizeof was);
        assert_int_equal(opt_give(table, &s, &given, v[i].key, v[i].same, &e), 0);
        assert_int_equal(opt_give(table, &s, &given, v[i].key, v[i].other, &e), -EINVAL);
        assert_non_null(strstr(e.text, "it takes one value"));
        assert_string_equal(opt_text(o, &s, is, sizeof is), was);
    }
    assert_string_equal(e.text,
                        "command line: level is given as \"-1\" and as \"1\"; it takes one value");
    assert_int_equal(opt_give(table, &s, &given, "level", "x", &e), -EINVAL);
    assert_non_null(strstr(e.text, "\"x\" is not a whole number"));
    assert_int_equal(opt_give(table, &s, &given, "levle", "1", &e), -ENOENT);
    assert_int_equal(opt_give(table, &s, &given, "set", "a=1", &e), 0);
    assert_int_equal(opt_give(table, &s, &given, "set", "a=2", &e), 0);
    assert_string_equal(s.set, "a=1\na=2");
}

static void
printed_values_parse_to_the_same_value(void **state)
{
    static const struct {
        const char *key, *in, *out;
    } v[] = {
        { "quiet", "yes", "true" },
        { "max_seqs", "0012", "12" },
        { "kv.block", "auto", "auto" },
        { "kv.block", "64", "64" },
        { "kv.memory", "65536", "64KiB" },
        { "kv.memory", "1.5GiB", "1536MiB" },
        { "kv.memory", "64MB", "62500KiB" },
        { "kv.memory", "1025", "1025" },
        { "kv.memory", "auto", "auto" },
        { "ratio", "0.1", "0.1" },
        { "ratio", "0", "0" },
        { "stall", "60000ms", "1min" },
        { "stall", "1500ms", "1500ms" },
        { "split.mode", "fixed", "fixed" },
        { "name", "x y", "x y" },
        { "level", "-7", "-7" },
        { "big", "18446744073709551615", "18446744073709551615" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct settings first;
        const struct opt *o = opt_find(table, v[i].key, strlen(v[i].key));
        char text[64];

        setup(NULL);
        assert_int_equal(set(v[i].key, v[i].in), 0);
        assert_string_equal(opt_text(o, &s, text, sizeof text), v[i].out);
        first = s;
        assert_int_equal(set(v[i].key, text), 0);
        assert_memory_equal(&first, &s, sizeof s);
    }
}

/* The output of a printer. */
static const char *
printed(void (*print)(const struct opt *, enum opt_form, FILE *), enum opt_form form)
{
    static char text[8192];
    FILE *f = fmemopen(text, sizeof text, "w");

    assert_non_null(f);
    print(table, form, f);
    fclose(f);
    return text;
}

static void
help_is_aligned_within_80_columns(void **state)
{
    const char *text = printed(opt_help, OPT_TYPED);

    (void)state;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");

        assert_true(n < 80);
        p += n + 1;
    }
    assert_non_null(strstr(text, "  --max-seqs N                sequences at once [256]\n"));
    assert_non_null(strstr(
        text, "  --kv.block N                tokens in a block, a sentence that is long enough\n"
              "                              to be broken in two lines of help [auto]\n"));
    assert_non_null(strstr(text, "  --split.mode off|auto|fixed\n"
                                 "                              how to split [auto]\n"));
    assert_non_null(strstr(text, "  --quiet                     say less\n"));
    assert_null(strstr(text, "hidden"));
    text = printed(opt_help, OPT_KEYS);
    assert_non_null(strstr(text, "  max_seqs N                  sequences at once [256]\n"));
}

static void
manual_has_type_range_and_default(void **state)
{
    const char *text = printed(opt_manual, OPT_KEYS);

    (void)state;
    assert_non_null(strstr(text, ".It Cm kv.block Ar N\n"));
    assert_non_null(strstr(text, "The value is a whole number, a power of two from 4 "
                                 "to 128, or auto; the default is auto.\n"
                                 "A change needs a restart of the worker.\n"));
    assert_non_null(strstr(text,
                           ".It Cm stall Ar TIME\nhow long is too long.\nThe value is a time such "
                           "as 250ms, 3s or 10min, from 1ms to 1min; the default is 3s.\n"));
    assert_non_null(strstr(text, ".It Cm name Ar NAME\n\\&.name\\eit.\nThe default is lagan.\n"));
    assert_non_null(strstr(text, ".It Cm quiet\nsay less.\n"
                                 "The value is true or false; the default is false.\n"));
    assert_non_null(strstr(text, "the default is \\-1.\n"));
    assert_null(strstr(text, "hidden"));
    assert_memory_equal(text, ".Bl -tag -width Ds\n", 19);
    assert_string_equal(text + strlen(text) - 4, ".El\n");
}

static void
manual_of_a_command_line_has_dashes_and_flags(void **state)
{
    const char *text = printed(opt_manual, OPT_TYPED);

    (void)state;
    assert_non_null(strstr(text, ".It Cm \\-\\-max\\-seqs Ar N\nsequences at once.\n"));
    assert_non_null(strstr(text, ".It Cm \\-\\-quiet\nsay less.\n.It "));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(defaults_fill_every_field, setup),
        cmocka_unit_test_setup(booleans_accept_true_yes_1_and_opposites, setup),
        cmocka_unit_test_setup(unsigned_numbers_accept_digits_only, setup),
        cmocka_unit_test_setup(signed_numbers_cover_their_whole_type, setup),
        cmocka_unit_test_setup(out_of_range_error_names_the_range, setup),
        cmocka_unit_test_setup(zero_is_not_auto_where_min_is_above_0, setup),
        cmocka_unit_test_setup(power_of_two_error_names_the_requirement, setup),
        cmocka_unit_test_setup(sizes_accept_binary_and_decimal_units_and_fractions, setup),
        cmocka_unit_test_setup(times_need_a_unit, setup),
        cmocka_unit_test_setup(fractions_are_finite_and_decimal, setup),
        cmocka_unit_test_setup(enum_value_is_the_index_of_the_choice, setup),
        cmocka_unit_test_setup(string_that_does_not_fit_is_rejected, setup),
        cmocka_unit_test_setup(repeated_option_joins_its_values, setup),
        cmocka_unit_test_setup(unknown_key_error_suggests_a_similar_key, setup),
        cmocka_unit_test_setup(command_line_accepts_values_flags_and_dashes, setup),
        cmocka_unit_test_setup(two_dashes_end_the_options, setup),
        cmocka_unit_test_setup(command_line_errors_name_option_and_value, setup),
        cmocka_unit_test_setup(bare_option_takes_only_a_value_after_an_equals_sign, setup),
        cmocka_unit_test_setup(option_without_repeat_rejects_a_second_value, setup),
        cmocka_unit_test_setup(printed_values_parse_to_the_same_value, setup),
        cmocka_unit_test_setup(help_is_aligned_within_80_columns, setup),
        cmocka_unit_test_setup(manual_has_type_range_and_default, setup),
        cmocka_unit_test_setup(manual_of_a_command_line_has_dashes_and_flags, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
