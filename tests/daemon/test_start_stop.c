/* test_start_stop.c - how the real lagand starts, rests and stops: systemd, its runtime directory,
 * its memory, and open requests at the stop.
 */
#include "tests/daemon/lagand_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct lagand_fixture r;

static void
systemd_gets_ready_status_watchdog_and_stopping(void **state)
{
    (void)state;
    setenv("WATCHDOG_USEC", "200000", 1);
    lagand_start(&r, "good", NULL);
    unsetenv("WATCHDOG_USEC");
    lagand_ready(&r);
    assert_true(lagand_notified(&r, "STATUS=1 of 1 workers ready", 3000));
    assert_true(lagand_notified(&r, "WATCHDOG=1", 3000));
    kill(r.pid, SIGTERM);
    assert_true(lagand_notified(&r, "STOPPING=1", 2000));
    assert_int_equal(lagand_wait(&r, 5000), 0);
}

static void
loading_extends_the_start_timeout_with_progress(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_start(&r, "loading", NULL);
    assert_true(lagand_notified(&r, "EXTEND_TIMEOUT_USEC", 3000));
    assert_true(lagand_notified(&r, "w0 loading weights, 1 of 2 MiB", 3000));
    assert_false(systemd_notified(&r.systemd, "READY=1"));
    c = dealer_open(&r, "api.sock");
    SEND(c, LAGAN_MSG_HELLO, 1, { "min", 1 }, { "max", 1 });
    assert_string_equal(text_of(&receive_type(c, LAGAN_MSG_WELCOME, 2000)->map, "state"),
                        "starting");
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
stopping_lagand_finishes_open_requests_and_refuses_new_ones(void **state)
{
    struct dealer *c;
    uint32_t at = 0, n = 0;
    bool refused = false;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 40, 2);
    kill(r.pid, SIGTERM);
    assert_true(lagand_notified(&r, "STOPPING=1", 2000));
    SEND(c, LAGAN_MSG_SUBMIT, 2, { "ids", 3 });
    for (;;) {
        const struct msg *m = receive(c, 3000);

        if (m->type == LAGAN_MSG_DONE) break;
        if (m->type == LAGAN_MSG_ERROR) {
            assert_int_equal(m->rid, 2);
            assert_int_equal(number(&m->map, "code"), LAGAN_E_DRAINING);
            refused = true;
            continue;
        }
        at = take_chunk(m, at, 2);
        SEND(c, LAGAN_MSG_ACK, 1, { "n", ++n });
    }
    assert_int_equal(at, 40);
    assert_true(refused);
    assert_int_equal(lagand_wait(&r, 3000), 0);
    dealer_close(c);
}

static void
stopping_lagand_starts_no_worker(void **state)
{
    struct dealer *c, *ctl;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    submit(c, 1, 3, 100000, 2);
    kill(r.pid, SIGTERM);
    assert_true(lagand_notified(&r, "STOPPING=1", 2000));
    call(ctl, 1, "restart", "worker", "w0");
    receive_error(ctl, 1, LAGAN_E_DRAINING, "lagand is stopping", 2000);
    call(ctl, 2, "reload", NULL, NULL);
    receive_error(ctl, 2, LAGAN_E_DRAINING, "lagand is stopping", 2000);
    call(ctl, 3, "daemon reexec", NULL, NULL);
    receive_error(ctl, 3, LAGAN_E_DRAINING, "lagand is stopping", 2000);
    kill(r.pid, SIGTERM); /* then at once */
    assert_int_equal(lagand_wait(&r, 3000), 0);
    dealer_close(c);
    dealer_close(ctl);
}

static void
stop_is_bounded_by_the_shutdown_timeout(void **state)
{
    struct dealer *c;
    const struct msg *m;

    (void)state;
    lagand_begin(&r, "slow", ARGS("--supervisor.shutdown-timeout", "300ms"));
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 100000, 2);
    kill(r.pid, SIGTERM);
    do m = receive(c, 3000);
    while (m->type == LAGAN_MSG_CHUNK);
    assert_int_equal(number(&m->map, "code"), LAGAN_E_DRAINING);
    assert_int_equal(lagand_wait(&r, 3000), 0);
    assert_int_equal(lagand_n_workers(&r), 0);
    dealer_close(c);
}

/* Starts a second lagand in the same directory. Returns its exit code and checks the log. */
static int
second(const char *dir)
{
    char run[sizeof r.run];
    pid_t first = r.pid;
    int code;

    memcpy(run, r.run, sizeof run);
    if (dir != r.run) snprintf(r.run, sizeof r.run, "%s", dir);
    lagand_start(&r, "good", NULL);
    code = lagand_wait(&r, 3000);
    if (code < 0) {
        kill(r.pid, SIGKILL);
        lagand_wait(&r, 1000);
    }
    memcpy(r.run, run, sizeof run);
    r.pid = first;
    return code;
}

static void
runtime_directory_has_one_lagand_whose_pid_is_reported(void **state)
{
    char words[64], longer[80];

    (void)state;
    lagand_begin(&r, "good", NULL);
    assert_int_equal(second(r.run), 69);
    snprintf(words, sizeof words, "another lagand (pid %d) uses", (int)r.pid);
    assert_true(lagand_logged(&r, words, 0));

    memset(longer, 'x', sizeof longer - 1);
    longer[0] = '/';
    longer[79] = 0;
    assert_int_not_equal(second("/proc/lagan"), 0);
    assert_true(lagand_logged(&r, "cannot create runtime directory", 0));
    assert_int_equal(lagand_stop(&r), 0);
}

static void
too_long_path_is_reported(void **state)
{
    char dir[200];

    (void)state;
    memset(dir, 'x', sizeof dir - 1);
    dir[0] = '/';
    dir[199] = 0;
    lagand_start(&r, "good", ARGS("--runtime-dir", dir));
    assert_int_equal(lagand_wait(&r, 3000), 78);
    assert_true(lagand_logged(&r, "the path has 199 bytes; at most", 0));
}

static void
existing_file_at_a_socket_path_is_checked(void **state)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    char path[160], run[80];
    int fd;

    (void)state;
    lagand_begin(&r, "good", NULL);
    assert_int_equal(lagand_stop(&r), 0);
    strcpy(run, r.run);
    assert_int_equal(mkdir(run, 0700), 0);
    snprintf(path, sizeof path, "%s/api.sock", run);

    /* A file that is not a socket is kept. */
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(second(run), 1);
    assert_true(lagand_logged(&r, "exists and is not a socket", 0));
    assert_int_equal(unlink(path), 0);

    /* A socket with a listener is kept. */
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(a.sun_path, path);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(second(run), 69);
    assert_true(lagand_logged(&r, "another program listens", 0));
    assert_int_equal(access(path, F_OK), 0);
    close(fd);

    /* A socket without a listener is replaced. */
    lagand_begin(&r, "good", ARGS("--remove-runtime-dir"));
    assert_int_equal(lagand_stop(&r), 0);
}

static void
idle_lagand_uses_little_memory(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)state;
    skip(); /* memory of the sanitizers does not count */
#else
    char path[64], line[256];
    unsigned long kib = 0;
    FILE *f;

    (void)state;
    lagand_begin(&r, "good", NULL);
    snprintf(path, sizeof path, "/proc/%d/status", (int)r.pid);
    f = fopen(path, "r");
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "VmRSS: %lu", &kib) == 1) break;
    }
    fclose(f);
    fprintf(stderr, "lagand at rest: %lu KiB\n", kib);
    assert_in_range(kib, 1, 15 << 10);
    assert_int_equal(lagand_stop(&r), 0);
#endif
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        lagand_test(systemd_gets_ready_status_watchdog_and_stopping),
        lagand_test(loading_extends_the_start_timeout_with_progress),
        lagand_test(stopping_lagand_finishes_open_requests_and_refuses_new_ones),
        lagand_test(stopping_lagand_starts_no_worker),
        lagand_test(stop_is_bounded_by_the_shutdown_timeout),
        lagand_test(runtime_directory_has_one_lagand_whose_pid_is_reported),
        lagand_test(too_long_path_is_reported),
        lagand_test(existing_file_at_a_socket_path_is_checked),
        lagand_test(idle_lagand_uses_little_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
