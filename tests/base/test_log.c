/* test_log.c - where a message goes and what it looks like there. */
#include "tests/test.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

int sd_journal_sendv(const struct iovec *v, int n);

static char journal[4096]; /* what the journal was sent: field by field, a line each */

/* In the place of libsystemd's: what would go to the journal is looked at. */
int
sd_journal_sendv(const struct iovec *v, int n)
{
    size_t used = 0;

    for (int i = 0; i < n; i++) {
        used += (size_t)snprintf(journal + used, sizeof journal - used, "%.*s\n", (int)v[i].iov_len,
                                 (const char *)v[i].iov_base);
    }
    return 0;
}

static FILE *file;
static int saved;

/* Standard error is a fresh file until seen() gives it back. */
static void
look(void)
{
    fflush(stderr);
    saved = dup(STDERR_FILENO);
    file = tmpfile();
    assert_non_null(file);
    dup2(fileno(file), STDERR_FILENO);
    *journal = 0;
}

static const char *
seen(void)
{
    static char text[8192];
    size_t n;

    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    n = fread(text, 1, sizeof text - 1, file);
    text[n] = 0;
    fclose(file);
    return text;
}

static void
a_line_is_priority_subject_and_text(void **state)
{
    (void)state;
    look();
    log_open("worker w0", LOG_LEVEL_DEBUG);
    log_err("no %s", "memory");
    log_warn("slow");
    log_info("ready in %d s", 14);
    log_debug("x");
    assert_string_equal(seen(), "<3>worker w0: no memory\n<4>worker w0: slow\n"
                                "<6>worker w0: ready in 14 s\n<7>worker w0: x\n");
}

static void
what_is_above_the_level_is_not_written(void **state)
{
    (void)state;
    look();
    log_open("lagand", LOG_LEVEL_INFO);
    log_debug("hidden");
    log_level_set(LOG_LEVEL_ERR);
    log_warn("hidden");
    log_info("hidden");
    log_level_set(LOG_LEVEL_DEBUG);
    log_debug("shown");
    assert_string_equal(seen(), "<7>lagand: shown\n");
}

static void
control_bytes_cannot_make_a_second_line(void **state)
{
    (void)state;
    look();
    log_open("lagand", LOG_LEVEL_INFO);
    log_info("a\n<2>forged: b\r\t\x1b[31m\x7f");
    assert_string_equal(seen(), "<6>lagand: a <2>forged: b   [31m \n");
}

static void
a_text_too_long_is_cut_and_still_one_line(void **state)
{
    static char x[5000];
    const char *got;

    (void)state;
    memset(x, 'x', sizeof x - 1);
    look();
    log_open("lagand", LOG_LEVEL_INFO);
    log_info("%s", x);
    got = seen();
    assert_true(strlen(got) > 1000 && strlen(got) < 3000);
    assert_ptr_equal(strchr(got, '\n'), got + strlen(got) - 1);
}

static void
a_long_subject_is_cut(void **state)
{
    (void)state;
    look();
    log_open("a subject of more than thirty-one bytes", LOG_LEVEL_INFO);
    log_info("x");
    assert_string_equal(seen(), "<6>a subject of more than thirty-o: x\n");
}

static void
journal_stream(int off)
{
    char text[64];
    struct stat st;

    assert_int_equal(fstat(STDERR_FILENO, &st), 0);
    snprintf(text, sizeof text, "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino + (unsigned)off);
    setenv("JOURNAL_STREAM", text, 1);
}

static void
a_matching_journal_stream_sends_fields_to_the_journal(void **state)
{
    static const char *const fields[] = { "WORKER=w0", "EPOCH=7", NULL };

    (void)state;
    look();
    journal_stream(0);
    log_open("lagand", LOG_LEVEL_INFO);
    log_fields(LOG_LEVEL_WARN, fields, "worker %s stopped", "w0");
    unsetenv("JOURNAL_STREAM");
    assert_string_equal(seen(), "");
    assert_string_equal(journal, "MESSAGE=worker w0 stopped\nPRIORITY=4\nSYSLOG_IDENTIFIER=lagand\n"
                                 "WORKER=w0\nEPOCH=7\n");
}

static void
another_processes_journal_stream_is_not_ours(void **state)
{
    (void)state;
    look();
    journal_stream(1);
    log_open("lagand", LOG_LEVEL_INFO);
    log_fields(LOG_LEVEL_INFO, NULL, "here");
    setenv("JOURNAL_STREAM", "nonsense", 1);
    log_open("lagand", LOG_LEVEL_INFO);
    log_info("and here");
    unsetenv("JOURNAL_STREAM");
    assert_string_equal(seen(), "<6>lagand: here\n<6>lagand: and here\n");
    assert_string_equal(journal, "");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_priority_subject_and_text),
        cmocka_unit_test(what_is_above_the_level_is_not_written),
        cmocka_unit_test(control_bytes_cannot_make_a_second_line),
        cmocka_unit_test(a_text_too_long_is_cut_and_still_one_line),
        cmocka_unit_test(a_long_subject_is_cut),
        cmocka_unit_test(a_matching_journal_stream_sends_fields_to_the_journal),
        cmocka_unit_test(another_processes_journal_stream_is_not_ours),
    };

    unsetenv("JOURNAL_STREAM");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
