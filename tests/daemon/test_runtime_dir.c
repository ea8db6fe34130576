/* test_runtime_dir.c - a failed start leaves no files. */
#include "daemon/config/runtime_dir.h"

#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char above[64], dir[80];

static int
set_up(void **state)
{
    (void)state;
    snprintf(above, sizeof above, "/tmp/lagand-test-XXXXXX");
    assert_non_null(mkdtemp(above));
    snprintf(dir, sizeof dir, "%s/run", above);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    return rmdir(above);
}

/* Runs with a limit of memory or files. */
static int
open_within(int resource, rlim_t limit, struct err *e)
{
    struct rlimit was, less;
    struct runtime_dir r;
    int k;

    assert_int_equal(getrlimit((__rlimit_resource_t)resource, &was), 0);
    less = was;
    less.rlim_cur = limit;
    assert_int_equal(setrlimit((__rlimit_resource_t)resource, &less), 0);
    k = runtime_dir_open(&r, dir, e);
    assert_int_equal(setrlimit((__rlimit_resource_t)resource, &was), 0);
    return k;
}

static void
failed_start_leaves_no_files(void **state)
{
    int next = open("/dev/null", O_RDONLY);
    struct err e;

    (void)state;
    close(next);
    assert_int_equal(open_within(RLIMIT_NOFILE, (rlim_t)next, &e), -EMFILE);
    assert_int_equal(access(dir, F_OK), -1);

    signal(SIGXFSZ, SIG_IGN); /* a file may have 0 bytes, like on a full disk */
    assert_int_equal(open_within(RLIMIT_FSIZE, 0, &e), -EFBIG);
    assert_non_null(strstr(e.text, "lagand.lock"));
    assert_int_equal(access(dir, F_OK), -1);

    assert_int_equal(mkdir(dir, 0700), 0); /* an existing directory stays */
    assert_int_equal(open_within(RLIMIT_FSIZE, 0, &e), -EFBIG);
    assert_int_equal(rmdir(dir), 0);
}

static void
directory_is_locked_until_it_is_closed(void **state)
{
    struct runtime_dir r, other;
    struct err e;

    (void)state;
    assert_int_equal(runtime_dir_open(&r, dir, &e), 0);
    assert_int_equal(runtime_dir_open(&other, dir, &e), -EBUSY);
    assert_int_equal(access(dir, F_OK), 0);
    runtime_dir_close(&r);
    assert_int_equal(access(dir, F_OK), -1);
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(failed_start_leaves_no_files),
        T(directory_is_locked_until_it_is_closed),
    };

    return cmocka_run_group_tests_name("runtime", tests, NULL, NULL);
}
