/* test_kill.c - lagand and its workers, killed at any instant: every request continues and no
 * resource leaks.
 *
 * The real lagand with workers without a model (mock_worker.c). Kills come from outside at random
 * times and from inside at the points of base/failpoint.h; rings are small, so that they wrap and
 * fill. --kills, --pairs, --daemons and --rounds are for check-long.
 */
#include "base/clock.h"
#include "tests/test.h"
#include "tests/torture/args.h"
#include "tests/torture/service.h"
#include "tests/torture/streams.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

enum { WORKERS = 48, STREAMS = 128, TOKENS = 64, ROUND = 1000, SETTLE_MS = 30000 };
enum { PACE_US = 10000, GROWTH_KIB = 4096 };
#define ARGS(...) \
    (const char *const[]) \
    { \
        __VA_ARGS__, NULL \
    }

static uint32_t n_kills = 20000, n_pairs = 2000, n_daemons = 300, n_rounds = 1;
static uint32_t n_actions = UINT32_MAX; /* number of actions (kill, abort, ...) */
static struct service v;
static struct streams s;

static int
begin(void **state)
{
    (void)state;
    service_open_mocks(&v, PACE_US);
    return 0;
}

static int
finish(void **state)
{
    (void)state;
    streams_close(&s);
    service_close(&v);
    return 0;
}

static void
settle(void)
{
    if (streams_settle(&s, &v, SETTLE_MS)) return;
    service_print_log(&v, 40);
    for (uint32_t i = 0; i < s.n; i++)
        if (s.stream[i].id)
            fail_msg("%u streams have stopped, the first is request %llu", s.n_open,
                     (unsigned long long)s.stream[i].id);
}

static void
run_for(uint32_t us)
{
    nsec until = clock_now() + us * NSEC_US;

    do streams_run(&s, 1, true);
    while (clock_now() < until);
}

/* ---- workers */

/* Failpoints of mock_worker. */
static const enum failpoint mocks_points[] = {
    FP_worker_main,    FP_worker_attached, FP_load_done,     FP_fd_passed,       FP_ring_tail_seen,
    FP_ring_copied,    FP_ring_releasing,  FP_ring_released, FP_ring_reserved,   FP_ring_publishing,
    FP_ring_published, FP_doorbell_fenced, FP_doorbell_sent, FP_sleep_announced, FP_sleep_entered,
    FP_sleep_left,     FP_stat_writing,    FP_step_planned,  FP_step_emitted,
};

static uint32_t
fired(void)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ARRAY_LEN(mocks_points); i++)
        n += atomic_load(&v.board->fp.slot[FP_WORKER][mocks_points[i]].fired);
    return n;
}

/* Kills workers as fast as replacements start; 1/3 of them at a random point of the protocol, in
 * the first worker that reaches it. */
static void
kill_some(uint32_t kills)
{
    uint32_t done = 0, before = fired();
    nsec next = clock_now();

    while (done + fired() - before < kills) {
        enum failpoint p = mocks_points[test_below(ARRAY_LEN(mocks_points))];

        streams_run(&s, 1, true);
        if (clock_now() < next) continue;
        next = clock_now() + test_below(2000) * NSEC_US;
        if (test_below(3) == 0) service_arm(&v, FP_WORKER, p, FP_KILL, 1 + test_below(30));
        done += service_kill_one(&v, WORKERS / 4);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(mocks_points); i++)
        service_disarm(&v, FP_WORKER, mocks_points[i]);
}

static int
by_size(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void
print_waits(void)
{
    static uint32_t wait[MOCK_WAITS];
    uint32_t n = MIN(atomic_load(&v.board->n_waits), (uint32_t)MOCK_WAITS);

    if (!n) return;
    for (uint32_t i = 0; i < n; i++) wait[i] = atomic_load(&v.board->wait_us[i]);
    qsort(wait, n, sizeof *wait, by_size);
    print_message("kill to its requests with another worker: p50 %u us, p99 %u us, of %u\n",
                  wait[n / 2], wait[n - 1 - n / 100], n);
}

static void
killed_worker_loses_repeats_and_reorders_no_token(void **state)
{
    /* taken after the first round, when buffers have their final size */
    struct census first = { 0 };
    uint32_t done = 0;
    nsec since;

    (void)state;
    service_start(&v, WORKERS, NULL, NULL);
    streams_open(&s, v.endpoint, STREAMS, TOKENS);
    for (int i = 0; i < 200; i++) streams_run(&s, 1, true);
    settle();
    since = clock_now();
    while (torture_more("kills", done, n_kills)) {
        uint32_t n = MIN(n_kills - done, (uint32_t)ROUND);

        kill_some(n);
        settle();
        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers are missing");
        service_recount(&v, &first, GROWTH_KIB);
        done += n;
    }
    print_message("%u kills, %u of them at a failpoint, in %.1f s; %llu requests, %llu tokens, "
                  "%u resumed\n",
                  done, fired(), (double)(clock_now() - since) / NSEC_S,
                  (unsigned long long)s.history.n_done, (unsigned long long)s.history.n_tokens,
                  atomic_load(&v.board->n_resumed));
    service_print_fired(&v, FP_WORKER, mocks_points, ARRAY_LEN(mocks_points));
    print_waits();
    service_stop(&v);
}

/* Standbys are killed as often as workers, at random instants. */
static void
killed_worker_or_standby_loses_repeats_and_reorders_no_token(void **state)
{
    enum { PAIRS = 24 };
    uint32_t done = 0;
    struct census first = { 0 };

    (void)state;
    v.n_standbys = PAIRS;
    service_start(&v, PAIRS, NULL, (const char *const[]){ "--set", "standby=1", NULL });
    streams_open(&s, v.endpoint, STREAMS, TOKENS);
    for (int i = 0; i < 200; i++) streams_run(&s, 1, true);
    while (torture_more("kills of pairs", done, n_pairs)) {
        uint32_t n = MIN(n_pairs - done, (uint32_t)ROUND / 2);

        kill_some(n);
        settle();
        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers or standbys are missing");
        service_recount(&v, &first, GROWTH_KIB);
        done += n;
    }
    print_message(
        "%u kills of pairs; %llu requests, %llu tokens, %u resumed, %u standbys took over\n", done,
        (unsigned long long)s.history.n_done, (unsigned long long)s.history.n_tokens,
        atomic_load(&v.board->n_resumed), service_logged(&v, "the standby takes over"));
    print_waits();
    assert_true(atomic_load(&v.board->n_resumed) > done / 100);
    assert_true(service_logged(&v, "the standby takes over") > done / 100);
    assert_true(service_logged(&v, "no request is affected") > done / 100);
    service_stop(&v);
}

/* Measures the time from a kill to the resumed request, without other load. */
static void
requests_of_a_killed_worker_move_to_another_soon(void **state)
{
    enum { KILLS = 200, APART_US = 25000 };

    (void)state;
    service_start(&v, 16, NULL, NULL);
    streams_open(&s, v.endpoint, 64, TOKENS);
    for (uint32_t done = 0; done < KILLS; done += service_kill_one(&v, 1)) run_for(APART_US);
    settle();
    print_waits();
    assert_true(atomic_load(&v.board->n_waits) > KILLS);
    service_stop(&v);
}

/* Checks that the point fires and all requests continue. Requests are short and end before the next
 * death, so none is quarantined for two deaths. */
static void
pass_point(enum failpoint p, enum fp_action a)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    settle();
    service_arm(&v, FP_WORKER, p, a, 1 + test_below(3));
    while (atomic_load(&v.board->fp.slot[FP_WORKER][p].left)) {
        streams_run(&s, 2, true);
        /* Only starting workers reach the points of a start. */
        if (p <= FP_fd_passed && test_below(8) == 0) service_kill_one(&v, 2);
        if (service_now(&v) >= until) fail_msg("failpoint %s was not reached", failpoint_name(p));
    }
    settle();
}

static void
worker_may_fail_at_every_point(void **state)
{
    static const char *const words[] = { "", "kill", "abort", "stop", "exit", "delay" };

    (void)state;
    for (uint32_t round = 0; torture_more("rounds", round, n_rounds); round++)
        for (enum fp_action a = FP_KILL; a < FP_ACTIONS && a - FP_KILL < n_actions; a++) {
            /* A stopped worker is soon treated as hung. Each action has its own lagand, because
             * lagand stops restarting a worker after many faults. */
            service_start(&v, 16, NULL,
                          ARGS("--supervisor.stall-timeout", a == FP_STOP ? "300ms" : "10s"));
            streams_open(&s, v.endpoint, 32, 12);
            for (uint32_t i = 0; i < ARRAY_LEN(mocks_points); i++) pass_point(mocks_points[i], a);
            print_message("%s at %zu points: %llu requests\n", words[a], ARRAY_LEN(mocks_points),
                          (unsigned long long)s.history.n_done);
            streams_close(&s);
            service_stop(&v);
        }
    service_print_fired(&v, FP_WORKER, mocks_points, ARRAY_LEN(mocks_points));
}

static void
only_a_prompt_that_kills_workers_is_poisoned(void **state)
{
    (void)state;
    service_start(&v, 6, NULL, NULL);
    streams_open(&s, v.endpoint, 32, TOKENS);
    for (uint32_t i = 1; i <= 3; i++) {
        for (uint32_t k = 0; k < 31; k++) streams_submit(&s, false);
        streams_submit(&s, true);
        settle();
        assert_int_equal(s.n_poisoned, i);
        assert_int_equal(s.history.n_failed, i);
    }
    service_stop(&v);
}

/* A killed process under a debugger cannot be reaped until the debugger detaches. */
static void
worker_that_dies_under_a_debugger_is_reaped_after_detach(void **state)
{
    (void)state;
    service_start(&v, 2, NULL, NULL);
    streams_open(&s, v.endpoint, 16, TOKENS);
    for (uint32_t i = 0; i < 3; i++) {
        pid_t pid = atomic_load(&v.board->pid[0]);

        run_for(20000);
        if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0) skip();
        kill(pid, SIGKILL);
        run_for(100000);
        assert_int_equal(waitpid(pid, NULL, __WALL), pid);
        settle();
        assert_true(service_all_ready(&v, 5000)); /* it is LOST after 10 s */
    }
    service_stop(&v);
}

/* ---- lagand */

static void
killed_lagand_leaves_no_process_and_no_file(void **state)
{
    struct census first = { 0 };
    uint32_t done;

    (void)state;
    service_start(&v, 4, NULL, NULL);
    streams_open(&s, v.endpoint, 32, TOKENS);
    run_for(50000);
    settle();
    service_recount(&v, &first, GROWTH_KIB);
    for (done = 0; torture_more("kills of lagand", done, n_daemons); done++) {
        run_for(test_below(20000));
        kill(v.pid, SIGKILL);
        assert_true(WIFSIGNALED(service_reap(&v)));
        streams_reconnect(&s);
        service_start(&v, 4, NULL, NULL);
    }
    run_for(50000);
    settle();
    service_recount(&v, &first, GROWTH_KIB);
    print_message("%u kills of lagand\n", done);
    service_stop(&v);
}

static const enum failpoint lagands_points[] = {
    FP_spawn_child,     FP_spawn_exec,     FP_spawned,         FP_fd_passed,     FP_ring_tail_seen,
    FP_ring_copied,     FP_ring_releasing, FP_ring_released,   FP_relay_taken,   FP_ring_reserved,
    FP_ring_publishing, FP_ring_published, FP_doorbell_fenced, FP_doorbell_sent, FP_sleep_announced,
    FP_sleep_entered,   FP_sleep_left,     FP_front_decoded,   FP_front_taken,   FP_front_accepted,
    FP_relay_giving,    FP_deliver_chunk,  FP_deliver_last,    FP_reap_began,    FP_reap_drained,
    FP_loop_done,
};

static const uint32_t n_points = ARRAY_LEN(lagands_points);

/* Points in a vfork() child run before exec while lagand waits for it: the child may die there,
 * which is a failed start, but must not stop. */
static bool
in_child(enum failpoint p)
{
    return p == FP_spawn_child || p == FP_spawn_exec;
}

static void
fire_in_lagand(enum failpoint p, enum fp_action a)
{
    struct fp_slot *f = &v.board->fp.slot[FP_LAGAND][p];
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    service_arm(&v, FP_LAGAND, p, a, 1 + test_below(8));
    while (atomic_load(&f->left)) {
        streams_run(&s, 2, true);
        if (test_below(4) == 0) service_kill_one(&v, 2);
        if (service_now(&v) >= until) fail_msg("failpoint %s was not reached", failpoint_name(p));
    }
}

static void
lagand_may_be_killed_abort_or_exit_at_every_point(void **state)
{
    static const enum fp_action actions[] = { FP_KILL, FP_ABORT, FP_EXIT };

    (void)state;
    service_start(&v, 4, NULL, NULL);
    streams_open(&s, v.endpoint, 16, 12);
    for (uint32_t i = 0; torture_more("points", i, n_rounds * n_points); i++)
        for (uint32_t k = 0; k < MIN(n_actions, (uint32_t)ARRAY_LEN(actions)); k++) {
            enum failpoint p = lagands_points[i % n_points];

            fire_in_lagand(p, actions[k]);
            if (in_child(p)) {
                settle();
                continue;
            }
            assert_int_not_equal(service_reap(&v), 0);
            streams_reconnect(&s);
            service_start(&v, 4, NULL, NULL);
        }
    settle();
    service_print_fired(&v, FP_LAGAND, lagands_points, n_points);
    service_stop(&v);
}

static void
lagand_may_hang_at_every_point_without_losing_a_token(void **state)
{
    static const enum fp_action actions[] = { FP_STOP, FP_DELAY };

    (void)state;
    service_start(&v, 8, NULL, NULL);
    streams_open(&s, v.endpoint, 32, 12);
    for (uint32_t i = 0; torture_more("points", i, n_rounds * n_points); i++)
        for (uint32_t k = 0; k < ARRAY_LEN(actions); k++) {
            enum failpoint p = lagands_points[i % n_points];

            if (in_child(p)) continue;
            fire_in_lagand(p, actions[k]);
            run_for(30000);
            kill(v.pid, SIGCONT);
            settle();
        }
    service_stop(&v);
}

int
main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        T(killed_worker_loses_repeats_and_reorders_no_token),
        T(killed_worker_or_standby_loses_repeats_and_reorders_no_token),
        T(requests_of_a_killed_worker_move_to_another_soon),
        T(worker_may_fail_at_every_point),
        T(only_a_prompt_that_kills_workers_is_poisoned),
        T(worker_that_dies_under_a_debugger_is_reaped_after_detach),
        T(killed_lagand_leaves_no_process_and_no_file),
        T(lagand_may_be_killed_abort_or_exit_at_every_point),
        T(lagand_may_hang_at_every_point_without_losing_a_token),
    };

    torture_args(argc, argv,
                 (const struct torture_arg[]){ { "kills", &n_kills },
                                               { "pairs", &n_pairs },
                                               { "daemons", &n_daemons },
                                               { "rounds", &n_rounds },
                                               { "actions", &n_actions },
                                               { NULL, NULL } });
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
