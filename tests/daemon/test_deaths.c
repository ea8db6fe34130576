/* test_deaths.c - the real lagand and workers that die, hang, lie and cannot start. */
#include "base/clock.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/rig.h"

#include <poll.h>
#include <signal.h>
#include <string.h>

static struct rig r;

static int
tear_down(void **state)
{
    (void)state;
    rig_clean(&r);
    return 0;
}

static void
start(const char *mode, const char *const *args)
{
    rig_start(&r, mode, args);
    rig_ready(&r);
}
#define ARGS(...) \
    (const char *const[]) \
    { \
        __VA_ARGS__, NULL \
    }

static void
a_dead_worker_is_replaced_and_only_its_requests_end_with_worker_lost(void **state)
{
    struct dealer *c;

    (void)state;
    start("segv", NULL);
    c = dial(&r, "api.sock");
    submit(c, 1, 3, 100, 1);
    take_chunk(hear_type(c, LAGAN_MSG_CHUNK, 2000), 0, 1);
    while (hear(c, 5000)->type == LAGAN_MSG_CHUNK) {
    }
    submit(c, 2, 3, 2, 9); /* short enough not to kill the next one */
    take_all(c, 2, 2, 9);
    assert_true(rig_logged(&r, "died of signal: signal 11", 1000));
    assert_true(rig_logged(&r, "adopted weights of epoch 1", 2000));
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static void
a_kill_from_outside_is_told_apart_and_forgiven(void **state)
{
    struct dealer *c;

    (void)state;
    start("good", NULL);
    c = dial(&r, "api.sock");
    for (uint32_t i = 1; i <= 5; i++) {
        const struct msg *m;
        const msgpack_object *w;

        do {
            call(c, i, "workers list", NULL, NULL);
            m = hear_type(c, LAGAN_MSG_REPLY, 2000);
            w = msg_get(&m->map, "result")->via.array.ptr;
        } while (number(w, "restarts") != i - 1 || strcmp(text_of(w, "state"), "ready"));
        kill((pid_t)number(w, "pid"), SIGKILL);
    }
    assert_true(rig_logged(&r, "died of killed: signal 9", 2000));
    assert_false(rig_logged(&r, "starting again in", 0));
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static void
every_lie_of_a_worker_ends_it_and_its_request(void **state)
{
    static const struct {
        const char *mode, *words;
    } t[] = {
        { "bad-token", "token 1000 of a vocabulary of 1000" },
        { "bad-row", "row 4000000" },
        { "bad-first", "first is 4, not 3" },
        { "bad-text", "is not UTF-8" },
        { "bad-finish", "n_tokens is 9, not 8" },
        { "bad-seq", "sequence" },
        { "shut-bell", "has shut its bell" },
        { "storm", "rang the bell" },
        { "exit", "died of exited: exit status 3" },
        { "check", "check(sky is blue) failed" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        const struct msg *m;
        struct dealer *c;

        start(t[i].mode, NULL);
        c = dial(&r, "api.sock");
        submit(c, 1, 3, 8, 1);
        do m = hear(c, 6000);
        while (m->type == LAGAN_MSG_CHUNK);
        if (m->type != LAGAN_MSG_ERROR || number(&m->map, "code") != LAGAN_E_WORKER_LOST) {
            fail_msg("%s: type %u, %s", t[i].mode, m->type, text_of(&m->map, "message"));
        }
        if (!rig_logged(&r, t[i].words, 1000)) fail_msg("%s: not '%s'", t[i].mode, t[i].words);
        hang_up(c);
        assert_int_equal(rig_stop(&r), 0);
        rig_clean(&r);
    }
}

static void
a_worker_that_hands_up_nonsense_never_becomes_ready(void **state)
{
    (void)state;
    rig_start(&r, "bad-hand", NULL);
    assert_true(rig_logged(&r, "hand: a message is malformed", 3000));
    assert_true(rig_logged(&r, "died of corruption", 3000));
    kill(r.pid, SIGTERM);
    assert_true(rig_wait(&r, 5000) >= 0);
}

static void
a_silent_worker_and_an_overdue_step_are_killed_in_time(void **state)
{
    static const struct {
        const char *mode, *words;
    } t[] = { { "hang", "died of silent: signal 9" },
              { "deaf", "died of silent: signal 12" },
              { "overdue", "died of overdue: signal 9" } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        nsec began;
        struct dealer *c;

        start(t[i].mode, ARGS("--supervisor.stall-timeout", "800ms"));
        c = dial(&r, "api.sock");
        submit(c, 1, 3, 8, 1);
        began = clock_now();
        while (hear(c, 6000)->type == LAGAN_MSG_CHUNK) {
        }
        assert_true(clock_now() - began < 3 * NSEC_S);
        assert_true(rig_logged(&r, t[i].words, 1000));
        hang_up(c);
        assert_int_equal(rig_stop(&r), 0);
        rig_clean(&r);
    }
}

static void
a_worker_that_cannot_start_says_why_and_lagand_leaves(void **state)
{
    (void)state;
    rig_start(&r, "die-config", NULL);
    assert_int_equal(rig_wait(&r, 5000), 78);
    assert_true(rig_logged(&r, "giving up: fake: kv.memory is not what it should be", 0));
    rig_start(&r, "die-model", NULL);
    assert_int_equal(rig_wait(&r, 8000), 78);
    assert_true(rig_logged(&r, "config.json: no such file", 0));
    rig_start(&r, "loading", ARGS("--supervisor.start-timeout", "150ms"));
    assert_int_equal(rig_wait(&r, 8000), 69);
    assert_true(rig_logged(&r, "failed for good", 0));
}

static void
a_worker_that_fails_to_start_once_is_tried_again(void **state)
{
    (void)state;
    start("die-once", NULL);
    assert_true(rig_logged(&r, "died of start: exit status 70", 1000));
    assert_int_equal(rig_stop(&r), 0);
}

static void
a_killed_lagand_leaves_no_worker_and_the_next_one_starts(void **state)
{
    int tries = 0;

    (void)state;
    start("good", NULL);
    assert_int_equal(rig_n_workers(&r), 1);
    kill(r.pid, SIGKILL);
    assert_int_equal(rig_wait(&r, 2000), 256 + SIGKILL);
    while (rig_n_workers(&r) && tries++ < 100) poll(NULL, 0, 10);
    assert_int_equal(rig_n_workers(&r), 0);
    start("good", ARGS("--remove-runtime-dir"));
    assert_int_equal(rig_stop(&r), 0);
}

int
main(void)
{
#define T(f) cmocka_unit_test_teardown(f, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_dead_worker_is_replaced_and_only_its_requests_end_with_worker_lost),
        T(a_kill_from_outside_is_told_apart_and_forgiven),
        T(every_lie_of_a_worker_ends_it_and_its_request),
        T(a_worker_that_hands_up_nonsense_never_becomes_ready),
        T(a_silent_worker_and_an_overdue_step_are_killed_in_time),
        T(a_worker_that_cannot_start_says_why_and_lagand_leaves),
        T(a_worker_that_fails_to_start_once_is_tried_again),
        T(a_killed_lagand_leaves_no_worker_and_the_next_one_starts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
