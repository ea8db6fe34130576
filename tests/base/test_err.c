/* test_err.c - tests of base/err.h and of check(). */
#include "tests/test.h"

#include "base/err.h"

#include <sys/wait.h>
#include <unistd.h>

static void
err_set_returns_the_code_and_stores_the_sentence(void **state)
{
    struct err e = { 0 };

    (void)state;
    assert_int_equal(err_set(&e, -EINVAL, "layer %d has no %s", 3, "q_proj"), -EINVAL);
    assert_int_equal(e.code, -EINVAL);
    assert_string_equal(e.text, "layer 3 has no q_proj");
}

static void
err_while_prepends_what_the_caller_was_doing(void **state)
{
    struct err e = { 0 };

    (void)state;
    err_set(&e, -EINVAL, "config.json: no hidden_size");
    assert_int_equal(err_while(&e, -EINVAL, "load %s", "/m/llama"), -EINVAL);
    assert_string_equal(e.text, "load /m/llama: config.json: no hidden_size");
}

static void
err_may_be_null(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, -EIO, "x"), -EIO);
    assert_int_equal(err_while(NULL, -EIO, "y"), -EIO);
}

static void
long_sentence_is_truncated_and_nul_terminated(void **state)
{
    struct err e = { 0 };
    char x[400];

    (void)state;
    memset(x, 'x', sizeof x);
    x[sizeof x - 1] = 0;
    err_set(&e, -EIO, "%s", x);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    err_while(&e, -EIO, "%s", x);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
}

static int words_to;

static void
to_pipe(const char *sentence)
{
    if (write(words_to, sentence, strlen(sentence)) < 0) _exit(1);
}

static void
failed_check_stores_a_panic_message_and_aborts(void **state)
{
    int p[2], status;
    char text[300] = { 0 };
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(p), 0);
    pid = fork();
    if (pid == 0) {
        dup2(p[1], STDERR_FILENO);
        words_to = p[1];
        check_panic_message = to_pipe;
        check(1 + 1 == 3);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_true(read(p[0], text, sizeof text - 1) > 0);
    assert_memory_equal(text, "check failed: 1 + 1 == 3 (", 26);
    close(p[0]);
    close(p[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(err_set_returns_the_code_and_stores_the_sentence),
        cmocka_unit_test(err_while_prepends_what_the_caller_was_doing),
        cmocka_unit_test(err_may_be_null),
        cmocka_unit_test(long_sentence_is_truncated_and_nul_terminated),
        cmocka_unit_test(failed_check_stores_a_panic_message_and_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
