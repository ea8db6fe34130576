/* test_hung.c - workers that hang: a stopped one is killed soon, a slow one never.
 *
 * Uses the default timeouts. --watch, --stops and --spinners are for check-long, which on an
 * otherwise idle machine also checks that no other request is delayed.
 */
#include "base/clock.h"
#include "tests/test.h"
#include "tests/torture/args.h"
#include "tests/torture/repeat_load.h"
#include "tests/torture/streams.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SIBLINGS = 4,
    MOST_STOPS = 4096,
    MOST_SPINNERS = 64,
    READY_MS = 30000,
    SOME_TOKENS = 500,
    STOPS = 4
};
static const nsec STALL = 3 * NSEC_S, SOON = 3500 * NSEC_MS, GAP = 50 * NSEC_MS,
                  CALM = 500 * NSEC_MS;

static uint32_t n_stops = 1, n_watch = 5, n_spinners = 4;
static struct service v;
static struct streams stopped, going;
static struct repeat_load load;
static pid_t spinner[MOST_SPINNERS];

static int
begin(void **state)
{
    (void)state;
    service_open(&v);
    atomic_store(&v.board->pace_us, 4000);
    return 0;
}

static void
end_spinners(void)
{
    for (uint32_t i = 0; i < ARRAY_LEN(spinner) && spinner[i]; i++) {
        kill(spinner[i], SIGKILL);
        waitpid(spinner[i], NULL, 0);
        spinner[i] = 0;
    }
}

static int
finish(void **state)
{
    (void)state;
    end_spinners();
    streams_close(&stopped);
    streams_close(&going);
    repeat_load_close(&load);
    service_close(&v);
    return 0;
}

/* ---- stopped */

static void
start_mocks(void)
{
    char config[400];

    v.worker = "mock_worker";
    service_folder(&v, "mock");
    snprintf(config, sizeof config,
             "models:\n"
             "  - { name: stopped, path: %s/mock, device: cpu }\n"
             "  - { name: going, path: %s/mock, device: cpu, workers: %d }\n",
             v.dir, v.dir, SIBLINGS);
    service_start(&v, 1 + SIBLINGS, config, NULL);
    streams_open(&stopped, v.endpoint, 8, 48);
    streams_open(&going, v.endpoint, 32, 48);
    stopped.model = "stopped";
    going.model = "going";
}

static void
stop_mocks(void)
{
    assert_true(streams_settle(&stopped, &v, READY_MS) && streams_settle(&going, &v, READY_MS));
    streams_close(&stopped);
    streams_close(&going);
    service_stop(&v);
}

static void
run_streams(void)
{
    streams_run(&stopped, 0, true);
    streams_run(&going, 1, true);
}

/* Returns the process of w0 when it is another than before. */
static pid_t
await_other(pid_t was)
{
    nsec until = clock_now() + READY_MS * NSEC_MS;
    pid_t pid;

    while ((pid = atomic_load(&v.board->pid[0])) <= 0 || pid == was) {
        run_streams();
        if (clock_now() >= until) fail_msg("no worker to stop");
    }
    for (until = clock_now() + CALM; clock_now() < until;) run_streams();
    return pid;
}

static int
by_length(const void *a, const void *b)
{
    const nsec *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Returns the silence that lagand logged for the last worker it killed; time in which lagand itself
 * did not run is not counted. */
static nsec
silence(void)
{
    double seconds = 0;
    char line[1024];
    FILE *f = fopen(v.log, "re");

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "no heartbeat for ");

        if (at && strstr(at, "; killing pid")) sscanf(at, "no heartbeat for %lf", &seconds);
    }
    fclose(f);
    return (nsec)(seconds * NSEC_S);
}

static void
stopped_worker_is_killed_soon_without_delaying_others(void **state)
{
    static nsec took[MOST_STOPS], gap[MOST_STOPS];
    uint32_t n = 0;
    pid_t pid = 0;

    (void)state;
    start_mocks();
    while (torture_more("stops", n, MIN(n_stops, (uint32_t)MOST_STOPS))) {
        uint64_t tokens;
        nsec since;

        /* One lagand stops restarting a worker after this many faults. */
        if (n && n % STOPS == 0) {
            stop_mocks();
            start_mocks();
        }
        pid = await_other(pid);
        going.worst = 0;
        tokens = going.history.n_tokens;
        since = clock_now();
        assert_int_equal(kill(pid, SIGSTOP), 0);
        while (kill(pid, 0) == 0) {
            run_streams();
            if (clock_now() - since > READY_MS * NSEC_MS)
                fail_msg("the stopped worker was not killed");
        }
        took[n] = clock_now() - since;
        gap[n++] = going.worst;
        assert_true(silence() >= STALL && silence() <= SOON);
        assert_true(going.history.n_tokens > tokens + SOME_TOKENS);
    }
    stop_mocks();
    qsort(took, n, sizeof *took, by_length);
    qsort(gap, n, sizeof *gap, by_length);
    print_message("%u stops: killed after %.2f s, at most %.2f s; the longest gap of the others' "
                  "streams p50 %.1f ms, worst %.1f ms\n",
                  n, (double)took[n / 2] / NSEC_S, (double)took[n - 1] / NSEC_S,
                  (double)gap[n / 2] / NSEC_MS, (double)gap[n - 1] / NSEC_MS);
    /* A single stop proves little on a busy machine. */
    if (n > 1) assert_true(took[n / 2] <= SOON && gap[n / 2] <= GAP);
}

/* ---- slow */

static void
spin(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile uint32_t i = 0;; i++) {
    }
}

static void
no_slow_worker_is_killed(void **state)
{
    nsec since;

    (void)state;
    repeat_load_start(&load, &v, "fp32", 0, NULL);
    for (uint32_t i = 0; i < MIN(n_spinners, (uint32_t)MOST_SPINNERS); i++) {
        spinner[i] = fork();
        assert_true(spinner[i] >= 0);
        if (!spinner[i]) spin();
    }
    since = clock_now();
    while (torture_more("seconds of load", (uint32_t)((clock_now() - since) / NSEC_S), n_watch))
        repeat_load_run(&load, 2, true);
    end_spinners();
    repeat_load_settle(&load);
    print_message(
        "%u s with %u busy processes: %llu results, %llu tokens; %u warnings of silence\n", n_watch,
        n_spinners, (unsigned long long)load.n_done, (unsigned long long)load.n_tokens,
        service_logged(&v, "no heartbeat"));
    assert_true(load.n_done > 0 && load.resumed == 0);
    assert_int_equal(service_logged(&v, "; killing pid"), 0);
    assert_int_equal(service_logged(&v, ": started, pid"), LOAD_MODELS);
    repeat_load_stop(&load);
}

int
main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        T(stopped_worker_is_killed_soon_without_delaying_others),
        T(no_slow_worker_is_killed),
    };

    torture_args(argc, argv,
                 (const struct torture_arg[]){ { "stops", &n_stops },
                                               { "watch", &n_watch },
                                               { "spinners", &n_spinners },
                                               { NULL, NULL } });
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
