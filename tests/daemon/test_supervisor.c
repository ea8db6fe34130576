/* test_supervisor.c - all cells of the state table, causes of death and backoff, with a fake clock.
 */
#include "daemon/supervise/supervisor.h"

#include "base/clock.h"
#include "tests/test.h"

#include <signal.h>
#include <sys/wait.h>

struct callbacks { /* actions of the table */
    int spawns, drains, reaped, spawn_result;
    int sig;
    enum super_state to;
};

static int
spawn(void *arg)
{
    struct callbacks *h = arg;

    h->spawns++;
    return h->spawn_result;
}

static void
tell_drain(void *arg)
{
    ((struct callbacks *)arg)->drains++;
}

static void
kill_(void *arg, int sig)
{
    ((struct callbacks *)arg)->sig = sig;
}

static void
reap(void *arg, const struct death *d)
{
    (void)d;
    ((struct callbacks *)arg)->reaped++;
}

static void
moved(void *arg, enum super_state from, enum super_state to)
{
    (void)from;
    ((struct callbacks *)arg)->to = to;
}

static const struct super_ops ops = { spawn, tell_drain, kill_, reap, moved };

static void
start(struct super *s, struct callbacks *h, nsec now)
{
    memset(h, 0, sizeof *h);
    super_init(s, &ops, h, 1);
    super_event(s, EV_START, now);
    assert_int_equal(s->state, SUPER_LOADING);
}

static void
die(struct super *s, int code, int status, nsec now)
{
    super_died(s, code, status, /* has_panic= */ false, /* oom= */ false);
    super_event(s, EV_EXIT, now);
}

/* Every cell: the next state and the actions, from a new worker in that state. */
static void
every_state_handles_every_event(void **state)
{
    enum { SAME = -1 };
    /* clang-format off */
    static const struct cell { int to; char asks; } want[SUPER_N_STATES][EV_N] = {
    /* START              STOP                 RESTART              REPLACE              READY EXIT
     * TIMER                BROKEN               STANDBY_READY        TAKEN
     */
    [SUPER_DOWN] =
    { {SUPER_LOADING,'s'},{SAME,0},            {SUPER_LOADING,'s'}, {SAME,0},            {SAME,0},           {SAME,0},          {SAME,0},            {SAME,0}, {SAME,0},            {SAME,0} },
    [SUPER_LOADING] =
    { {SAME,0},           {SUPER_STOPPING,'t'},{SUPER_STOPPING,'t'},{SUPER_STOPPING,'t'},{SUPER_READY,0},    {SUPER_LOADING,'b'},{SUPER_DYING,'k'},  {SUPER_DYING,'k'}, {SUPER_STANDBY,0},   {SUPER_DOWN,0} },
    [SUPER_READY] =
    { {SAME,0},           {SUPER_DRAINING,'d'},{SUPER_DRAINING,'d'},{SUPER_STOPPING,'t'},{SAME,0},           {SUPER_LOADING,'b'},{SAME,0},           {SUPER_DYING,'k'}, {SAME,0},            {SAME,0} },
    [SUPER_STANDBY] =
    { {SAME,0},           {SUPER_STOPPING,'t'},{SUPER_STOPPING,'t'},{SUPER_STOPPING,'t'},{SAME,0},           {SUPER_LOADING,'b'},{SAME,0},           {SUPER_DYING,'k'},   {SAME,0},            {SUPER_DOWN,0} },
    [SUPER_DRAINING] =
    { {SAME,0},           {SAME,0},            {SAME,0},            {SAME,0},            {SAME,0},           {SUPER_DOWN,'b'},  {SUPER_STOPPING,'t'},{SUPER_DYING,'k'}, {SAME,0},            {SAME,0} },
    [SUPER_STOPPING] =
    { {SAME,0},           {SAME,0},            {SAME,0},            {SAME,0},            {SAME,0},           {SUPER_DOWN,'b'},  {SUPER_DYING,'k'},   {SUPER_DYING,'k'}, {SAME,0},            {SAME,0} },
    [SUPER_DYING] =
    { {SAME,0},           {SAME,0},            {SAME,0},            {SAME,0},            {SAME,0},           {SUPER_DOWN,'b'},  {SUPER_LOST,0},      {SAME,0}, {SAME,0},            {SAME,0} },
    [SUPER_LOST] =
    { {SAME,0},           {SAME,0},            {SAME,0},            {SAME,0},            {SAME,0},           {SUPER_FAILED,'b'},{SAME,0},            {SAME,0}, {SAME,0},            {SAME,0} },
    [SUPER_BACKOFF] =
    { {SUPER_LOADING,'s'},{SUPER_DOWN,0},      {SUPER_LOADING,'s'}, {SUPER_LOADING,'s'}, {SAME,0},           {SAME,0},          {SUPER_LOADING,'s'}, {SAME,0}, {SAME,0},            {SAME,0} },
    [SUPER_FAILED] =
    { {SUPER_LOADING,'s'},{SUPER_DOWN,0},      {SUPER_LOADING,'s'}, {SUPER_LOADING,'s'}, {SAME,0},           {SAME,0},          {SAME,0},            {SAME,0}, {SAME,0},            {SAME,0} },
    };
    /* clang-format on */
    (void)state;
    for (int from = 0; from < SUPER_N_STATES; from++) {
        for (int ev = 0; ev < EV_N; ev++) {
            const struct cell *c = &want[from][ev];
            struct callbacks h = { 0 };
            struct super s;
            char asked;

            super_init(&s, &ops, &h, 1);
            s.state = (enum super_state)from;
            s.death = (struct death){ .cause = DEATH_KILLED };
            super_event(&s, (enum super_event)ev, NSEC_S);
            asked = h.reaped           ? 'b'
                    : h.spawns         ? 's'
                    : h.drains         ? 'd'
                    : h.sig == SIGTERM ? 't'
                    : h.sig == SIGKILL ? 'k'
                                       : 0;
            if ((int)s.state != (c->to == SAME ? from : c->to) || asked != c->asks) {
                fail_msg("%s, event %d: to %s asking '%c'",
                         super_state_name((enum super_state)from), ev, super_state_name(s.state),
                         asked ? asked : '-');
            }
        }
    }
}

static void
first_respawn_is_immediate_and_backoff_starts_with_the_second(void **state)
{
    struct super s;
    struct callbacks h;

    (void)state;
    start(&s, &h, 0);
    super_event(&s, EV_READY, NSEC_S);
    die(&s, CLD_DUMPED, SIGSEGV, 2 * NSEC_S);
    assert_int_equal(s.state, SUPER_LOADING);
    assert_int_equal(h.spawns, 2);
    super_event(&s, EV_READY, 3 * NSEC_S);
    die(&s, CLD_DUMPED, SIGSEGV, 4 * NSEC_S);
    assert_int_equal(s.state, SUPER_BACKOFF);
    assert_in_range(s.timer - 4 * NSEC_S, 75 * NSEC_MS, 125 * NSEC_MS);
    super_event(&s, EV_TIMER, s.timer);
    assert_int_equal(s.state, SUPER_LOADING);
    assert_int_equal(h.spawns, 3);
}

static void
sixty_seconds_of_service_reset_the_streak(void **state)
{
    struct super s;
    struct callbacks h;
    nsec now = 0;

    (void)state;
    start(&s, &h, now);
    for (int i = 0; i < 6; i++) {
        super_event(&s, EV_READY, now);
        now += 100 * NSEC_S;
        die(&s, CLD_DUMPED, SIGSEGV, now);
        assert_int_equal(s.state, SUPER_LOADING);
    }
}

static void
backoff_doubles_to_30_s_with_25_percent_jitter(void **state)
{
    (void)state;
    assert_int_equal(super_backoff(0, 7), 0);
    assert_int_equal(super_backoff(1, 7), 0);
    for (uint32_t k = 2; k < 100; k++) {
        nsec want = k > 10 ? 30 * NSEC_S : MIN(100 * NSEC_MS << (k - 2), 30 * NSEC_S);

        for (uint64_t r = 0; r < 1000; r++) {
            nsec got = super_backoff(k, r * 7919 * 104729);

            assert_in_range(got, want * 3 / 4, MIN(want * 5 / 4, 30 * NSEC_S));
        }
    }
}

static void
external_death_does_not_count_but_spawns_are_spaced(void **state)
{
    struct super s;
    struct callbacks h;
    nsec now = 0;
    int i;

    (void)state;
    start(&s, &h, now);
    for (i = 0; i < 100; i++) {
        super_event(&s, EV_READY, now);
        now += NSEC_MS;
        die(&s, CLD_KILLED, SIGKILL, now);
        assert_int_equal(s.death.cause, DEATH_KILLED);
        assert_true(s.death.adopt_kv);
        if (s.state == SUPER_BACKOFF) break;
        assert_int_equal(s.state, SUPER_LOADING);
    }
    assert_in_range(i, 19, 21);
    assert_int_equal(s.timer - now, 100 * NSEC_MS);
    assert_int_equal(s.streak, 0);
}

static void
five_early_deaths_within_ten_minutes_fail(void **state)
{
    struct super s;
    struct callbacks h;

    (void)state;
    start(&s, &h, 0);
    for (int i = 0; i < 4; i++) {
        die(&s, CLD_EXITED, 70, i * NSEC_S);
        assert_int_equal(s.death.cause, DEATH_START);
        if (s.state == SUPER_BACKOFF) super_event(&s, EV_TIMER, s.timer);
        assert_int_equal(s.state, SUPER_LOADING);
    }
    die(&s, CLD_EXITED, 70, 5 * NSEC_S);
    assert_int_equal(s.state, SUPER_FAILED);
    assert_int_equal(h.spawns, 5);
    /* An operator starts it again, and the counts are cleared. */
    super_event(&s, EV_START, 6 * NSEC_S);
    die(&s, CLD_EXITED, 70, 7 * NSEC_S);
    assert_int_equal(s.state, SUPER_LOADING);
}

static void
five_early_deaths_within_an_hour_do_not_fail(void **state)
{
    struct super s;
    struct callbacks h;

    (void)state;
    start(&s, &h, 0);
    for (int i = 1; i < 12; i++) {
        die(&s, CLD_EXITED, 70, i * 300 * NSEC_S);
        if (s.state == SUPER_BACKOFF) super_event(&s, EV_TIMER, s.timer);
        assert_int_equal(s.state, SUPER_LOADING);
    }
}

static void
ten_counted_deaths_within_ten_minutes_fail(void **state)
{
    struct super s;
    struct callbacks h;
    int n = 0;

    (void)state;
    start(&s, &h, 0);
    while (s.state != SUPER_FAILED && n < 50) {
        nsec now = ++n * NSEC_S;

        if (s.state == SUPER_BACKOFF) super_event(&s, EV_TIMER, now);
        super_event(&s, EV_READY, now);
        die(&s, CLD_DUMPED, SIGABRT, now);
    }
    assert_int_equal(n, 10);
}

static void
oom_kills_back_off_and_fail_after_ten(void **state)
{
    struct super s;
    struct callbacks h;
    nsec now = 0;
    int n = 0;

    (void)state;
    start(&s, &h, 0);
    while (s.state != SUPER_FAILED && n < 50) {
        if (s.state == SUPER_BACKOFF) now = s.timer;
        super_event(&s, EV_TIMER, now);
        super_event(&s, EV_READY, now);
        super_died(&s, CLD_KILLED, SIGKILL, /* has_panic= */ false, /* oom= */ true);
        super_event(&s, EV_EXIT, now);
        n++;
    }
    assert_int_equal(n, 10);
    assert_in_range(now, 15 * NSEC_S, 40 * NSEC_S);

    start(&s, &h, 0);
    for (n = 0; s.state != SUPER_FAILED && n < 50; n++) { /* before READY */
        if (s.state == SUPER_BACKOFF) super_event(&s, EV_TIMER, s.timer);
        super_died(&s, CLD_KILLED, SIGKILL, /* has_panic= */ false, /* oom= */ true);
        super_event(&s, EV_EXIT, s.now);
    }
    assert_int_equal(n, 5);
}

static void
invalid_configuration_fails_at_once(void **state)
{
    static const int codes[] = { 77, 78, 125 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        struct super s;
        struct callbacks h;

        start(&s, &h, 0);
        die(&s, CLD_EXITED, codes[i], NSEC_S);
        assert_int_equal(s.death.cause, DEATH_CONFIG);
        assert_int_equal(s.state, SUPER_FAILED);
        assert_int_equal(h.spawns, 1);
    }
}

/* A network file system may be gone for minutes. */
static void
missing_model_or_memory_of_a_worker_that_served_is_retried(void **state)
{
    struct callbacks h;
    struct super s;
    nsec now = 0;

    (void)state;
    start(&s, &h, now);
    super_event(&s, EV_READY, now);
    die(&s, CLD_KILLED, SIGKILL, now);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(s.state, SUPER_LOADING);
        die(&s, CLD_EXITED, i % 2 ? 77 + i / 2 % 2 : 71, now);
        assert_int_equal(s.death.cause, DEATH_START);
        if (s.state != SUPER_BACKOFF) continue;
        assert_true(s.timer - now <= 30 * NSEC_S);
        now = s.timer;
        super_event(&s, EV_TIMER, now);
    }
    super_event(&s, EV_READY, now);
    assert_int_equal(s.state, SUPER_READY);
}

static void
cause_of_death_follows_the_table(void **state)
{
    static const struct {
        enum super_state in;
        enum death_cause suspect;
        int code, status;
        bool words;
        enum death_cause want;
        bool adopt, fault, counts, oom;
    } t[] = {
        { SUPER_READY, DEATH_NONE, CLD_KILLED, SIGKILL, false, DEATH_KILLED, true, false, false },
        { SUPER_READY, DEATH_NONE, CLD_KILLED, SIGKILL, false, DEATH_OOM, true, false, true, true },
        { SUPER_LOADING, DEATH_NONE, CLD_KILLED, SIGKILL, false, DEATH_OOM, true, false, true,
          true },
        { SUPER_READY, DEATH_SILENT, CLD_KILLED, SIGKILL, false, DEATH_SILENT, true, false, true,
          true },
        { SUPER_READY, DEATH_NONE, CLD_DUMPED, SIGSEGV, false, DEATH_SIGNAL, false, true, true,
          true },
        { SUPER_READY, DEATH_SILENT, CLD_KILLED, SIGKILL, false, DEATH_SILENT, true, false, true },
        { SUPER_READY, DEATH_OVERDUE, CLD_KILLED, SIGKILL, false, DEATH_OVERDUE, false, true,
          true },
        { SUPER_READY, DEATH_CORRUPTION, CLD_KILLED, SIGKILL, false, DEATH_CORRUPTION, false, true,
          true },
        { SUPER_READY, DEATH_STORM, CLD_KILLED, SIGKILL, false, DEATH_STORM, false, true, true },
        { SUPER_READY, DEATH_NONE, CLD_DUMPED, SIGSEGV, false, DEATH_SIGNAL, false, true, true },
        { SUPER_READY, DEATH_NONE, CLD_DUMPED, SIGABRT, true, DEATH_CHECK, false, true, true },
        { SUPER_READY, DEATH_NONE, CLD_EXITED, 74, false, DEATH_DEVICE, false, true, true },
        { SUPER_READY, DEATH_NONE, CLD_EXITED, 0, false, DEATH_EXITED, false, true, true },
        { SUPER_LOADING, DEATH_NONE, CLD_EXITED, 72, false, DEATH_START, false, false, true },
        { SUPER_LOADING, DEATH_NONE, CLD_EXITED, 74, false, DEATH_LOST, false, false, true },
        { SUPER_LOADING, DEATH_NONE, CLD_DUMPED, SIGSEGV, false, DEATH_SIGNAL, false, true, true },
        { SUPER_READY, DEATH_NONE, CLD_EXITED, 78, false, DEATH_CONFIG, false, false, true },
        { SUPER_LOADING, DEATH_NONE, CLD_EXITED, 125, false, DEATH_CONFIG, false, false, true },
        { SUPER_LOADING, DEATH_NONE, CLD_EXITED, 78, false, DEATH_CONFIG, false, false, true },
        { SUPER_DRAINING, DEATH_NONE, CLD_EXITED, 0, false, DEATH_DRAINED, true, false, false },
        { SUPER_STOPPING, DEATH_NONE, CLD_KILLED, SIGTERM, false, DEATH_OPERATOR, true, false,
          false },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct callbacks h = { 0 };
        struct super s;

        super_init(&s, &ops, &h, 1);
        s.state = t[i].in;
        s.suspect = t[i].suspect;
        s.was_ready = t[i].in != SUPER_LOADING;
        super_died(&s, t[i].code, t[i].status, t[i].words, t[i].oom);
        assert_string_equal(death_name(s.death.cause), death_name(t[i].want));
        assert_int_equal(s.death.adopt_kv, t[i].adopt);
        assert_int_equal(s.death.fault, t[i].fault);
        assert_int_equal(s.death.counts, t[i].counts);
    }
}

static void
failed_spawn_is_retried_after_a_delay(void **state)
{
    struct callbacks h = { .spawn_result = -12 };
    struct super s;
    nsec now = 0;

    (void)state;
    super_init(&s, &ops, &h, 1);
    super_event(&s, EV_START, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(s.state, SUPER_BACKOFF);
        assert_int_equal(h.spawns, i + 1);
        assert_true(s.timer > now);
        now = s.timer;
        super_event(&s, EV_TIMER, now);
    }
    assert_int_equal(s.state, SUPER_FAILED);
}

static void
restart_drains_and_starts_again(void **state)
{
    struct super s;
    struct callbacks h;

    (void)state;
    start(&s, &h, 0);
    super_event(&s, EV_READY, 0);
    super_event(&s, EV_RESTART, NSEC_S);
    assert_int_equal(s.state, SUPER_DRAINING);
    assert_int_equal(h.drains, 1);
    die(&s, CLD_EXITED, 0, 2 * NSEC_S);
    assert_int_equal(s.state, SUPER_LOADING);
    assert_int_equal(h.spawns, 2);
}

static void
hung_worker_is_restarted_unless_it_was_stopping(void **state)
{
    struct super s;
    struct callbacks h;

    (void)state;
    start(&s, &h, 0);
    super_event(&s, EV_READY, 0);
    super_broken(&s, DEATH_SILENT, NSEC_S);
    super_broken(&s, DEATH_CORRUPTION, NSEC_S); /* the first cause stays */
    die(&s, CLD_KILLED, SIGKILL, 2 * NSEC_S);
    assert_int_equal(s.death.cause, DEATH_SILENT);
    assert_int_equal(s.state, SUPER_LOADING);

    super_event(&s, EV_READY, 2 * NSEC_S);
    super_event(&s, EV_STOP, 3 * NSEC_S);
    super_broken(&s, DEATH_SILENT, 4 * NSEC_S);
    assert_int_equal(s.state, SUPER_DYING);
    die(&s, CLD_KILLED, SIGKILL, 5 * NSEC_S);
    assert_int_equal(s.state, SUPER_DOWN);
}

static void
killed_standby_is_restarted_and_a_taken_one_replaced(void **state)
{
    struct super s;
    struct callbacks h;

    (void)state;
    start(&s, &h, 0);
    super_event(&s, EV_STANDBY_READY, 0);
    die(&s, CLD_KILLED, SIGKILL, NSEC_S);
    assert_int_equal(s.state, SUPER_LOADING);
    assert_int_equal(h.spawns, 2);
    assert_false(s.death.early);
    super_event(&s, EV_STANDBY_READY, NSEC_S);
    assert_int_equal(s.timer, NSEC_NEVER);
    super_broken(&s, DEATH_SILENT, 2 * NSEC_S);
    die(&s, CLD_KILLED, SIGKILL, 2 * NSEC_S);
    assert_int_equal(s.state, SUPER_LOADING); /* first at once, then after a delay */
    super_event(&s, EV_STANDBY_READY, 3 * NSEC_S);
    super_event(&s, EV_TAKEN, 3 * NSEC_S);
    assert_int_equal(s.state, SUPER_DOWN);
    super_event(&s, EV_START, 4 * NSEC_S);
    assert_int_equal(s.state, SUPER_LOADING);
    super_event(&s, EV_STANDBY_READY, 4 * NSEC_S);
    super_event(&s, EV_STOP, 5 * NSEC_S);
    assert_int_equal(h.sig, SIGTERM);
    super_event(&s, EV_START, 5 * NSEC_S); /* its worker is up again before it has ended */
    die(&s, CLD_KILLED, SIGTERM, 6 * NSEC_S);
    assert_int_equal(s.state, SUPER_LOADING);
}

static void
slow_drain_ends_with_term_kill_and_lost(void **state)
{
    struct super s;
    struct callbacks h;

    (void)state;
    start(&s, &h, 0);
    super_event(&s, EV_READY, 0);
    super_event(&s, EV_STOP, 0);
    assert_int_equal(s.timer, s.drain_timeout);
    super_event(&s, EV_TIMER, s.timer);
    assert_int_equal(h.sig, SIGTERM);
    super_event(&s, EV_TIMER, s.timer);
    assert_int_equal(h.sig, SIGKILL);
    super_event(&s, EV_TIMER, s.timer);
    assert_int_equal(s.state, SUPER_LOST);
    assert_int_equal(s.timer, NSEC_NEVER);
}

static void
starved_process_gets_more_time_to_exit(void **state)
{
    struct super s;
    struct callbacks h;
    nsec until;

    (void)state;
    start(&s, &h, 0);
    super_event(&s, EV_READY, 0);
    super_discount(&s, NSEC_S); /* no timer is set */
    super_broken(&s, DEATH_SILENT, 0);
    assert_int_equal(s.state, SUPER_DYING);
    until = s.timer;
    super_discount(&s, 12 * NSEC_S);
    assert_int_equal(s.timer, until + 12 * NSEC_S);
    super_event(&s, EV_TIMER, s.timer);
    assert_int_equal(s.state, SUPER_LOST);
    super_discount(&s, NSEC_S);
    assert_int_equal(s.timer, NSEC_NEVER);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_state_handles_every_event),
        cmocka_unit_test(first_respawn_is_immediate_and_backoff_starts_with_the_second),
        cmocka_unit_test(sixty_seconds_of_service_reset_the_streak),
        cmocka_unit_test(backoff_doubles_to_30_s_with_25_percent_jitter),
        cmocka_unit_test(external_death_does_not_count_but_spawns_are_spaced),
        cmocka_unit_test(five_early_deaths_within_ten_minutes_fail),
        cmocka_unit_test(five_early_deaths_within_an_hour_do_not_fail),
        cmocka_unit_test(ten_counted_deaths_within_ten_minutes_fail),
        cmocka_unit_test(oom_kills_back_off_and_fail_after_ten),
        cmocka_unit_test(invalid_configuration_fails_at_once),
        cmocka_unit_test(missing_model_or_memory_of_a_worker_that_served_is_retried),
        cmocka_unit_test(cause_of_death_follows_the_table),
        cmocka_unit_test(failed_spawn_is_retried_after_a_delay),
        cmocka_unit_test(restart_drains_and_starts_again),
        cmocka_unit_test(hung_worker_is_restarted_unless_it_was_stopping),
        cmocka_unit_test(killed_standby_is_restarted_and_a_taken_one_replaced),
        cmocka_unit_test(slow_drain_ends_with_term_kill_and_lost),
        cmocka_unit_test(starved_process_gets_more_time_to_exit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
