/* test_reexec.c - crash and re-exec of lagand, and rolling restarts of its workers. */
#include "base/clock.h"
#include "include/lagan.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/lagand_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct lagand_fixture r;

static void
one_request(uint64_t rid)
{
    struct dealer *c = dealer_open(&r, "api.sock");

    submit(c, rid, 3, 20, rid);
    take_all(c, rid, 20, rid);
    dealer_close(c);
}

/* The process id of the only worker. */
static pid_t
worker_pid(struct dealer *c, uint64_t rid)
{
    const struct msg *m;

    call(c, rid, "workers list", NULL, NULL);
    m = receive_type(c, LAGAN_MSG_REPLY, 2000);
    return (pid_t)number(msg_get(&m->map, "result")->via.array.ptr, "pid");
}

static void
killed_lagand_leaves_weights_and_kv_to_the_next(void **state)
{
    (void)state;
    lagand_begin(&r, "good", NULL);
    one_request(1);
    assert_int_equal(systemd_stored(&r.systemd, "ledger"), 1);
    assert_int_equal(systemd_stored(&r.systemd, "w0=weights="), 1);
    assert_int_equal(systemd_stored(&r.systemd, "w0=kv="), 1);
    assert_int_equal(systemd_stored(&r.systemd, "w0.pid"), 1);
    for (int i = 0; i < 3; i++) {
        lagand_crash(&r, "good", NULL);
        lagand_ready(&r);
        one_request(2);
        assert_int_equal(lagand_n_workers(&r), 1);
        assert_int_equal(systemd_stored(&r.systemd, "history"), 1);
        assert_int_equal(systemd_stored(&r.systemd, ""), 5);
    }
    assert_true(lagand_logged(&r, "adopted weights of epoch 1", 0));
    assert_true(lagand_logged(&r, "adopted kv of epoch 1", 0));
    assert_false(lagand_logged(&r, "does not use", 0));
    kill(r.pid, SIGTERM);
    assert_int_equal(lagand_wait(&r, 5000), 0);
    assert_int_equal(systemd_stored(&r.systemd, "w0=weights="), 1); /* a restart finds them too */
    assert_int_equal(systemd_stored(&r.systemd, "w0.pid"), 0);
}

static void
kv_without_its_ledger_is_not_adopted(void **state)
{
    (void)state;
    lagand_begin(&r, "good", NULL);
    one_request(1);
    systemd_forget(&r.systemd, "ledger");
    lagand_crash(&r, "good", NULL);
    lagand_ready(&r);
    assert_true(lagand_logged(&r, "adopted weights of epoch 1", 5000));
    assert_false(lagand_logged(&r, "adopted kv", 0));
    assert_int_equal(systemd_stored(&r.systemd, "ledger"), 1);
    assert_int_equal(systemd_stored(&r.systemd, "w0=kv="), 1); /* of the new lagand */
    one_request(2);
}

static void
unused_descriptors_of_the_store_are_closed(void **state)
{
    static const char *const names[] = {
        "nonsense",
        "w9=weights=1000=1=2=1",
        "w0=weights=zz",
        "w0=weights=1000000=1=2=1",
    };

    (void)state;
    lagand_begin(&r, "good", NULL);
    systemd_forget(&r.systemd, "w0=weights=1000=0=0=1");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) systemd_keep(&r.systemd, names[i]);
    systemd_keep(&r.systemd, "ledger"); /* an empty memfd, twice */
    systemd_keep(&r.systemd, "history");
    lagand_crash(&r, "good", NULL);
    lagand_ready(&r);
    assert_true(lagand_logged(&r, "closing inherited descriptor w9=weights=1000=1=2=1", 0));
    assert_true(lagand_logged(&r, "has 0 bytes; the worker announced 16777216", 0));
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        assert_int_equal(systemd_stored(&r.systemd, names[i]), 0);
    one_request(2);
}

/* lagand replies, then re-execs. The connection of the caller is left open. */
static struct dealer *
ask_reexec(void)
{
    struct dealer *c = dealer_open(&r, "ctl.sock");

    systemd_clear_notices(&r.systemd);
    call(c, 1, "daemon reexec", NULL, NULL);
    assert_int_equal(receive_type(c, LAGAN_MSG_REPLY, 2000)->rid, 1);
    return c;
}

static void
reexec_keeps_the_pid_and_passes_everything(void **state)
{
    struct dealer *c;
    pid_t pid;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    one_request(1);
    for (int i = 0; i < 3; i++) {
        pid = r.pid;
        c = ask_reexec();
        assert_true(lagand_notified(&r, "RELOADING=1\nMONOTONIC_USEC=", 2000));
        lagand_ready(&r);
        dealer_close(c);
        assert_int_equal(r.pid, pid);
        one_request(2);
        assert_int_equal(lagand_n_workers(&r), 1);
    }
    assert_true(lagand_logged(&r, "adopted kv of epoch 1", 0));
    assert_int_equal(lagand_stop(&r), 0);
}

static void
failed_reexec_is_reported_and_lagand_continues(void **state)
{
    struct dealer *c, *ctl;
    char away[200];

    (void)state;
    lagand_begin(&r, "slow", NULL);
    snprintf(away, sizeof away, "%s.away", r.model);
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    submit(c, 1, 3, 100, 1);
    assert_int_equal(rename(r.model, away), 0);
    for (uint64_t rid = 1; rid <= 2; rid++) {
        call(ctl, rid, "daemon reexec", NULL, NULL);
        receive_error(ctl, rid, LAGAN_E_CONFIGURATION,
                      "No such file or directory; the running lagand", 5000);
    }
    /* Of two calls at once the second is refused, or comes after the reply to the first. */
    call(ctl, 3, "daemon reexec", NULL, NULL);
    call(ctl, 4, "daemon reexec", NULL, NULL);
    receive_type(ctl, LAGAN_MSG_ERROR, 5000);
    receive_type(ctl, LAGAN_MSG_ERROR, 5000);
    assert_int_equal(rename(away, r.model), 0);
    take_all(c, 1, 100, 1);
    assert_int_equal(lagand_n_workers(&r), 1);
    assert_false(lagand_logged(&r, ": re-exec: passing", 0));
    systemd_clear_notices(&r.systemd);
    call(ctl, 5, "daemon reexec", NULL, NULL);
    receive_type(ctl, LAGAN_MSG_REPLY, 5000);
    lagand_ready(&r);
    dealer_close(ctl);
    one_request(2);
    assert_int_equal(lagand_stop(&r), 0);
}

/* Creates or removes the file that makes fake_worker refuse the model. */
static void
set_bad(bool bad)
{
    char path[200];

    snprintf(path, sizeof path, "%s/bad", r.model);
    if (bad)
        assert_int_equal(close(creat(path, 0600)), 0);
    else
        assert_int_equal(unlink(path), 0);
}

static void
reexec_is_refused_if_a_worker_could_not_open_its_model(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    c = dealer_open(&r, "ctl.sock");
    set_bad(true);
    call(c, 1, "daemon reexec", NULL, NULL);
    receive_error(c, 1, LAGAN_E_CONFIGURATION,
                  "the weights are cut short; the running lagand continues", 5000);
    dealer_close(c);
    one_request(2);
    set_bad(false);
    c = ask_reexec();
    lagand_ready(&r);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static ino_t
inode_of(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* With systemd/lagand.socket clients connect and wait during a restart. */
static void
systemds_socket_is_served_by_each_lagand(void **state)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct dealer *ctl;
    char path[120];
    ino_t inode;
    int fd;

    (void)state;
    lagand_begin(&r, "good", NULL);
    snprintf(path, sizeof path, "%s/api.sock", r.run);
    assert_int_equal(kill(r.pid, SIGKILL), 0);
    assert_int_equal(lagand_wait(&r, 5000), 256 + SIGKILL);
    assert_int_equal(unlink(path), 0);
    systemd_listen(&r.systemd, "api.sock", path);
    inode = inode_of(path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); /* no lagand runs yet */
    strcpy(a.sun_path, path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
    lagand_begin(&r, "good", NULL);
    one_request(1);
    lagand_crash(&r, "good", NULL);
    lagand_ready(&r);
    one_request(2);
    ctl = ask_reexec();
    lagand_ready(&r);
    dealer_close(ctl);
    one_request(3);
    assert_false(lagand_logged(&r, "does not use", 0));
    assert_false(lagand_logged(&r, "the inherited socket", 0));
    kill(r.pid, SIGTERM);
    assert_int_equal(lagand_wait(&r, 5000), 0);
    assert_int_equal(inode_of(path), inode);

    /* A socket without a path is not used. */
    unlink(path);
    lagand_begin(&r, "good", ARGS("--remove-runtime-dir"));
    assert_true(lagand_logged(&r, "the inherited socket is not", 0));
    one_request(4);
    assert_int_equal(lagand_stop(&r), 0);
}

/* It is not passed on, because it has nothing that took long to load. */
static void
gpu_standby_ends_with_lagand_and_is_started_again(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "good", ARGS("--device", "cuda"));
    lagand_await_workers(&r, 2);
    c = ask_reexec();
    lagand_ready(&r);
    dealer_close(c);
    assert_true(lagand_logged(&r, "fake: adopted weights of epoch 1", 5000));
    lagand_await_workers(&r, 2);
    one_request(2);
    assert_int_equal(kill(r.pid, SIGKILL), 0);
    assert_int_equal(lagand_wait(&r, 5000), 256 + SIGKILL);
    lagand_await_workers(&r, 0);
    lagand_begin(&r, "good", ARGS("--device", "cuda", "--remove-runtime-dir"));
    lagand_await_workers(&r, 2);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
reload_replaces_each_worker_while_streams_continue(void **state)
{
    enum { N = 8, TOKENS = 100 };
    uint32_t at[N + 1] = { 0 }, n_done = 0;
    struct dealer *c, *ctl;

    (void)state;
    lagand_begin(&r, "slow", ARGS("--set", "workers=2"));
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    for (uint64_t i = 1; i <= N; i++)
        SEND(c, LAGAN_MSG_SUBMIT, i, { "ids", 3 }, { "max_tokens", TOKENS }, { "seed", (int64_t)i },
             { "ack_window", 256 });
    for (int n_received = 0; n_done < N;) {
        const struct msg *m = receive(c, 5000);

        if (m->type == LAGAN_MSG_CHUNK) at[m->rid] = take_chunk(m, at[m->rid], m->rid);
        if (m->type == LAGAN_MSG_ERROR) fail_msg("%s", text_of(&m->map, "message"));
        if (m->type == LAGAN_MSG_DONE) assert_int_equal(at[m->rid], TOKENS);
        n_done += m->type == LAGAN_MSG_DONE;
        if (++n_received == 20) {
            systemd_clear_notices(&r.systemd);
            call(ctl, 1, "reload", NULL, NULL);
        }
        if (n_received == 30) kill(r.pid, SIGHUP); /* a rolling restart is in progress */
    }
    assert_true(lagand_notified(&r, "RELOADING=1", 2000));
    assert_true(lagand_notified(&r, "READY=1", 2000));
    assert_true(lagand_logged(&r, "fake: mode slow, epoch 2", 0));
    assert_int_equal(lagand_n_workers(&r), 2);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
reload_stops_if_the_first_worker_fails(void **state)
{
    char died[200];
    pid_t pid;
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "die-once", ARGS("--set", "workers=2"));
    c = dealer_open(&r, "api.sock");
    pid = worker_pid(c, 1);
    snprintf(died, sizeof died, "%s/died", r.model);
    assert_int_equal(unlink(died), 0);
    systemd_clear_notices(&r.systemd);
    kill(r.pid, SIGHUP);
    assert_true(lagand_notified(&r, "RELOADING=1", 2000));
    assert_true(lagand_notified(&r, "READY=1", 5000));
    for (uint64_t i = 2; worker_pid(c, i) == pid && i < 100; i++) poll(NULL, 0, 10);
    one_request(5);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
second_reload_is_refused_during_the_first(void **state)
{
    const msgpack_object *list;
    const struct msg *m;
    struct dealer *ctl;
    uint32_t asked = 0;

    (void)state;
    lagand_begin(&r, "slow", ARGS("--set", "workers=2"));
    ctl = dealer_open(&r, "ctl.sock");
    systemd_clear_notices(&r.systemd);
    kill(r.pid, SIGSTOP); /* so that both run at the same time */
    call(ctl, 1, "reload", NULL, NULL);
    call(ctl, 2, "reload", NULL, NULL);
    kill(r.pid, SIGCONT);
    receive_error(ctl, 2, LAGAN_E_UNSUPPORTED, "a reload is in progress", 5000);
    m = receive_type(ctl, LAGAN_MSG_REPLY, 5000);
    assert_int_equal(number(msg_get(&m->map, "result"), "workers"), 2);
    assert_true(lagand_notified(&r, "READY=1", 5000));
    call(ctl, 3, "events", NULL, NULL);
    list = msg_get(msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 5000)->map, "result"), "events");
    for (uint32_t i = 0; i < list->via.array.size; i++) { /* the first caller */
        const char *text = text_of(&list->via.array.ptr[i], "text");

        if (!strcmp(text, "reload")) asked = i;
        if (!strncmp(text, "ready -> ", 9)) assert_true(asked > 0);
    }
    assert_true(asked > 0);
    dealer_close(ctl);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
stop_ends_a_reload(void **state)
{
    struct dealer *c, *ctl;

    (void)state;
    lagand_begin(&r, "slow-once", ARGS("--set", "workers=2"));
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    submit(c, 1, 3, 100000, 1); /* so that it does not stop at once */
    systemd_clear_notices(&r.systemd);
    call(ctl, 1, "reload", NULL, NULL);
    receive_type(ctl, LAGAN_MSG_REPLY, 5000);
    /* w0 is being replaced and its replacement never becomes ready: the reload cannot reach w1. */
    assert_true(lagand_logged(&r, "fake: mode slow-once, epoch 2", 10000));
    kill(r.pid, SIGTERM);
    assert_true(lagand_notified(&r, "STOPPING=1", 10000));
    poll(NULL, 0, 300);
    assert_false(lagand_logged(&r, "worker w1: pid", 0));
    assert_false(lagand_notified(&r, "READY=1", 0));
    kill(r.pid, SIGTERM); /* then at once */
    assert_int_equal(lagand_wait(&r, 3000), 0);
    dealer_close(c);
    dealer_close(ctl);
}

static void
finished_reload_clears_its_status(void **state)
{
    (void)state;
    lagand_begin(&r, "good", NULL);
    assert_true(lagand_notified(&r, "STATUS=1 of 1 workers ready", 3000));
    systemd_clear_notices(&r.systemd);
    kill(r.pid, SIGHUP);
    assert_true(lagand_notified(&r, "RELOADING=1", 2000));
    assert_true(lagand_notified(&r, "READY=1", 5000));
    if (lagand_notified(&r, "STATUS=reloading", 0)) /* unless the test takes less than a second */
        assert_true(lagand_notified(&r, "STATUS=1 of 1 workers ready", 3000));
    assert_int_equal(lagand_stop(&r), 0);
}

/* ---- requests */

enum { STREAMS = 32, MOST = 600 };
static const nsec SETTLE = 120 * NSEC_S; /* replies arrive at once */

struct stream {
    uint64_t id;
    uint32_t n, resumed, adopted;
    int32_t ids[MOST];
    bool done;
};
static struct stream streams[STREAMS];
static nsec last_token, longest_gap; /* between two events with tokens of any stream */

static struct lagan *
connect_to(void)
{
    char endpoint[160];
    struct lagan *c = NULL;

    snprintf(endpoint, sizeof endpoint, "ipc://%s/api.sock", r.run);
    if (lagan_open(&c, endpoint, 5000) < 0) fail_msg("%s", lagan_errmsg(NULL));
    return c;
}

static void
ask(struct lagan *c, struct stream *s, uint32_t max_tokens, int64_t seed)
{
    static const int32_t ids[3] = { 1, 2, 3 };
    struct lagan_request *q = lagan_request_new();

    memset(s, 0, sizeof *s);
    lagan_set_ids(q, "ids", ids, 3);
    lagan_set_int(q, "max_tokens", max_tokens);
    lagan_set_int(q, "seed", seed);
    lagan_set_bool(q, "ignore_eos", 1);
    lagan_set_float(q, "temperature", 1);
    assert_int_equal(lagan_submit(c, q, &s->id), 0);
    lagan_request_free(q);
}

/* Reads events of n streams until that time or until all have ended. Returns the number of open
 * ones. */
static uint32_t
take_events(struct lagan *c, uint32_t n, nsec until)
{
    uint32_t open = 0;

    for (uint32_t i = 0; i < n; i++) open += !streams[i].done;
    while (open && clock_now() < until) {
        struct lagan_event ev = { .size = sizeof ev };
        struct stream *s = streams;

        if (lagan_next(c, &ev, 20) != 1) continue;
        while (s->id != ev.id) s++;
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev.reason_name, ev.message);
        if (ev.kind == LAGAN_EVENT_TOKENS) {
            nsec now = clock_now();

            longest_gap = MAX(longest_gap, now - last_token);
            last_token = now;
            assert_int_equal(ev.first, s->n);
            assert_true(s->n + ev.n_ids <= MOST);
            memcpy(s->ids + s->n, ev.ids, ev.n_ids * sizeof *ev.ids);
            s->n += ev.n_ids;
        }
        if (ev.kind == LAGAN_EVENT_OUTPUT) {
            s->resumed = ev.resumed;
            s->adopted = ev.adopted;
        }
        open -= ev.kind == LAGAN_EVENT_DONE;
        s->done |= ev.kind == LAGAN_EVENT_DONE;
    }
    return open;
}

static int
by_size(const void *a, const void *b)
{
    nsec x = *(const nsec *)a, y = *(const nsec *)b;

    return (x > y) - (x < y);
}

static void
requests_of_a_killed_lagand_continue_without_resubmission(void **state)
{
    enum { KILLS = 10, TOKENS = 250 };
    nsec gap[KILLS];
    struct lagan *c;
    struct dealer *ctl;
    const struct msg *m;

    (void)state;
    lagand_begin(&r, "slow", ARGS("--set", "workers=2"));
    c = connect_to();
    for (uint32_t i = 0; i < STREAMS; i++) ask(c, &streams[i], TOKENS, i);
    take_events(c, STREAMS, clock_now() + 200 * NSEC_MS);
    for (int i = 0; i < KILLS; i++) {
        longest_gap = 0;
        lagand_crash(&r, "slow", ARGS("--set", "workers=2", "--remove-runtime-dir"));
        take_events(c, STREAMS, clock_now() + (nsec)(300 + 20 * i) * NSEC_MS);
        gap[i] = longest_gap;
    }
    qsort(gap, KILLS, sizeof *gap, by_size);
    print_message("lagand killed %d times: a gap of %.0f ms in the median, %.0f at most\n", KILLS,
                  (double)gap[KILLS / 2] / NSEC_MS, (double)gap[KILLS - 1] / NSEC_MS);
    lagand_ready(&r);
    assert_int_equal(take_events(c, STREAMS, clock_now() + SETTLE), 0);
    for (uint32_t i = 0; i < STREAMS; i++) {
        assert_int_equal(streams[i].n, TOKENS);
        assert_in_range(streams[i].resumed, 1, KILLS);
        for (uint32_t k = 0; k < TOKENS; k++) assert_int_equal(streams[i].ids[k], fake_token(i, k));
    }
    ctl = dealer_open(&r, "api.sock");
    call(ctl, 1, "status", NULL, NULL);
    m = receive_type(ctl, LAGAN_MSG_REPLY, 2000);
    assert_int_equal(number(msg_get(&m->map, "result"), "accepted"), 0);
    dealer_close(ctl);
    lagan_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
loading_weights_extends_the_start_timeout(void **state)
{
    (void)state;
    lagand_start(&r, "loading", NULL);
    assert_true(lagand_notified(&r, "EXTEND_TIMEOUT_USEC=30000000", 3000));
    kill(r.pid, SIGTERM);
    assert_true(lagand_notified(&r, "STOPPING=1", 2000));
    assert_true(lagand_wait(&r, 8000) >= 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        lagand_test(killed_lagand_leaves_weights_and_kv_to_the_next),
        lagand_test(kv_without_its_ledger_is_not_adopted),
        lagand_test(unused_descriptors_of_the_store_are_closed),
        lagand_test(reexec_keeps_the_pid_and_passes_everything),
        lagand_test(failed_reexec_is_reported_and_lagand_continues),
        lagand_test(reexec_is_refused_if_a_worker_could_not_open_its_model),
        lagand_test(systemds_socket_is_served_by_each_lagand),
        lagand_test(gpu_standby_ends_with_lagand_and_is_started_again),
        lagand_test(reload_replaces_each_worker_while_streams_continue),
        lagand_test(reload_stops_if_the_first_worker_fails),
        lagand_test(second_reload_is_refused_during_the_first),
        lagand_test(stop_ends_a_reload),
        lagand_test(finished_reload_clears_its_status),
        lagand_test(requests_of_a_killed_lagand_continue_without_resubmission),
        lagand_test(loading_weights_extends_the_start_timeout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
