/* test_log.c - tests of the destination and the format of log messages. */
#include "tests/test.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

int sd_journal_sendv(const struct iovec *v, int n);

static struct sockaddr_un journal_addr; /* replaces the socket of journald */
static socklen_t journal_addr_bytes;

int
connect(int fd, const struct sockaddr *a, socklen_t n)
{
    const struct sockaddr_un *at = (const struct sockaddr_un *)(const void *)a;

    assert_string_equal(at->sun_path, "/run/systemd/journal/socket");
    assert_int_equal(n, sizeof *at);
    return (int)syscall(SYS_connect, fd, &journal_addr, journal_addr_bytes);
}

static char journal[4096]; /* the fields sent to the journal, one a line */

/* Replaces the function of libsystemd and records the fields. */
int
sd_journal_sendv(const struct iovec *v, int n)
{
    size_t used = strlen(journal);

    for (int i = 0; i < n; i++) {
        used += (size_t)snprintf(journal + used, sizeof journal - used, "%.*s\n", (int)v[i].iov_len,
                                 (const char *)v[i].iov_base);
    }
    return 0;
}

static FILE *file;
static int saved;

/* Redirects standard error to a new file until seen() restores it. */
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
line_has_priority_subject_and_text(void **state)
{
    (void)state;
    look();
    log_open("worker w0", LOG_LEVEL_DEBUG);
    log_to_parent();
    log_err("no %s", "memory");
    log_warn("slow");
    log_info("ready in %d s", 14);
    log_debug("x");
    assert_string_equal(seen(), "<3>worker w0: no memory\n<4>worker w0: slow\n"
                                "<6>worker w0: ready in 14 s\n<7>worker w0: x\n");
}

/* Fails a check() in a child process and returns what it has written to standard error. */
static const char *
failed_check(bool to_parent)
{
    int status;
    pid_t pid;

    look();
    pid = fork();
    if (pid == 0) {
        log_open("lagand", LOG_LEVEL_INFO);
        if (to_parent) log_to_parent();
        check(1 + 1 == 3);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    return seen();
}

static void
failed_check_is_logged_like_any_error(void **state)
{
    const char *line = failed_check(/* to_parent= */ false);
    size_t skip;

    (void)state;
    assert_int_equal(log_line_level(line, strcspn(line, "\n"), &skip), LOG_LEVEL_ERR);
    assert_true(skip > 3);
    assert_memory_equal(line + skip, "lagand: check failed: 1 + 1 == 3 (", 34);
    assert_memory_equal(failed_check(/* to_parent= */ true), "<3>lagand: check failed: ", 25);
}

static void
line_in_a_file_has_time_and_level(void **state)
{
    static const enum log_level levels[] = { LOG_LEVEL_ERR, LOG_LEVEL_WARN, LOG_LEVEL_INFO };
    const char *line;
    size_t skip;

    (void)state;
    look();
    log_open("lagand", LOG_LEVEL_INFO);
    log_err("a");
    log_warn("b");
    log_info("c");
    line = seen();
    for (int i = 0; i < 3; i++) {
        char want[32], format[] = "0000-00-00T00:00:00.000Z ";

        for (size_t k = 0; format[k]; k++)
            if (format[k] == '0' ? line[k] < '0' || line[k] > '9' : line[k] != format[k])
                fail_msg("'%s'", line);
        assert_int_equal(log_line_level(line, strcspn(line, "\n"), &skip), levels[i]);
        snprintf(want, sizeof want, "lagand: %c\n", 'a' + i);
        assert_memory_equal(line + skip, want, strlen(want));
        line += strcspn(line, "\n") + 1;
    }
    assert_string_equal(line, "");
}

static void
line_without_prefix_has_no_level(void **state)
{
    static const char *const lines[] = { "",
                                         "<",
                                         "<8>x",
                                         "Killed",
                                         "2026-11-24T19:28:31.123Z",
                                         "2026-11-24T19:28:31.123Z info",
                                         "2026-11-24T19:28:31.123Z note lagand: x",
                                         "2026-11-24 19:28:31.123Z info lagand: x" };
    size_t skip;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        assert_int_equal(log_line_level(lines[i], strlen(lines[i]), &skip), LOG_LEVEL_NONE);
        assert_int_equal(skip, 0);
    }
    assert_int_equal(log_line_level("<3>x", 4, &skip), LOG_LEVEL_ERR);
    assert_int_equal(skip, 3);
}

static void
messages_above_the_level_are_not_written(void **state)
{
    (void)state;
    look();
    log_open("lagand", LOG_LEVEL_INFO);
    log_to_parent();
    log_debug("hidden");
    log_level_set(LOG_LEVEL_ERR);
    log_warn("hidden");
    log_info("hidden");
    log_level_set(LOG_LEVEL_DEBUG);
    log_debug("shown");
    assert_string_equal(seen(), "<7>lagand: shown\n");
}

static void
control_bytes_cannot_start_a_second_line(void **state)
{
    (void)state;
    look();
    log_open("lagand", LOG_LEVEL_INFO);
    log_to_parent();
    log_info("a\n<2>forged: b\r\t\x1b[31m\x7f");
    assert_string_equal(seen(), "<6>lagand: a <2>forged: b   [31m \n");
}

static void
long_text_is_truncated_to_one_line(void **state)
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
long_subject_is_truncated(void **state)
{
    (void)state;
    look();
    log_open("a subject of more than thirty-one bytes", LOG_LEVEL_INFO);
    log_to_parent();
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
matching_journal_stream_sends_fields_to_the_journal(void **state)
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
journal_stream_of_another_process_is_ignored(void **state)
{
    (void)state;
    look();
    journal_stream(1);
    log_open("lagand", LOG_LEVEL_INFO);
    log_to_parent();
    log_fields(LOG_LEVEL_INFO, NULL, "here");
    setenv("JOURNAL_STREAM", "nonsense", 1);
    log_open("lagand", LOG_LEVEL_INFO);
    log_to_parent();
    log_info("and here");
    unsetenv("JOURNAL_STREAM");
    assert_string_equal(seen(), "<6>lagand: here\n<6>lagand: and here\n");
    assert_string_equal(journal, "");
}

static void
unread_pipe_drops_lines_and_reports_their_number(void **state)
{
    char text[8192], expected[200];
    uint32_t n = 0;
    int ends[2];
    ssize_t got;

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    fcntl(ends[1], F_SETFL, 0); /* a write to the full pipe blocks */
    fflush(stderr);
    saved = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    log_open("lagand", LOG_LEVEL_INFO);
    log_to_parent();
    log_never_wait();
    alarm(10);
    for (uint32_t i = 0; i < 2000; i++) log_info("line %u of %0100u", i, 0u);
    while ((got = read(ends[0], text, sizeof text)) > 0)
        for (ssize_t i = 0; i < got; i++) n += text[i] == '\n';
    log_info("read again");
    got = read(ends[0], text, sizeof text);
    dup2(saved, STDERR_FILENO);
    close(saved);
    alarm(0);
    assert_true(n > 100 && n < 2000);
    snprintf(expected, sizeof expected,
             "<4>lagand: %u log lines were dropped because the log was not read\n<6>lagand: read "
             "again\n",
             2000 - n);
    assert_int_equal(got, strlen(expected));
    assert_memory_equal(text, expected, (size_t)got);
    close(ends[0]);
    close(ends[1]);
}

static void
full_journal_socket_does_not_block(void **state)
{
    /* systemd sets the length of the queue to 512, which the buffer of one sender does not fill. */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0), other[8];
    char text[8];

    (void)state;
    /* An abstract address chosen by the kernel. */
    assert_int_equal(bind(fd, (const struct sockaddr *)&(struct sockaddr_un){ AF_UNIX, "" },
                          sizeof(sa_family_t)),
                     0);
    journal_addr_bytes = sizeof journal_addr;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&journal_addr, &journal_addr_bytes), 0);
    for (size_t i = 0; i < ARRAY_LEN(other); i++) {
        other[i] = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        assert_int_equal(syscall(SYS_connect, other[i], &journal_addr, journal_addr_bytes), 0);
    }
    look();
    journal_stream(0);
    log_open("lagand", LOG_LEVEL_INFO);
    log_never_wait();
    log_info("received");
    assert_non_null(strstr(journal, "received"));
    *journal = 0;
    for (size_t i = 0; i < ARRAY_LEN(other); i++)
        while (send(other[i], "x", 1, 0) == 1) continue;
    log_info("not received");
    log_info("nor this");
    assert_string_equal(journal, "");
    while (recv(fd, text, sizeof text, 0) > 0) continue;
    log_info("received again");
    assert_string_equal(
        journal, "MESSAGE=2 log lines were dropped because the log was not read\nPRIORITY=4\n"
                 "SYSLOG_IDENTIFIER=lagand\n"
                 "MESSAGE=received again\nPRIORITY=6\nSYSLOG_IDENTIFIER=lagand\n");
    unsetenv("JOURNAL_STREAM");
    assert_string_equal(seen(), "");
    close(fd);
    for (size_t i = 0; i < ARRAY_LEN(other); i++) close(other[i]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_has_priority_subject_and_text),
        cmocka_unit_test(failed_check_is_logged_like_any_error),
        cmocka_unit_test(line_in_a_file_has_time_and_level),
        cmocka_unit_test(line_without_prefix_has_no_level),
        cmocka_unit_test(messages_above_the_level_are_not_written),
        cmocka_unit_test(control_bytes_cannot_start_a_second_line),
        cmocka_unit_test(long_text_is_truncated_to_one_line),
        cmocka_unit_test(long_subject_is_truncated),
        cmocka_unit_test(matching_journal_stream_sends_fields_to_the_journal),
        cmocka_unit_test(journal_stream_of_another_process_is_ignored),
        cmocka_unit_test(unread_pipe_drops_lines_and_reports_their_number),
        cmocka_unit_test(full_journal_socket_does_not_block),
    };

    unsetenv("JOURNAL_STREAM");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
