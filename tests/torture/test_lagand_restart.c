/* test_lagand_restart.c - a sequence of lagands with a systemd that keeps their descriptors: killed
 * while writing the ledger log, during re-exec, and while the next one reads the log. No request is
 * lost.
 *
 * Requests use liblagan, which reconnects by itself; every token is compared with mock_worker's
 * (mock.h), and no request may end with an error.
 */
#include "base/clock.h"
#include "include/lagan.h"
#include "tests/test.h"
#include "tests/torture/args.h"
#include "tests/torture/service.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>

enum { WORKERS = 4, STREAMS = 24, TOKENS = 64, PROMPT = 3, SETTLE_MS = 60000 };
/* lagand keeps a result for 10 minutes (daemon/ledger.h), also in the ledger log: KEPT_KIB each. */
enum { GROWTH_KIB = 4096, KEPT_KIB = 2, KEPT_MOST = 8192 };
enum { CALL_MS = 200 }; /* for a reply that a killed lagand never sends */

static uint32_t n_rounds = 1, n_kills = 20,
                n_actions = UINT32_MAX; /* number of actions (kill, abort, ...) */
static struct service v;
static struct systemd systemd;
static struct lagan *c;
static struct stream {
    uint64_t id, seed; /* id 0: not running */
    uint32_t n;
} streams[STREAMS];
static uint64_t n_asked, n_done, n_tokens, n_resumed;

static int
begin(void **state)
{
    (void)state;
    service_open_mocks(&v, 10000);
    systemd_open(&systemd, v.dir);
    v.systemd = &systemd;
    n_asked = n_done = n_tokens = n_resumed = 0;
    for (uint32_t i = 0; i < STREAMS; i++) streams[i] = (struct stream){ .id = 0 };
    service_start(&v, WORKERS, NULL, NULL);
    if (lagan_open(&c, v.endpoint, 20000) < 0) fail_msg("%s", lagan_errmsg(NULL));
    return 0;
}

static int
finish(void **state)
{
    (void)state;
    lagan_close(c);
    c = NULL;
    systemd_close(&systemd);
    service_close(&v);
    return 0;
}

/* ---- requests */

static void
ask(struct stream *s)
{
    static const int32_t ids[PROMPT] = { 1, 2, 3 };
    struct lagan_request *q = lagan_request_new();

    assert_non_null(q);
    *s = (struct stream){ .seed = ++n_asked };
    lagan_set_ids(q, "ids", ids, PROMPT);
    lagan_set_int(q, "max_tokens", TOKENS);
    lagan_set_int(q, "seed", (int64_t)s->seed);
    lagan_set_bool(q, "ignore_eos", 1);
    assert_int_equal(lagan_submit(c, q, &s->id), 0);
    lagan_request_free(q);
}

static void
take(const struct lagan_event *e)
{
    struct stream *s = streams;

    while (s < streams + STREAMS && s->id != e->id) s++;
    assert_true(s < streams + STREAMS);
    if (e->kind == LAGAN_EVENT_ERROR) {
        service_print_log(&v, 40);
        fail_msg("request %llu: %s: %s", (unsigned long long)s->seed, e->reason_name, e->message);
    }
    if (e->kind == LAGAN_EVENT_TOKENS) {
        assert_int_equal(e->first, s->n);
        for (uint32_t i = 0; i < e->n_ids; i++)
            assert_int_equal(e->ids[i], mock_token(s->seed, s->n + i));
        s->n += (uint32_t)e->n_ids;
        n_tokens += e->n_ids;
    }
    if (e->kind == LAGAN_EVENT_OUTPUT) n_resumed += e->resumed;
    if (e->kind != LAGAN_EVENT_DONE) return;
    assert_int_equal(s->n, TOKENS);
    s->id = 0;
    n_done++;
}

/* Takes events for `ms`; more: first submits finished requests again. Returns the number of open
 * requests. */
static uint32_t
run_requests(int ms, bool more)
{
    struct lagan_event e = { .size = sizeof e };
    uint32_t open = 0;
    int r;

    for (uint32_t i = 0; more && i < STREAMS; i++)
        if (!streams[i].id) ask(&streams[i]);
    for (; (r = lagan_next(c, &e, ms)) > 0; ms = 0) take(&e);
    for (uint32_t i = 0; i < STREAMS; i++) open += streams[i].id != 0;
    return open;
}

static void
run_for(uint32_t us)
{
    nsec until = clock_now() + us * NSEC_US;

    do run_requests(1, true);
    while (clock_now() < until);
}

static void
settle(void)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
    uint32_t open;

    while ((open = run_requests(20, false))) {
        if (service_now(&v) < until) continue;
        service_print_log(&v, 40);
        fail_msg("%u requests have stopped", open);
    }
}

/* ---- lagand */

static void
reexec_lagand(void)
{
    char endpoint[128], *reply = NULL;
    struct lagan *ctl;
    uint32_t code;

    snprintf(endpoint, sizeof endpoint, "ipc://%s/ctl.sock", v.run);
    if (lagan_open(&ctl, endpoint, CALL_MS) < 0) return; /* the re-exec has already started */
    lagan_call(ctl, "daemon reexec", "{}", &reply, &code, CALL_MS);
    free(reply);
    lagan_close(ctl);
}

static void
restart(void)
{
    service_reap(&v);
    service_start(&v, WORKERS, NULL, NULL);
}

static const enum failpoint points[] = {
    FP_reexec_asked,     FP_reexec_workers_ended, FP_reexec_exec,
    FP_reexec_outlasted, FP_reexec_ledger_read,   FP_reexec_adopted,
    FP_log_switching,    FP_log_half_valid,       FP_log_switched,
    FP_log_written,      FP_log_record_whole,     FP_front_decoded,
    FP_front_taken,      FP_front_accepted,       FP_relay_giving,
    FP_relay_taken,      FP_deliver_chunk,        FP_deliver_last,
    FP_reap_began,       FP_reap_drained,         FP_spawned,
    FP_loop_done,
};
enum { N_REEXEC_POINTS = 9 }; /* the first points, which a re-exec reaches */

/* Arms the point and waits until it has fired. */
static void
fire(uint32_t i, enum fp_action a)
{
    struct fp_slot *f = &v.board->fp.slot[FP_LAGAND][points[i]];
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    run_for(test_below(20000));
    service_arm(&v, FP_LAGAND, points[i], a, 1 + test_below(i < N_REEXEC_POINTS ? 1 : 30));
    while (atomic_load(&f->left)) {
        if (i < N_REEXEC_POINTS) reexec_lagand();
        run_requests(2, true);
        if (test_below(4) == 0) service_kill_one(&v, 2);
        if (service_now(&v) >= until)
            fail_msg("failpoint %s was not reached", failpoint_name(points[i]));
    }
}

static void
print_counts(void)
{
    print_message("%llu requests, %llu tokens, resumed %llu times\n", (unsigned long long)n_done,
                  (unsigned long long)n_tokens, (unsigned long long)n_resumed);
}

static void
lagand_failing_at_every_point_changes_no_request(void **state)
{
    static const enum fp_action actions[] = { FP_KILL, FP_ABORT, FP_EXIT };

    (void)state;
    for (uint32_t i = 0; torture_more("points", i, n_rounds * ARRAY_LEN(points)); i++)
        for (uint32_t k = 0; k < MIN(n_actions, (uint32_t)ARRAY_LEN(actions)); k++) {
            fire(i % ARRAY_LEN(points), actions[k]);
            restart();
        }
    settle();
    print_counts();
    service_print_fired(&v, FP_LAGAND, points, ARRAY_LEN(points));
    assert_true(n_resumed > 0);
    service_stop(&v);
}

static void
lagand_may_hang_at_every_point(void **state)
{
    static const enum fp_action actions[] = { FP_STOP, FP_DELAY };

    (void)state;
    for (uint32_t i = 0; torture_more("points", i, n_rounds * ARRAY_LEN(points)); i++)
        for (uint32_t k = 0; k < ARRAY_LEN(actions); k++) {
            fire(i % ARRAY_LEN(points), actions[k]);
            run_for(30000);
            kill(v.pid, SIGCONT);
            if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers are missing");
        }
    settle();
    print_counts();
    service_stop(&v);
}

static void
killed_or_reexecuted_lagand_leaks_nothing(void **state)
{
    struct census first = { 0 }; /* taken after one kill and one re-exec */
    uint32_t i;

    (void)state;
    for (i = 0; torture_more("replacements", i, n_kills); i++) {
        run_for(test_below(50000));
        if (i % 2) {
            kill(v.pid, SIGKILL);
            restart();
        } else {
            reexec_lagand();
        }
        run_for(50000);
        settle();
        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers are missing");
        if (i)
            service_recount(&v, &first,
                            GROWTH_KIB + KEPT_KIB * (uint32_t)MIN(n_done, (uint64_t)KEPT_MOST));
    }
    print_message("%u replacements\n", i);
    print_counts();
    service_stop(&v);
}

int
main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        T(lagand_failing_at_every_point_changes_no_request),
        T(lagand_may_hang_at_every_point),
        T(killed_or_reexecuted_lagand_leaks_nothing),
    };

    torture_args(argc, argv,
                 (const struct torture_arg[]){ { "rounds", &n_rounds },
                                               { "kills", &n_kills },
                                               { "actions", &n_actions },
                                               { NULL, NULL } });
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
