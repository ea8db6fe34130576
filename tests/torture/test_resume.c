/* test_resume.c - real workers, killed at any instant: every result has the bits of an undisturbed
 * run.
 *
 * Three small models at once, greedy and sampled, one encoder-decoder, prompts longer than a chunk,
 * pools so small that blocks are reused all the time. First all requests run undisturbed; then they
 * repeat while their workers are killed, and each result is compared bit by bit. --kills and
 * --rounds are for check-long.
 */
#include "base/clock.h"
#include "tests/test.h"
#include "tests/torture/args.h"
#include "tests/torture/repeat_load.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

enum { SETTLE_MS = 60000, ROUND = 25 };
/* lagand keeps a result for 10 minutes (daemon/ledger.h), also in the ledger log: KEPT_KIB each. */
enum { PREEMPTED = 300 }; /* tokens of one preempted request */
enum { GROWTH_KIB = 4096, KEPT_KIB = 6, KEPT_MOST = 8192 };

static uint32_t n_kills = 100, n_rounds; /* 0 rounds: quick check */
static uint32_t n_actions = UINT32_MAX;  /* number of actions (kill, abort, ...) */
static uint32_t from, to = UINT32_MAX;   /* range of points */
static struct service v;
static struct repeat_load load;

/* A stopped worker is soon treated as hung. */
static const char *const hung_soon[] = { "--supervisor.stall-timeout", "1s", NULL };

static int
begin(void **state)
{
    (void)state;
    service_open(&v);
    return 0;
}

static int
finish(void **state)
{
    (void)state;
    repeat_load_close(&load);
    service_close(&v);
    return 0;
}

static void
kill_some(uint32_t kills)
{
    /* On a GPU a standby takes 1 s to start, three of them longer: some must be ready when their
     * worker is killed. */
    nsec next = 0, pace = strcmp(torture_device, "cpu") ? 15 : 1;

    for (uint32_t done = 0; done < kills;) {
        repeat_load_run(&load, 2, true);
        if (clock_now() < next) continue;
        next = clock_now() + test_below(200000) * NSEC_US * pace;
        done += service_kill_one(&v, 1);
    }
}

/* 99 % of the positions must be adopted, and of each request at most one step recomputed. Blocks of
 * a preempted request may be reused before it resumes. */
static void
check_adopted(void)
{
    uint64_t adopted = repeat_load_total(&load, "adopted"),
             recomputed = repeat_load_total(&load, "recomputed");

    print_message("%llu recoverable positions, %llu of them recomputed\n",
                  (unsigned long long)(adopted + recomputed), (unsigned long long)recomputed);
    assert_true(recomputed * 100 <= adopted + recomputed + 100 * PREEMPTED);
    assert_true(service_logged(&v, "positions that the previous worker had computed") * 100 <=
                load.resumed);
}

static void
kill_workers(const char *dtype, uint32_t standby)
{
    struct census first = { 0 };
    uint32_t done = 0, ready, reuse, cached;
    nsec since;

    repeat_load_start(&load, &v, dtype, standby, NULL);
    since = clock_now();
    while (torture_more("kills of real workers", done, n_kills)) {
        uint32_t n = MIN(n_kills - done, (uint32_t)ROUND);

        kill_some(n);
        repeat_load_settle(&load);
        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers are missing");
        service_recount(&v, &first,
                        GROWTH_KIB + KEPT_KIB * (uint32_t)MIN(load.n_done, (uint64_t)KEPT_MOST));
        done += n;
    }
    print_message(
        "%s: %u kills in %.1f s: %llu results, %llu tokens; %llu times resumed, KV of %llu "
        "tokens adopted, %llu recomputed\n",
        dtype, done, (double)(clock_now() - since) / NSEC_S, (unsigned long long)load.n_done,
        (unsigned long long)load.n_tokens, (unsigned long long)load.resumed,
        (unsigned long long)load.adopted, (unsigned long long)load.recomputed);
    check_adopted();
    assert_true(load.resumed > done /
                                   /* standbys are killed too, without any request */
                                   (4 + 4 * repeat_load_standbys(standby)));
    /* Relative to workers that became ready and not to kills, because on a slow machine most are
     * killed before READY. Each replacement of the two models with reuse finds cached blocks. */
    ready = service_logged(&v, ": ready in");
    reuse = service_logged(&v, "w0: ready in") + service_logged(&v, "w1: ready in") - 2;
    cached = service_logged(&v, "blocks of the prefix cache");
    print_message("%u workers became ready, %u replacements with reuse; %u adopted cached blocks\n",
                  ready, reuse, cached);
    if (standby) assert_true(service_logged(&v, "the standby takes over") > ready / 8);
    assert_true(cached >= reuse - reuse / 10);
    assert_int_equal(service_logged(&v, "the manifest has "), 0);
    repeat_load_stop(&load);
}

static void
killed_workers_give_equal_bits_and_adopt_99_percent(void **state)
{
    (void)state;
    kill_workers("fp32", 0);
}

/* With steps of both lanes in flight that wait for each other, and changing partitions. */
static void
killed_workers_with_lanes_and_standbys_do_as_well(void **state)
{
    (void)state;
    load.lanes = true;
    kill_workers("bf16", 1);
}

/* ---- at every point */

static const enum failpoint points[] = {
    FP_worker_main,     FP_worker_attached, FP_load_device,     FP_load_steps,
    FP_load_weights,    FP_load_kv,         FP_load_done,       FP_fd_passed,
    FP_ready_reported,  FP_host_mapping,    FP_host_mapped,     FP_loop_published,
    FP_ring_tail_seen,  FP_ring_copied,     FP_ring_releasing,  FP_ring_released,
    FP_intake_taken,    FP_manifest_stored, FP_step_planned,    FP_step_launched,
    FP_step_finished,   FP_step_committed,  FP_step_emitted,    FP_step_recording,
    FP_ring_reserved,   FP_outbox_copied,   FP_ring_publishing, FP_ring_published,
    FP_doorbell_fenced, FP_doorbell_sent,   FP_sleep_announced, FP_sleep_entered,
    FP_sleep_left,      FP_stat_writing,    FP_finish_reported,
};
enum { FAULTS = 4 }; /* per lagand: after 5 before READY lagand stops restarting the worker */

static void
pass_point(enum failpoint p, enum fp_action a)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
    bool of_tier = p == FP_host_mapping || p == FP_host_mapped;

    repeat_load_run(&load, 2, true);
    if (of_tier) { /* a worker with finished requests has a host tier; the next one maps it */
        repeat_load_settle(&load);
        repeat_load_run(&load, 2, true);
    }
    service_arm(&v, FP_WORKER, p, a, 1 + test_below(p <= FP_host_mapped ? 1 : 20));
    /* a standby does not load again */
    if (of_tier || (p <= FP_ready_reported && repeat_load_standbys(0)))
        kill(service_pid(&v, "w0"), SIGKILL);
    else if (p <= FP_ready_reported)
        service_kill_one(&v, 1);
    while (atomic_load(&v.board->fp.slot[FP_WORKER][p].left)) {
        repeat_load_run(&load, 2, true);
        if (service_now(&v) >= until) fail_msg("failpoint %s was not reached", failpoint_name(p));
    }
    /* Requests are quarantined for faults of their worker, not for external kills, and may survive
     * many of them. */
    if (a != FP_KILL || test_below(8) == 0) repeat_load_settle(&load);
}

static void
worker_failing_at_every_point_changes_no_bit(void **state)
{
    /* Without FP_STOP the default timeout is used, so that a machine that is busy for 1 s causes no
     * timeouts. */
    const char *const *args = n_actions >= FP_STOP ? hung_soon : NULL;
    uint32_t faults = 0;

    (void)state;
    repeat_load_start(&load, &v, "fp32", 0, args);
    to = MIN(to, MAX(n_rounds, 1u) * (uint32_t)ARRAY_LEN(points));
    for (uint32_t i = from; torture_more("points", i, to); i++)
        for (enum fp_action a = FP_KILL; a < FP_DELAY && a - FP_KILL < n_actions; a++) {
            /* The quick check runs 2 of the 4 actions at each point, --rounds all. */
            if (!n_rounds && a != FP_KILL && (uint32_t)a != FP_ABORT + test_below(3)) continue;
            pass_point(points[i % ARRAY_LEN(points)], a);
            if (a == FP_KILL || ++faults % FAULTS) continue;
            repeat_load_stop(&load);
            repeat_load_start(&load, &v, "fp32", 0, args);
        }
    repeat_load_settle(&load);
    service_print_fired(&v, FP_WORKER, points, ARRAY_LEN(points));
    repeat_load_stop(&load);
}

/* Sends an operator command; its reply does not matter. */
static void
operate(const char *verb)
{
    char endpoint[128], *reply = NULL;
    struct lagan *ctl;
    uint32_t code;

    snprintf(endpoint, sizeof endpoint, "ipc://%s/ctl.sock", v.run);
    if (lagan_open(&ctl, endpoint, 20000) < 0) fail_msg("%s", lagan_errmsg(NULL));
    lagan_call(ctl, verb, "{\"worker\":\"w0\"}", &reply, &code, 20000);
    free(reply);
    lagan_close(ctl);
}

/* Waits until the point has fired. Repeats the command unless a worker is starting: a starting
 * worker does not reply, and a restart would start it again and again if a drain exceeded its
 * timeout. */
static void
await(enum failpoint p, const char *verb)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    while (atomic_load(&v.board->fp.slot[FP_WORKER][p].left)) {
        if (verb && service_all_ready(&v, 0)) operate(verb);
        repeat_load_run(&load, 20, false);
        if (service_now(&v) >= until) fail_msg("failpoint %s was not reached", failpoint_name(p));
    }
}

static void
worker_may_fail_while_draining_replying_or_writing_panic_message(void **state)
{
    (void)state;
    repeat_load_start(&load, &v, "fp32", 0, hung_soon);
    for (enum fp_action a = FP_KILL; a < FP_DELAY; a++)
        for (enum failpoint p = FP_control_sending; p <= FP_drain_done; p++) {
            repeat_load_run(&load, 0, true);
            service_arm(&v, FP_WORKER, p, a, 1);
            await(p, p == FP_control_sending ? "tune status" : "restart");
            repeat_load_settle(&load);
        }
    repeat_load_stop(&load);
    repeat_load_start(&load, &v, "fp32", 0, hung_soon);
    for (enum fp_action a = FP_KILL; a < FP_DELAY; a++) {
        repeat_load_run(&load, 0, true);
        service_arm(&v, FP_WORKER, FP_panic_writing, a, 1);
        service_arm(&v, FP_WORKER, FP_step_launched, FP_ABORT, 1);
        await(FP_panic_writing, NULL);
        repeat_load_settle(&load);
    }
    assert_true(service_logged(&v, "panic message (incomplete)"));
    repeat_load_stop(&load);
}

/* A SIGSEGV of a lane's thread on the CPU, an illegal access on a GPU. */
static void
nothing_is_adopted_after_a_stray_device_write(void **state)
{
    (void)state;
    repeat_load_start(&load, &v, "bf16", 0, NULL);
    repeat_load_run(&load, 0, true);
    if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers or standbys are missing");
    service_arm(&v, FP_WORKER, FP_step_queued, FP_INJECT, 1 + test_below(20));
    await(FP_step_queued, NULL);
    repeat_load_settle(&load);
    assert_int_equal(service_logged(&v, strcmp(torture_device, "cpu")
                                            ? "died (device): exit status 74"
                                            : "died (signal): signal 11"),
                     1);
    assert_true(load.resumed > 0);
    assert_int_equal(load.adopted, 0);
    repeat_load_stop(&load);
}

/* Waits for the log line of the next host tier. */
static void
await_tier(uint32_t lines)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    while (service_logged(&v, "w0: host tier ready") < lines) {
        if (service_now(&v) >= until) fail_msg("no host tier");
        repeat_load_run(&load, 2, true);
    }
    repeat_load_settle(&load);
}

/* Requests repeat, so results with and without cached blocks must have equal bits. */
static void
requests_resume_before_the_host_tier_is_mapped(void **state)
{
    static const enum failpoint half[] = { FP_host_mapping, FP_host_mapped };
    _Atomic uint32_t *held = &v.board->fp.slot[FP_WORKER][FP_host_mapping].action;
    uint32_t lines, empty; /* a slow machine may cause further restarts */

    (void)state;
    repeat_load_start(&load, &v, "fp32", 0, NULL);
    for (int i = 0; i < 2; i++) {
        repeat_load_run(&load, 0, true);
        repeat_load_settle(&load);
    }
    assert_true(repeat_load_counted(&load, "blocks_offloaded", 0) > 0);
    /* Mapped as it is used; on a GPU, with pieces of 2 MiB, the first piece suffices. */
    assert_true(strcmp(torture_device, "cpu") ||
                service_logged(&v, " MiB of the host tier are mapped now") > 0);
    lines = service_logged(&v, "w0: host tier ready");
    empty = service_logged(&v, ", 0 cached blocks");
    repeat_load_run(&load, 0, true);
    service_arm(&v, FP_WORKER, FP_host_mapping, FP_HOLD, 1);
    kill(service_pid(&v, "w0"), SIGKILL);
    for (int i = 0; i < 2; i++) {
        repeat_load_settle(&load);
        repeat_load_run(&load, 0, true);
    }
    repeat_load_settle(&load);
    assert_int_equal(repeat_load_counted(&load, "blocks_onboarded", 0), 0);
    assert_int_equal(service_logged(&v, "w0: host tier ready"), lines);
    kill(service_pid(&v, "w0"), SIGKILL); /* during mapping; then at the points */
    for (uint32_t i = 0; i < ARRAY_LEN(half); i++) {
        atomic_store(held, 0);
        await_tier(++lines);
        service_arm(&v, FP_WORKER, half[i], FP_KILL, 1);
        kill(service_pid(&v, "w0"), SIGKILL);
        await(half[i], NULL);
    }
    await_tier(++lines);
    assert_int_equal(service_logged(&v, ", 0 cached blocks"), empty);
    repeat_load_run(&load, 0, true), repeat_load_settle(&load);
    assert_true(repeat_load_counted(&load, "blocks_onboarded", 0) > 0);
    repeat_load_stop(&load);
}

static void
host_tier_that_cannot_be_mapped_is_replaced(void **state)
{
    uint32_t lines, empty;

    (void)state;
    repeat_load_start(&load, &v, "fp32", 0, NULL);
    for (int i = 0; i < 2; i++) {
        repeat_load_run(&load, 0, true);
        repeat_load_settle(&load);
    }
    lines = service_logged(&v, "w0: host tier ready");
    empty = service_logged(&v, ", 0 cached blocks");
    for (uint32_t i = 1; i <= 3; i++) {
        repeat_load_run(&load, 0, true);
        service_arm(&v, FP_WORKER, FP_host_mapping, FP_INJECT, 1);
        kill(service_pid(&v, "w0"), SIGKILL);
        await_tier(++lines);
        assert_int_equal(service_logged(&v, ", 0 cached blocks"), empty + i);
        kill(service_pid(&v, "w0"), SIGKILL); /* the next worker adopts the new tier */
        await_tier(++lines);
    }
    assert_int_equal(service_logged(&v, ", 0 cached blocks"), empty + 3);
    repeat_load_stop(&load);
}

/* The standby has mapped the weights before the fault: it maps them again and adopts no KV. */
static void
standby_replacing_a_faulty_worker_changes_no_bit(void **state)
{
    (void)state;
    repeat_load_start(&load, &v, "fp32", 1, NULL);
    for (uint32_t faults = 1; faults <= 2; faults++) {
        repeat_load_run(&load, 0, true);
        service_arm(&v, FP_WORKER, FP_step_launched, FP_ABORT, 1 + test_below(20));
        await(FP_step_launched, NULL);
        repeat_load_settle(&load);
        assert_int_equal(service_logged(&v, "the standby takes over"), faults);
        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers or standbys are missing");
    }
    assert_int_equal(service_logged(&v, "died (signal)"), 2);
    assert_true(load.resumed > 0);
    assert_int_equal(load.adopted, 0);
    /* A restart uses the installed program and files, so it must not use a standby that has opened
     * the old ones. */
    operate("restart");
    for (nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
         !service_logged(&v, "w0.standby: pid");) {
        if (service_now(&v) >= until) fail_msg("the standby survived a restart");
        repeat_load_run(&load, 20, false);
    }
    if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers or standbys are missing");
    assert_int_equal(service_logged(&v, "the standby takes over"), 2);
    repeat_load_stop(&load);
}

/* While its worker runs, a standby may lack device memory for its context or for its steps. */
static void
standby_without_device_memory_waits_for_its_worker(void **state)
{
    static const enum failpoint lacks[] = { FP_load_device, FP_load_steps };
    enum { ROUNDS = 4 };

    (void)state;
    repeat_load_start(&load, &v, "fp32", 1, NULL);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        enum failpoint p = lacks[i % ARRAY_LEN(lacks)];
        uint32_t begun;

        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers or standbys are missing");
        begun = service_logged(&v, "w0.standby: started");
        repeat_load_run(&load, 0, true);
        service_arm(&v, FP_WORKER, p, FP_INJECT, 1);
        kill(service_pid(&v, "w0"), SIGKILL);
        await(p, NULL); /* fired by the new standby, or by the old one if it had not loaded yet */
        for (nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
             service_logged(&v, "w0.standby: started") == begun;) {
            if (service_now(&v) >= until) fail_msg("no standby was started");
            repeat_load_run(&load, 20, false);
        }
        kill(service_pid(&v, "w0"), SIGKILL);
        repeat_load_settle(&load);
        /* More if a worker without CPU time was treated as hung. */
        assert_true(service_logged(&v, "the standby takes over") >= 2 * (i + 1));
    }
    assert_int_equal(service_logged(&v, "died (killed)"), 2 * ROUNDS);
    assert_int_equal(service_logged(&v, "w0.standby: pid"), 0); /* no standby has died */
    repeat_load_stop(&load);
}

int
main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        T(killed_workers_give_equal_bits_and_adopt_99_percent),
        T(killed_workers_with_lanes_and_standbys_do_as_well),
        T(worker_failing_at_every_point_changes_no_bit),
        T(nothing_is_adopted_after_a_stray_device_write),
        T(requests_resume_before_the_host_tier_is_mapped),
        T(host_tier_that_cannot_be_mapped_is_replaced),
        T(standby_replacing_a_faulty_worker_changes_no_bit),
        T(standby_without_device_memory_waits_for_its_worker),
        T(worker_may_fail_while_draining_replying_or_writing_panic_message),
    };

    torture_args(argc, argv,
                 (const struct torture_arg[]){ { "kills", &n_kills },
                                               { "rounds", &n_rounds },
                                               { "actions", &n_actions },
                                               { "from", &from },
                                               { "to", &to },
                                               { NULL, NULL } });
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
