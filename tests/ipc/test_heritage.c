/* test_heritage.c - tests of ipc/heritage.h. */
#include "tests/test.h"

#include "ipc/heritage.h"

#include <fcntl.h>
#include <stdio.h>
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
descriptors_are_numbered_from_3_in_order(void **state)
{
    (void)state;
    for (int fd = 3; fd < 7; fd++) dup2(STDERR_FILENO, fd);
    assert_int_equal(fcntl(5, F_SETFD, 0), 0);
    assert_int_equal(take("d:w:doorbell:fd_channel", "17"), 0);
    assert_int_equal(h.epoch, 17);
    assert_int_equal(h.n, 4);
    assert_int_equal(heritage_fd(&h, "d"), 3);
    assert_int_equal(heritage_fd(&h, "w"), 4);
    assert_int_equal(heritage_fd(&h, "doorbell"), 5);
    assert_int_equal(heritage_fd(&h, "fd_channel"), 6);
    assert_int_equal(heritage_fd(&h, "kv"), -1);
}

static void
inherited_descriptors_become_close_on_exec(void **state)
{
    (void)state;
    for (int fd = 3; fd < 6; fd++) dup2(STDERR_FILENO, fd);
    assert_int_equal(take("d:w:doorbell", "1"), 0);
    for (int fd = 3; fd < 6; fd++) assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
}

static void
start_without_lagand_is_enoent(void **state)
{
    (void)state;
    assert_int_equal(take(NULL, NULL), -ENOENT);
    assert_non_null(strstr(e.text, "start it with lagand or laganctl --spawn"));
    assert_int_equal(h.n, 77);
}

static void
malformed_variables_are_rejected_with_a_sentence(void **state)
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
too_many_names_are_rejected(void **state)
{
    (void)state;
    for (int fd = 3; fd < 36; fd++) dup2(STDERR_FILENO, fd);
    assert_int_equal(take(names(HERITAGE_MAX), "1"), 0);
    assert_int_equal(h.n, HERITAGE_MAX);
    assert_int_equal(take(names(HERITAGE_MAX + 1), "1"), -EBADMSG);
    assert_non_null(strstr(e.text, "more than 32"));
}

static void
closed_descriptor_is_named_in_the_error(void **state)
{
    (void)state;
    for (int fd = 3; fd < 36; fd++) dup2(STDERR_FILENO, fd);
    close(7);
    assert_int_equal(take("d:w:doorbell:fd_channel:kv", "1"), -EBADMSG);
    assert_non_null(strstr(e.text, "fd 7 the name kv, but the fd is not open"));
}

static void
environment_of_a_child_parses_to_the_same_heritage(void **state)
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
        cmocka_unit_test_setup(descriptors_are_numbered_from_3_in_order, setup),
        cmocka_unit_test_setup(inherited_descriptors_become_close_on_exec, setup),
        cmocka_unit_test_setup(start_without_lagand_is_enoent, setup),
        cmocka_unit_test_setup(malformed_variables_are_rejected_with_a_sentence, setup),
        cmocka_unit_test_setup(too_many_names_are_rejected, setup),
        cmocka_unit_test_setup(closed_descriptor_is_named_in_the_error, setup),
        cmocka_unit_test_setup(environment_of_a_child_parses_to_the_same_heritage, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
