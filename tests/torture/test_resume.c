/* test_resume.c - real workers on the CPU, killed at any instant: every answer has the bits of an
 * undisturbed run.
 *
 * Three small models at once, greedy and sampled, encoder-decoder too, prompts longer than a chunk, pools
 * so small that blocks change hands all the time. First all requests run alone; then they run again and
 * again while their workers die, and each answer is compared token by token and bit by bit.
 * --kills and --rounds are for check-long.
 */
#include "base/clock.h"
#include "tests/test.h"
#include "tests/torture/repeat_load.h"
#include "tests/torture/args.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETTLE_MS = 60000, ROUND = 25 };
/* An answer is kept for ten minutes, for a client that comes back: daemon/ledger.h; and in the mirror. */
enum { PAUSED = 300 }; /* tokens that one of them may have */
enum { GROWTH_KIB = 4096, KEPT_KIB = 6, KEPT_MOST = 8192 };

static uint32_t n_kills = 100, n_rounds; /* no round: a quick one */
static uint32_t n_actions = UINT32_MAX;  /* so many of kill, abort, ... */
static uint32_t from, to = UINT32_MAX;   /* of the points: those */
static struct service v;
static struct repeat_load load;

/* A stopped worker is hung, and soon dead. */
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
    /* A GPU's standby takes a second to come, three of them longer: some are to be there when their worker dies. */
    nsec next = 0, pace = strcmp(torture_device, "cpu") ? 15 : 1;

    for (uint32_t done = 0; done < kills;) {
        repeat_load_run(&load, 2, true);
        if (clock_now() < next) continue;
        next = clock_now() + test_below(200000) * NSEC_US * pace;
        done += service_kill_one(&v, 1);
    }
}

/* Of all that was written, by whoever died later: 99 of 100 positions, and of no row more than a step. What a paused one
 * had left on the device may be anybody's before it goes on. */
static void
check_adopted(void)
{
    uint64_t adopted = repeat_load_total(&load, "adopted"),
             recomputed = repeat_load_total(&load, "recomputed");

    print_message("of %llu positions that were there %llu were computed again\n",
                  (unsigned long long)(adopted + recomputed), (unsigned long long)recomputed);
    assert_true(recomputed * 100 <= adopted + recomputed + 100 * PAUSED);
    assert_true(service_logged(&v, "adoptable positions do not fit") * 100 <= load.resumed);
}

static void
kill_workers(const char *dtype, uint32_t standby)
{
    struct census first = { 0 };
    uint32_t done = 0, ready;
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
        "%s: %u kills in %.1f s: %llu answers, %llu tokens; %llu times resumed, KV of %llu "
        "tokens adopted, of %llu computed again\n",
        dtype, done, (double)(clock_now() - since) / NSEC_S, (unsigned long long)load.n_done,
        (unsigned long long)load.n_tokens, (unsigned long long)load.resumed,
        (unsigned long long)load.adopted, (unsigned long long)load.recomputed);
    check_adopted();
    assert_true(load.resumed >
                done /
                    (4 + 4 * repeat_load_standbys(standby))); /* it dies as often, and nobody resumes */
    /* Of those that came to be ready, and not of the kills: on a slow machine most die before that. Two of three models
     * have such blocks. */
    ready = service_logged(&v, ": ready in");
    if (standby) assert_true(service_logged(&v, "the standby takes over") > ready / 8);
    assert_true(service_logged(&v, "blocks of the prefix cache") > ready / 4);
    assert_int_equal(service_logged(&v, " in the manifest; "), 0);
    repeat_load_stop(&load);
}

static void
killed_workers_give_equal_bits_and_adopt_99_percent(void **state)
{
    (void)state;
    kill_workers("fp32", 0);
}

/* With steps of both lanes out, waiting for each other, and divisions that change. */
static void
killed_workers_with_lanes_and_standbys_do_as_well(void **state)
{
    (void)state;
    load.lanes = true;
    kill_workers("bf16", 1);
}

/* ---- at every point */

static const enum failpoint points[] = {
    FP_worker_main,    FP_worker_attached, FP_load_device,    FP_load_steps,
    FP_load_weights,   FP_load_kv,         FP_load_done,      FP_hand_given,
    FP_ready_said,     FP_host_mapping,    FP_host_mapped,    FP_loop_published,
    FP_ring_tail_seen, FP_ring_copied,     FP_ring_releasing, FP_ring_released,
    FP_intake_taken,   FP_manifest_stored, FP_step_planned,   FP_step_launched,
    FP_step_finished,  FP_step_committed,  FP_step_emitted,   FP_ring_reserved,
    FP_outbox_copied,  FP_ring_publishing, FP_ring_published, FP_bell_fenced,
    FP_bell_partition, FP_bell_announced,  FP_bell_asleep,    FP_bell_woken,
    FP_stat_writing,   FP_finish_said,
};
enum { FAULTS = 4 }; /* of one lagand: with five before READY it gives a worker up */

static void
pass_point(enum failpoint p, enum fp_action a)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
    bool of_tier = p == FP_host_mapping || p == FP_host_mapped;

    repeat_load_run(&load, 2, true);
    if (of_tier) { /* who has answered has one, to be mapped by the next */
        repeat_load_settle(&load);
        repeat_load_run(&load, 2, true);
    }
    service_arm(&v, FP_WORKER, p, a, 1 + test_below(p <= FP_host_mapped ? 1 : 20));
    if (of_tier || (p <= FP_ready_said && repeat_load_standbys(0))) /* who waits does not load */
        kill(service_pid(&v, "w0"), SIGKILL);
    else if (p <= FP_ready_said)
        service_kill_one(&v, 1);
    while (atomic_load(&v.board->fp.slot[FP_WORKER][p].left)) {
        repeat_load_run(&load, 2, true);
        if (service_now(&v) >= until) fail_msg("%s is not passed", failpoint_name(p));
    }
    /* Requests are blamed for what their worker does, not for what others do to it: they may live through many of those. */
    if (a != FP_KILL || test_below(8) == 0) repeat_load_settle(&load);
}

static void
worker_failing_at_every_point_changes_no_bit(void **state)
{
    /* Where none is stopped, a machine that is busy for a second makes none look so. */
    const char *const *args = n_actions >= FP_STOP ? hung_soon : NULL;
    uint32_t faults = 0;

    (void)state;
    repeat_load_start(&load, &v, "fp32", 0, args);
    to = MIN(to, MAX(n_rounds, 1u) * (uint32_t)ARRAY_LEN(points));
    for (uint32_t i = from; torture_more("points", i, to); i++)
        for (enum fp_action a = FP_KILL; a < FP_DELAY && a - FP_KILL < n_actions; a++) {
            /* A quick check does two of the four at each, others every time. */
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

/* A call to an operator's door; its answer does not matter here. */
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

/* Until that point has fired; asking again, but no worker that is just starting: it answers nobody, and a restart would
 * begin it anew for ever where a drain took longer than it may. */
static void
await(enum failpoint p, const char *verb)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    while (atomic_load(&v.board->fp.slot[FP_WORKER][p].left)) {
        if (verb && service_all_ready(&v, 0)) operate(verb);
        repeat_load_run(&load, 20, false);
        if (service_now(&v) >= until) fail_msg("%s is not passed", failpoint_name(p));
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
        service_arm(&v, FP_WORKER, FP_words_writing, a, 1);
        service_arm(&v, FP_WORKER, FP_step_launched, FP_ABORT, 1);
        await(FP_words_writing, NULL);
        repeat_load_settle(&load);
    }
    assert_true(service_logged(&v, "last words (cut off)"));
    repeat_load_stop(&load);
}

/* On the CPU that is a SIGSEGV of a lane's thread, on a GPU an illegal access. */
static void
nothing_is_adopted_after_a_stray_device_write(void **state)
{
    (void)state;
    repeat_load_start(&load, &v, "bf16", 0, NULL);
    repeat_load_run(&load, 0, true);
    if (!service_all_ready(&v, SETTLE_MS))
        fail_msg("workers, or what waits beside them, are missing");
    service_arm(&v, FP_WORKER, FP_step_queued, FP_WILD, 1 + test_below(20));
    await(FP_step_queued, NULL);
    repeat_load_settle(&load);
    assert_int_equal(service_logged(&v, strcmp(torture_device, "cpu")
                                            ? "died of device: exit status 74"
                                            : "died of signal: signal 11"),
                     1);
    assert_true(load.resumed > 0);
    assert_int_equal(load.adopted, 0);
    repeat_load_stop(&load);
}

/* The line that the next one says of its host tier. */
static void
await_tier(uint32_t lines)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    while (service_logged(&v, "w0: host tier ready") < lines) {
        if (service_now(&v) >= until) fail_msg("no host tier is there");
        repeat_load_run(&load, 2, true);
    }
    repeat_load_settle(&load);
}

/* As answers are asked for again and again: what is found, and what is not, has the same bits. */
static void
requests_resume_before_the_host_tier_is_mapped(void **state)
{
    static const enum failpoint half[] = { FP_host_mapping, FP_host_mapped };
    _Atomic uint32_t *held = &v.board->fp.slot[FP_WORKER][FP_host_mapping].action;
    uint32_t lines, empty; /* of a worker that a slow machine took for hung */

    (void)state;
    repeat_load_start(&load, &v, "fp32", 0, NULL);
    for (int i = 0; i < 2; i++) {
        repeat_load_run(&load, 0, true);
        repeat_load_settle(&load);
    }
    assert_true(repeat_load_counted(&load, "blocks_offloaded", 0) > 0);
    /* As it is used; of a GPU's, whose pieces are of 2 MiB, the first is all there is. */
    assert_true(strcmp(torture_device, "cpu") || service_logged(&v, "host tier: now") > 0);
    lines = service_logged(&v, "w0: host tier ready");
    empty = service_logged(&v, ", 0 blocks cached");
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
    kill(service_pid(&v, "w0"), SIGKILL); /* in the middle of it; then at the points */
    for (uint32_t i = 0; i < ARRAY_LEN(half); i++) {
        atomic_store(held, 0);
        await_tier(++lines);
        service_arm(&v, FP_WORKER, half[i], FP_KILL, 1);
        kill(service_pid(&v, "w0"), SIGKILL);
        await(half[i], NULL);
    }
    await_tier(++lines);
    assert_int_equal(service_logged(&v, ", 0 blocks cached"), empty);
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
    empty = service_logged(&v, ", 0 blocks cached");
    for (uint32_t i = 1; i <= 3; i++) {
        repeat_load_run(&load, 0, true);
        service_arm(&v, FP_WORKER, FP_host_mapping, FP_WILD, 1);
        kill(service_pid(&v, "w0"), SIGKILL);
        await_tier(++lines);
        assert_int_equal(service_logged(&v, ", 0 blocks cached"), empty + i);
        kill(service_pid(&v, "w0"), SIGKILL); /* the next one finds that one */
        await_tier(++lines);
    }
    assert_int_equal(service_logged(&v, ", 0 blocks cached"), empty + 3);
    repeat_load_stop(&load);
}

/* It has mapped the weights before the fault: they are opened again, and nothing of the KV is adopted. */
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
    assert_int_equal(service_logged(&v, "died of signal"), 2);
    assert_true(load.resumed > 0);
    assert_int_equal(load.adopted, 0);
    /* A restart is for another program, or other files: not for one that has them open already. */
    operate("restart");
    for (nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
         !service_logged(&v, "w0.standby: pid");) {
        if (service_now(&v) >= until) fail_msg("the standby outlives a restart");
        repeat_load_run(&load, 20, false);
    }
    if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers or standbys are missing");
    assert_int_equal(service_logged(&v, "the standby takes over"), 2);
    repeat_load_stop(&load);
}

/* Beside a worker that has the device there may be no room for another: neither for its context nor for its steps. */
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
        service_arm(&v, FP_WORKER, p, FP_WILD, 1);
        kill(service_pid(&v, "w0"), SIGKILL);
        await(p,
              NULL); /* by the standby of who was one, or by that one if it had not come so far */
        for (nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
             service_logged(&v, "w0.standby: started") == begun;) {
            if (service_now(&v) >= until) fail_msg("no standby is begun");
            repeat_load_run(&load, 20, false);
        }
        kill(service_pid(&v, "w0"), SIGKILL);
        repeat_load_settle(&load);
        /* More of them where one had no processor for so long that it was taken for hung. */
        assert_true(service_logged(&v, "the standby takes over") >= 2 * (i + 1));
    }
    assert_int_equal(service_logged(&v, "died of killed"), 2 * ROUNDS);
    assert_int_equal(service_logged(&v, "w0.standby: pid"), 0); /* no standby has */
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
