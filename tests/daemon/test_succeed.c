/* test_succeed.c - one lagand after another: killed, told to begin again, its workers replaced. */
#include "base/clock.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/rig.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct rig r;

static int
tear_down(void **state)
{
    (void)state;
    rig_clean(&r);
    return 0;
}

#define ARGS(...) \
    (const char *const[]) \
    { \
        __VA_ARGS__, NULL \
    }

static void
start(const char *mode, const char *const *args)
{
    rig_start(&r, mode, args);
    rig_ready(&r);
}

static void
one_request(uint64_t rid)
{
    struct dealer *c = dial(&r, "api.sock");

    submit(c, rid, 3, 20, rid);
    take_all(c, rid, 20, rid);
    hang_up(c);
}

/* Of the only worker. */
static pid_t
worker_pid(struct dealer *c, uint64_t rid)
{
    const struct msg *m;

    call(c, rid, "workers list", NULL, NULL);
    m = hear_type(c, LAGAN_MSG_REPLY, 2000);
    return (pid_t)number(msg_get(&m->map, "result")->via.array.ptr, "pid");
}

static void
a_killed_lagand_leaves_weights_and_kv_to_the_next_one(void **state)
{
    (void)state;
    start("good", NULL);
    one_request(1);
    assert_int_equal(rig_stored(&r, "ledger"), 1);
    assert_int_equal(rig_stored(&r, "w0=weights="), 1);
    assert_int_equal(rig_stored(&r, "w0=kv="), 1);
    assert_int_equal(rig_stored(&r, "w0.pid"), 1);
    for (int i = 0; i < 3; i++) {
        rig_crash(&r, "good", NULL);
        rig_ready(&r);
        one_request(2);
        assert_int_equal(rig_n_workers(&r), 1);
        assert_int_equal(rig_stored(&r, ""), 4);
    }
    assert_true(rig_logged(&r, "adopted weights of epoch 1", 0));
    assert_true(rig_logged(&r, "adopted kv of epoch 1", 0));
    assert_false(rig_logged(&r, "of no use", 0));
    kill(r.pid, SIGTERM);
    assert_int_equal(rig_wait(&r, 5000), 0);
    assert_int_equal(rig_stored(&r, "w0=weights="), 1); /* a restart finds them too */
    assert_int_equal(rig_stored(&r, "w0.pid"), 0);
}

static void
kv_without_its_ledger_is_not_taken_over(void **state)
{
    (void)state;
    start("good", NULL);
    one_request(1);
    rig_forget(&r, "ledger");
    rig_crash(&r, "good", NULL);
    rig_ready(&r);
    assert_true(rig_logged(&r, "adopted weights of epoch 1", 0));
    assert_false(rig_logged(&r, "adopted kv", 0));
    assert_int_equal(rig_stored(&r, "ledger"), 1);
    assert_int_equal(rig_stored(&r, "w0=kv="), 1); /* the new one's */
    one_request(2);
}

static void
what_is_in_the_store_and_of_no_use_is_let_go(void **state)
{
    static const char *const names[] = {
        "nonsense",
        "w9=weights=1000=1=2=1",
        "w0=weights=zz",
        "w0=weights=1000000=1=2=1",
    };

    (void)state;
    start("good", NULL);
    rig_forget(&r, "w0=weights=1000=0=0=1");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) rig_keep(&r, names[i]);
    rig_keep(&r, "ledger"); /* an empty memfd, twice even */
    rig_crash(&r, "good", NULL);
    rig_ready(&r);
    assert_true(rig_logged(&r, "w9=weights=1000=1=2=1, is of no use", 0));
    assert_true(rig_logged(&r, "has 0 bytes, not 16777216", 0));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) assert_int_equal(rig_stored(&r, names[i]), 0);
    one_request(2);
}

static void
lagand_begins_again_under_its_own_pid_and_takes_everything_along(void **state)
{
    struct dealer *c;
    pid_t pid;

    (void)state;
    start("slow", NULL);
    one_request(1);
    for (int i = 0; i < 3; i++) {
        pid = r.pid;
        rig_untold(&r);
        c = dial(&r, "ctl.sock");
        call(c, 1, "daemon reexec", NULL, NULL);
        assert_int_equal(hear_type(c, LAGAN_MSG_REPLY, 2000)->rid, 1);
        assert_true(rig_told(&r, "RELOADING=1\nMONOTONIC_USEC=", 2000));
        rig_ready(&r);
        hang_up(c);
        assert_int_equal(r.pid, pid);
        one_request(2);
        assert_int_equal(rig_n_workers(&r), 1);
    }
    assert_true(rig_logged(&r, "adopted kv of epoch 1", 0));
    assert_int_equal(rig_stop(&r), 0);
}

static void
a_reload_replaces_every_worker_one_after_the_other_and_streams_go_on(void **state)
{
    enum { STREAMS = 8, TOKENS = 100 };
    uint32_t at[STREAMS + 1] = { 0 }, n_done = 0;
    struct dealer *c, *ctl;

    (void)state;
    start("slow", ARGS("--set", "workers=2"));
    c = dial(&r, "api.sock");
    ctl = dial(&r, "ctl.sock");
    for (uint64_t i = 1; i <= STREAMS; i++)
        SAY(c, LAGAN_MSG_SUBMIT, i, { "ids", 3 }, { "max_tokens", TOKENS }, { "seed", (int64_t)i },
            { "win", 256 });
    for (int heard = 0; n_done < STREAMS;) {
        const struct msg *m = hear(c, 5000);

        if (m->type == LAGAN_MSG_CHUNK) at[m->rid] = take_chunk(m, at[m->rid], m->rid);
        if (m->type == LAGAN_MSG_ERROR) fail_msg("%s", text_of(&m->map, "message"));
        if (m->type == LAGAN_MSG_DONE) assert_int_equal(at[m->rid], TOKENS);
        n_done += m->type == LAGAN_MSG_DONE;
        if (++heard == 20) {
            rig_untold(&r);
            call(ctl, 1, "reload", NULL, NULL);
        }
        if (heard == 30) kill(r.pid, SIGHUP); /* a round is under way: nothing more */
    }
    assert_true(rig_told(&r, "RELOADING=1", 2000));
    assert_true(rig_told(&r, "READY=1", 2000));
    assert_true(rig_logged(&r, "fake: mode slow, epoch 2", 0));
    assert_int_equal(rig_n_workers(&r), 2);
    assert_int_equal(rig_stop(&r), 0);
}

static void
a_reload_whose_first_worker_does_not_come_up_leaves_the_others_alone(void **state)
{
    char died[200];
    pid_t pid;
    struct dealer *c;

    (void)state;
    start("die-once", ARGS("--set", "workers=2"));
    c = dial(&r, "api.sock");
    pid = worker_pid(c, 1);
    snprintf(died, sizeof died, "%s/died", r.model);
    assert_int_equal(unlink(died), 0);
    rig_untold(&r);
    kill(r.pid, SIGHUP);
    assert_true(rig_told(&r, "RELOADING=1", 2000));
    assert_true(rig_told(&r, "READY=1", 5000));
    for (uint64_t i = 2; worker_pid(c, i) == pid && i < 100; i++) poll(NULL, 0, 10);
    one_request(5);
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static void
while_weights_load_systemd_is_asked_for_time(void **state)
{
    (void)state;
    rig_start(&r, "loading", NULL);
    assert_true(rig_told(&r, "EXTEND_TIMEOUT_USEC=30000000", 3000));
    kill(r.pid, SIGTERM);
    assert_true(rig_told(&r, "STOPPING=1", 2000));
    assert_true(rig_wait(&r, 8000) >= 0);
}

int
main(void)
{
#define T(f) cmocka_unit_test_teardown(f, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_killed_lagand_leaves_weights_and_kv_to_the_next_one),
        T(kv_without_its_ledger_is_not_taken_over),
        T(what_is_in_the_store_and_of_no_use_is_let_go),
        T(lagand_begins_again_under_its_own_pid_and_takes_everything_along),
        T(a_reload_replaces_every_worker_one_after_the_other_and_streams_go_on),
        T(a_reload_whose_first_worker_does_not_come_up_leaves_the_others_alone),
        T(while_weights_load_systemd_is_asked_for_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
