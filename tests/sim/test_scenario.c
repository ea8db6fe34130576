/* test_scenario.c - scenario files: errors name the line, and differences are printed. */
#include "sim/scenario.h"

#include "tests/test.h"

static char *shown; /* what script_run() printed */

/* Runs a scenario; `shown` and e get its output. */
static int
act(const char *text, struct err *e)
{
    struct script *s = NULL;
    size_t n;
    FILE *out;
    int r;

    free(shown);
    out = open_memstream(&shown, &n);
    e->text[0] = 0;
    r = script_parse(&s, "a.txt", text, strlen(text), e);
    if (r >= 0) r = script_run(s, out, e);
    script_free(s);
    fclose(out);
    return r;
}

static void
scenario_with_the_expected_output_prints_nothing(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(act("group full max 10   # blocks of 10 tokens\n"
                         "limits seqs 2 len 90\n"
                         "request r0..r1 prompt 10 new 80\n"
                         "run\n"
                         "| 0..79 r0\n"
                         "  |   80..159 r1\n"
                         "| 160 idle\n",
                         &e),
                     0);
    assert_string_equal(shown, "");
}

static void
differences_are_printed_line_by_line(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(act("group full\n"
                         "request r0 prompt 3 new 2\n"
                         "run\n"
                         "| 0..1 r0\n"
                         "| 2 tired\n"
                         "show r0\n"
                         "| r0 length, 0 cached\n",
                         &e),
                     1);
    assert_string_equal(shown, "a.txt:3: run    (- expected, + printed)\n"
                               "      0..1 r0\n"
                               "    - 2 tired\n"
                               "    + 2 idle\n");
}

static void
command_without_expected_lines_prints_nothing_or_fails(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(act("group full\nrequest r0 prompt 3\nrun\n", &e), 1);
    assert_non_null(strstr(shown, "+ 0 r0"));
}

static void
error_names_the_line_and_the_valid_form(void **state)
{
    static const struct {
        const char *text, *says;
    } row[] = {
        { "group full\n\nfly r0\n", "a.txt:3: unknown command fly" },
        { "group round\n", "a.txt:1: unknown group kind round" },
        { "group window\n", "a.txt:1: a window group needs window TOKENS" },
        { "limits seqs\n", "a.txt:1: seqs has no value" },
        { "limits seqs many\n", "a.txt:1: seqs" },
        { "limits sets 3\n", "a.txt:1: " },
        { "lane sleep\n", "a.txt:1: unknown lane work sleep" },
        { "| 0 idle\n", "a.txt:1: an expected line must follow a command" },
        { "cache block 10\n| x\n", "a.txt:1: a setting has no output" },
        { "group full\nrequest r0 prompt 3\nrequest r0 prompt 3\n",
          "a.txt:3: request r0 exists already" },
        { "group full\nshow r7\n", "a.txt:2: unknown request r7" },
        { "group full\nrequest\n", "a.txt:2: request needs names" },
        { "group full\nrequest r0 tokens 1..x\n", "a.txt:2: invalid tokens 1..x" },
        { "group full\nrequest r0 prompt 3\ngroup full\n", "a.txt:3: settings must precede" },
        { "group full\n", "a.txt: contains no command" },
        { "group full\nopen\ngroup full\n", "a.txt:3: settings must precede" },
        { "group full\nopen\nopen\n", "a.txt:3: open has no operands and must precede" },
        { "group full\nrun \001\n", "a.txt:2: byte 0x01 is not allowed" },
        { "group full\nadd r0 tokens 0..3\nused\n", "a.txt:3: scheduler and KV manager commands" },
        { "group full\ngrow r0 1\n", "a.txt:2: sequence r0 is not admitted" },
        { "limits policy none\n", "a.txt:1: policy" },
        { "cache arena 256\ngroup full\nrequest r0 prompt 3\n", "a.txt:3: " },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct err e;

        assert_true(act(row[i].text, &e) < 0);
        if (strncmp(e.text, row[i].says, strlen(row[i].says)) != 0)
            fail_msg("%s\nnot: %s", e.text, row[i].says);
    }
}

static void
names_and_numbers_are_lists_and_ranges(void **state)
{
    static const int64_t want[] = { 0, 1, 2, 9, 5, 5, 5, -2 };
    uint32_t first, last;
    int64_t got[8];
    char name[16];

    (void)state;
    assert_int_equal(script_numbers("0..2,9,5*3,-2", got, 8), 8);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(script_numbers("0..2,9,5*3,-2", got, 7), -EMSGSIZE);
    assert_int_equal(script_numbers("0..", got, 8), -EINVAL);
    assert_int_equal(script_numbers("3..2", got, 8), -EINVAL);
    assert_int_equal(script_numbers("1,", got, 8), -EINVAL);
    assert_int_equal(script_numbers("999999999*999999999", got, 8), -EMSGSIZE);
    assert_true(script_names("r0..r3", name, &first, &last));
    assert_int_equal(first, 0);
    assert_int_equal(last, 3);
    assert_false(script_names("r0..q3", name, &first, &last));
    assert_false(script_names("r3..r0", name, &first, &last));
    assert_false(script_names("r", name, &first, &last));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scenario_with_the_expected_output_prints_nothing),
        cmocka_unit_test(differences_are_printed_line_by_line),
        cmocka_unit_test(command_without_expected_lines_prints_nothing_or_fails),
        cmocka_unit_test(error_names_the_line_and_the_valid_form),
        cmocka_unit_test(names_and_numbers_are_lists_and_ranges),
    };
    int r = cmocka_run_group_tests(tests, NULL, NULL);

    free(shown);
    return r;
}
