/* test_heritage.c - what is named in the environment is there, or it is said what is not. */
#include "tests/test.h"

#include "ipc/heritage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct heritage h;
static struct err e;

static int
setup(void **state)
{
    (void)state;
    unsetenv("LAGAN_FDNAMES");
    unsetenv("LAGAN_EPOCH");
    h = (struct heritage){ .n = 77 };
    return 0;
}

static int
take(const char *names, const char *epoch)
{
    setup(NULL);
    if (names) setenv("LAGAN_FDNAMES", names, 1);
    if (epoch) setenv("LAGAN_EPOCH", epoch, 1);
    return heritage_take(&h, &e);
}

static void
descriptors_are_named_in_order_from_three(void **state)
{
    (void)state;
    for (int fd = 3; fd < 7; fd++) dup2(STDERR_FILENO, fd);
    assert_int_equal(fcntl(5, F_SETFD, 0), 0);
    assert_int_equal(take("d:w:bell:hand", "17"), 0);
    assert_int_equal(h.epoch, 17);
    assert_int_equal(h.n, 4);
    assert_int_equal(heritage_fd(&h, "d"), 3);
    assert_int_equal(heritage_fd(&h, "w"), 4);
    assert_int_equal(heritage_fd(&h, "bell"), 5);
    assert_int_equal(heritage_fd(&h, "hand"), 6);
    assert_int_equal(heritage_fd(&h, "kv"), -1);
}

static void
they_do_not_pass_another_exec(void **state)
{
    (void)state;
    for (int fd = 3; fd < 6; fd++) dup2(STDERR_FILENO, fd);
    assert_int_equal(take("d:w:bell", "1"), 0);
    for (int fd = 3; fd < 6; fd++) assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
}

static void
started_by_hand_is_told_apart(void **state)
{
    (void)state;
    assert_int_equal(take(NULL, NULL), -ENOENT);
    assert_non_null(strstr(e.text, "started by lagand"));
    assert_int_equal(h.n, 77);
}

static void
anything_malformed_is_refused_in_a_sentence(void **state)
{
    static const struct {
        const char *names, *epoch, *why;
    } bad[] = {
        { "d", NULL, "LAGAN_EPOCH is not" },
        { NULL, "1", "LAGAN_FDNAMES is not" },
        { "d", "", "LAGAN_EPOCH=\"\"" },
        { "d", "0", "LAGAN_EPOCH=\"0\"" },
        { "d", "-1", "LAGAN_EPOCH=\"-1\"" },
        { "d", "1x", "LAGAN_EPOCH=\"1x\"" },
        { "d", "18446744073709551616", "LAGAN_EPOCH=" },
        { "", "1", "\"\" is not a name" },
        { "d:", "1", "\"\" is not a name" },
        { ":d", "1", "\"\" is not a name" },
        { "d::w", "1", "\"\" is not a name" },
        { "D", "1", "\"D\" is not a name" },
        { "a name", "1", "\"a name\" is not a name" },
        { "sixteen_letters_", "1", "is not a name" },
        { "d:w:d", "1", "names d twice" },
    };

    (void)state;
    for (int fd = 3; fd < 6; fd++) dup2(STDERR_FILENO, fd);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(take(bad[i].names, bad[i].epoch), -EBADMSG);
        assert_non_null(strstr(e.text, bad[i].why));
        assert_int_equal(h.n, 77);
    }
}

/* n names: a, b, ... */
static char *
names(int n)
{
    static char text[400];
    size_t used = 0;

    for (int i = 0; i < n; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%sf%d", i ? ":" : "", i);
    }
    return text;
}

static void
more_names_than_there_is_room_for_are_refused(void **state)
{
    (void)state;
    for (int fd = 3; fd < 36; fd++) dup2(STDERR_FILENO, fd);
    assert_int_equal(take(names(HERITAGE_MAX), "1"), 0);
    assert_int_equal(h.n, HERITAGE_MAX);
    assert_int_equal(take(names(HERITAGE_MAX + 1), "1"), -EBADMSG);
    assert_non_null(strstr(e.text, "more than 32"));
}

static void
a_descriptor_that_was_not_passed_is_named(void **state)
{
    (void)state;
    for (int fd = 3; fd < 36; fd++) dup2(STDERR_FILENO, fd);
    close(7);
    assert_int_equal(take("d:w:bell:hand:kv", "1"), -EBADMSG);
    assert_non_null(strstr(e.text, "fd 7 (kv) was not passed on"));
}

static void
what_is_written_for_a_child_reads_back(void **state)
{
    struct heritage made = { .n = 3, .at = { { "d", 9 }, { "w", 8 }, { "plan0", 7 } } };
    char text[HERITAGE_ENV_MAX];

    (void)state;
    for (int fd = 3; fd < 6; fd++) dup2(STDERR_FILENO, fd);
    assert_int_equal(heritage_env(&made, text, sizeof text), 0);
    assert_string_equal(text, "LAGAN_FDNAMES=d:w:plan0");
    assert_int_equal(take(strchr(text, '=') + 1, "3"), 0);
    assert_int_equal(heritage_fd(&h, "plan0"), 5);
    for (size_t n = 1; n < strlen(text) + 1; n++) {
        char small[64];

        assert_int_equal(heritage_env(&made, small, n), -EMSGSIZE);
    }
    made.n = HERITAGE_MAX;
    for (uint32_t i = 0; i < made.n; i++) {
        snprintf(made.at[i].name, sizeof made.at[i].name, "fifteen_bytes%02u", i % 100);
    }
    assert_int_equal(heritage_env(&made, text, sizeof text), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(descriptors_are_named_in_order_from_three, setup),
        cmocka_unit_test_setup(they_do_not_pass_another_exec, setup),
        cmocka_unit_test_setup(started_by_hand_is_told_apart, setup),
        cmocka_unit_test_setup(anything_malformed_is_refused_in_a_sentence, setup),
        cmocka_unit_test_setup(more_names_than_there_is_room_for_are_refused, setup),
        cmocka_unit_test_setup(a_descriptor_that_was_not_passed_is_named, setup),
        cmocka_unit_test_setup(what_is_written_for_a_child_reads_back, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
