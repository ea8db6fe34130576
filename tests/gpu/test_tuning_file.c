/* test_tuning_file.c - the file of measured matmul algorithms. Needs no GPU. */
#include "gpu/cuda/cuda_tuning_file.h"
#include "tests/test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct tuning_machine here = { 130101, 13000, 132, "NVIDIA H200" };
static char path[64];

static int
new_file(void **state)
{
    int fd;

    (void)state;
    strcpy(path, "/tmp/lagan-tuned-XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    return 0;
}

static int
drop_file(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static struct tuning_row
row(uint32_t n, uint32_t rows, float us)
{
    struct tuning_row r = { .key = { .n = n,
                                     .k = 4096,
                                     .rows = rows,
                                     .in = DT_BF16,
                                     .out = DT_F32,
                                     .align = 16,
                                     .epilogue = 1 },
                            .us = us,
                            .heuristic_us = 2 * us };

    for (int i = 0; i < TUNING_BYTES; i++) r.algorithm[i] = (uint8_t)(n + rows + 7 * (uint32_t)i);
    return r;
}

static struct tuning_table *
open_for(const struct tuning_machine *m)
{
    struct tuning_table *t = NULL;
    struct err e = { 0 };

    if (tuning_open(&t, path, m, &e) < 0) fail_msg("%s", e.text);
    return t;
}

static void
add(const struct tuning_machine *m, struct tuning_row r)
{
    struct tuning_table *t = open_for(m);
    struct err e = { 0 };

    assert_int_equal(tuning_put(t, &r), 0);
    if (tuning_save(t, path, &e) < 0) fail_msg("%s", e.text);
    tuning_close(t);
}

static void
expect(const struct tuning_machine *m, struct tuning_row r)
{
    struct tuning_table *t = open_for(m);
    const struct tuning_row *found = tuning_find(t, &r.key);

    assert_non_null(found);
    assert_memory_equal(found->algorithm, r.algorithm, TUNING_BYTES);
    assert_true(found->us == r.us && found->heuristic_us == r.heuristic_us);
    tuning_close(t);
}

static void
saved_rows_are_found_after_reopening(void **state)
{
    (void)state;
    add(&here, row(6144, 64, 13.5f));
    add(&here, row(6144, 256, 20));
    expect(&here, row(6144, 64, 13.5f));
    expect(&here, row(6144, 256, 20));
}

static void
a_shape_measured_again_has_one_row(void **state)
{
    struct tuning_table *t;

    (void)state;
    add(&here, row(6144, 64, 13.5f));
    add(&here, row(6144, 64, 12));
    expect(&here, row(6144, 64, 12));
    t = open_for(&here);
    assert_int_equal(tuning_count(t), 1);
    tuning_close(t);
}

static void
rows_of_another_machine_are_kept_and_not_used(void **state)
{
    struct tuning_machine other = here, newer = here, share = here;
    struct tuning_row r = row(6144, 64, 13.5f);
    struct tuning_table *t;

    (void)state;
    strcpy(other.gpu, "NVIDIA H200 NVL");
    newer.library++;
    share.sms = 64;
    add(&other, row(6144, 64, 1));
    add(&newer, row(6144, 64, 2));
    add(&share, row(6144, 64, 3));
    t = open_for(&here);
    assert_null(tuning_find(t, &r.key));
    tuning_close(t);
    add(&here, r);
    expect(&other, row(6144, 64, 1));
    expect(&newer, row(6144, 64, 2));
    expect(&share, row(6144, 64, 3));
    expect(&here, r);
}

static void
no_file_is_an_empty_table(void **state)
{
    struct tuning_table *t = NULL;
    struct err e = { 0 };

    (void)state;
    unlink(path);
    t = open_for(&here);
    assert_int_equal(tuning_count(t), 0);
    tuning_close(t);
    assert_int_equal(tuning_open(&t, NULL, &here, &e), 0);
    tuning_close(t);
}

static void
an_invalid_line_is_named_in_the_error(void **state)
{
    static const char *const bad[] = { "bf16", "bf16 bf16 1 2 3 16 0 0 1.0 2.0 00",
                                       "bf17 bf16 1 2 3 16 0 0 1.0 2.0 ", "machine x", "\x01\x02" };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct tuning_table *t = NULL;
        FILE *f = fopen(path, "w");
        struct err e = { 0 };

        assert_non_null(f);
        fprintf(f, "# a comment\n\n%s\n", bad[i]);
        fclose(f);
        assert_int_equal(tuning_open(&t, path, &here, &e), -EBADMSG);
        assert_non_null(strstr(e.text, "line 3"));
    }
}

/* Workers of several models may use one file. */
static void
concurrent_saves_leave_a_complete_file(void **state)
{
    enum { SAVERS = 3, SAVES = 100, ROWS = 40 };
    pid_t pid[SAVERS];
    int status, failed = 0;

    (void)state;
    for (uint32_t i = 0; i < SAVERS; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i]) continue;
        struct tuning_table *t = NULL;
        struct err e = { 0 };
        int r = tuning_open(&t, NULL, &here, &e);

        for (uint32_t j = 0; j < ROWS * (i + 1) && r == 0; j++) {
            struct tuning_row one = row(64 * (j + 1), 64, 10);

            r = tuning_put(t, &one);
        }
        for (uint32_t j = 0; j < SAVES && r == 0; j++) r = tuning_save(t, path, &e);
        if (r < 0) fprintf(stderr, "%s\n", e.text);
        _exit(r < 0);
    }
    for (uint32_t i = 0; i < SAVERS; i++) {
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        failed += status != 0;
    }
    assert_int_equal(failed, 0);
    tuning_close(open_for(&here));
    expect(&here, row(64 * ROWS, 64, 10));
}

/* Each had read the file at open, and wrote those rows and its own. */
static void
a_later_save_keeps_rows_saved_by_others(void **state)
{
    struct tuning_table *first = open_for(&here), *later = open_for(&here);
    struct tuning_row a = row(64, 64, 10), b = row(128, 64, 11), again = row(64, 64, 12);
    struct err e = { 0 };

    (void)state;
    assert_int_equal(tuning_put(first, &a), 0);
    assert_int_equal(tuning_save(first, path, &e), 0);
    assert_int_equal(tuning_put(later, &b), 0);
    assert_int_equal(tuning_save(later, path, &e), 0);
    expect(&here, a);
    expect(&here, b);
    assert_int_equal(tuning_put(later, &again), 0); /* its own row counts */
    assert_int_equal(tuning_save(later, path, &e), 0);
    expect(&here, again);
    tuning_close(first);
    tuning_close(later);
}

static void
allow_writes(int signal)
{
    struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };

    (void)signal;
    setrlimit(RLIMIT_FSIZE, &all);
}

/* A disk that is full for one write only: an earlier version left a file with a hole and used
 * it. */
static int
save_where_one_write_fails(struct tuning_table *t, struct err *e)
{
    struct rlimit little = { 6000, RLIM_INFINITY };
    struct sigaction more = { .sa_handler = allow_writes }, old;
    int r;

    sigaction(SIGXFSZ, &more, &old);
    setrlimit(RLIMIT_FSIZE, &little);
    r = tuning_save(t, path, e);
    allow_writes(0);
    sigaction(SIGXFSZ, &old, NULL);
    return r;
}

static void
a_failed_save_keeps_the_old_file(void **state)
{
    struct tuning_table *t;
    struct tuning_row one = row(64, 64, 10);
    struct err e = { 0 };
    char left[96];

    (void)state;
    add(&here, one);
    t = open_for(&here);
    for (uint32_t i = 2; i < 200; i++) {
        struct tuning_row more = row(64 * i, 64, 10);

        assert_int_equal(tuning_put(t, &more), 0);
    }
    assert_int_equal(save_where_one_write_fails(t, &e), -EFBIG);
    assert_non_null(strstr(e.text, path));
    tuning_close(t);
    t = open_for(&here);
    assert_int_equal(tuning_count(t), 1);
    tuning_close(t);
    snprintf(left, sizeof left, "%s.%d", path, (int)getpid());
    assert_int_equal(access(left, F_OK), -1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(saved_rows_are_found_after_reopening, new_file, drop_file),
        cmocka_unit_test_setup_teardown(a_shape_measured_again_has_one_row, new_file, drop_file),
        cmocka_unit_test_setup_teardown(rows_of_another_machine_are_kept_and_not_used, new_file,
                                        drop_file),
        cmocka_unit_test_setup_teardown(no_file_is_an_empty_table, new_file, drop_file),
        cmocka_unit_test_setup_teardown(an_invalid_line_is_named_in_the_error, new_file, drop_file),
        cmocka_unit_test_setup_teardown(concurrent_saves_leave_a_complete_file, new_file,
                                        drop_file),
        cmocka_unit_test_setup_teardown(a_later_save_keeps_rows_saved_by_others, new_file,
                                        drop_file),
        cmocka_unit_test_setup_teardown(a_failed_save_keeps_the_old_file, new_file, drop_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
