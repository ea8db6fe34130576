/* test_tcp_server.c - lagand over tcp: authentication and limits of keys. */
#include "include/lagan.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/lagand_fixture.h"
#include "wire/curve.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

struct pair {
    char public[CURVE_KEY + 1], secret[CURVE_KEY + 1];
};

static struct lagand_fixture r;
static struct pair server, alice, eve;
static char dir[] = "/tmp/lagan-tcp-XXXXXX", keys[64], alices[64], eves[64], at[64];

/* A file with a secret and one more line. */
static void
write_keys(const char *path, const char *secret, const char *word, const char *key,
           const char *rest)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    dprintf(fd, "secret %s\n%s %s%s\n", secret, word, key, rest);
    close(fd);
}

static int
set_up(void **state)
{
    (void)state;
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(keys, sizeof keys, "%s/keys", dir);
    snprintf(alices, sizeof alices, "%s/alice", dir);
    snprintf(eves, sizeof eves, "%s/eve", dir);
    zmq_curve_keypair(server.public, server.secret);
    zmq_curve_keypair(alice.public, alice.secret);
    zmq_curve_keypair(eve.public, eve.secret);
    write_keys(keys, server.secret, "client", alice.public, " alice");
    write_keys(alices, alice.secret, "server", server.public, "");
    write_keys(eves, eve.secret, "server", server.public, "");
    return 0;
}

static int
tear_down(void **state)
{
    char command[96];

    (void)state;
    lagand_clean(&r);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

/* libzmq chooses a free port; the log has it. */
static void
start(const char *mode)
{
    char line[512], *from;
    FILE *f;

    lagand_start(&r, mode, ARGS("--api.tcp", "tcp://127.0.0.1:*", "--api.keys", keys));
    lagand_ready(&r);
    f = fopen(r.log, "r");
    *at = '\0';
    while (f && fgets(line, sizeof line, f))
        if ((from = strstr(line, "tcp://"))) sscanf(from, "%63s", at);
    fclose(f);
    assert_true(*at);
}

static uint64_t
ask(struct lagan *c, uint32_t n_tokens)
{
    static const int32_t ids[3] = { 1, 2, 3 };
    struct lagan_request *q = lagan_request_new();
    uint64_t id;

    lagan_set_ids(q, "ids", ids, 3);
    lagan_set_int(q, "max_tokens", n_tokens);
    lagan_set_int(q, "seed", 5);
    lagan_set_int(q, "disconnect_timeout_ms", 600000); /* for lost clients, not for closed ones */
    assert_int_equal(lagan_submit(c, q, &id), 0);
    lagan_request_free(q);
    return id;
}

static struct lagan *
connect_as(const char *file)
{
    struct lagan *c = NULL;

    if (lagan_open_keys(&c, at, file, 30000) < 0) fail_msg("%s", lagan_errmsg(NULL));
    return c;
}

/* alice has a long request, and an operator is connected. */
static struct lagan *
start_with_one_open(struct dealer **ctl)
{
    struct lagan_event ev = { sizeof ev };
    struct lagan *c;

    start("slow");
    c = connect_as(alices);
    ask(c, 100000);
    assert_int_equal(lagan_next(c, &ev, 30000), 1);
    *ctl = dealer_open(&r, "ctl.sock");
    return c;
}

static void
reload_with(struct dealer *ctl, uint64_t rid, const char *key, const char *rest)
{
    write_keys(keys, server.secret, "client", key, rest);
    call(ctl, rid, "reload", NULL, NULL);
    receive_type(ctl, LAGAN_MSG_REPLY, 30000);
}

static void
only_keys_of_the_file_are_served(void **state)
{
    struct lagan *c, *none = NULL;
    struct lagan_event ev = { sizeof ev };
    uint32_t n = 0;

    (void)state;
    start("good");
    c = connect_as(alices);
    ask(c, 40);
    while (lagan_next(c, &ev, 30000) == 1 && ev.kind == LAGAN_EVENT_TOKENS)
        for (uint32_t i = 0; i < ev.n_ids; i++) assert_int_equal(ev.ids[i], fake_token(5, n++));
    assert_int_equal(ev.kind, LAGAN_EVENT_OUTPUT);
    assert_int_equal(n, 40);

    assert_int_equal(lagan_open_keys(&none, at, eves, 30000), -EACCES);
    assert_non_null(strstr(lagan_errmsg(NULL), "does not accept the public key"));
    assert_true(lagand_logged(&r, "its key is not in api.keys", 30000));
    assert_int_equal(lagan_open(&none, at, 1000), -EINVAL);
    assert_non_null(strstr(lagan_errmsg(NULL), "a tcp endpoint needs keys"));
    chmod(alices, 0644);
    assert_int_equal(lagan_open_keys(&none, at, alices, 1000), -EACCES);
    assert_non_null(strstr(lagan_errmsg(NULL), "mode 0644"));
    lagan_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

/* With a plain socket, or with the key of another server. */
static void
frames_without_valid_keys_do_not_arrive(void **state)
{
    struct pair other;
    int zero = 0;

    (void)state;
    start("good");
    zmq_curve_keypair(other.public, other.secret);
    for (int i = 0; i < 2; i++) {
        void *s = zmq_socket(r.zmq, ZMQ_DEALER);
        zmq_pollitem_t p = { .socket = s, .events = ZMQ_POLLIN };

        zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero);
        if (i) {
            zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, other.public, CURVE_KEY + 1);
            zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, alice.public, CURVE_KEY + 1);
            zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, alice.secret, CURVE_KEY + 1);
        }
        assert_int_equal(zmq_connect(s, at), 0);
        zmq_send(s, "\x94\x01\x0c\x05\x80", 5, 0); /* PING */
        assert_int_equal(zmq_poll(&p, 1, 700), 0);
        zmq_close(s);
    }
    lagan_close(connect_as(alices));
    assert_int_equal(lagand_stop(&r), 0);
}

static void
tcp_needs_a_keys_file(void **state)
{
    (void)state;
    lagand_start(&r, "good", ARGS("--api.tcp", "tcp://127.0.0.1:*"));
    assert_int_equal(lagand_wait(&r, 3000), 78);
    assert_true(lagand_logged(&r, "lagand serves tcp clients only with keys", 0));
    lagand_start(&r, "good", ARGS("--api.tcp", "tcp://127.0.0.1:*", "--api.keys", alices));
    assert_true(lagand_wait(&r, 300) < 0); /* a secret alone is valid, but admits no client */
    kill(r.pid, SIGKILL);
    lagand_wait(&r, 1000);
    chmod(keys, 0640);
    lagand_start(&r, "good", ARGS("--api.tcp", "tcp://127.0.0.1:*", "--api.keys", keys));
    assert_int_equal(lagand_wait(&r, 3000), 78);
    assert_true(lagand_logged(&r, "mode 0640; run chmod 600", 0));
    lagand_start(&r, "good", ARGS("--api.tcp", "ipc:///tmp/x", "--api.keys", keys));
    assert_int_equal(lagand_wait(&r, 3000), 78);
    assert_true(lagand_logged(&r, "it must begin with tcp://", 0));
}

static void
limits_of_a_key_cover_all_its_connections(void **state)
{
    struct lagan_event ev = { sizeof ev };
    struct lagan *c[2];

    (void)state;
    write_keys(keys, server.secret, "client", alice.public,
               " alice max_inflight=3 max_tokens=5000");
    start("slow");
    c[0] = connect_as(alices);
    c[1] = connect_as(alices);
    ask(c[0], 1000);
    ask(c[1], 1000);
    ask(c[1], 4000); /* more tokens than alice has left */
    do assert_int_equal(lagan_next(c[1], &ev, 30000), 1);
    while (ev.kind == LAGAN_EVENT_TOKENS);
    assert_string_equal(ev.reason_name, "queue_full");
    assert_non_null(strstr(ev.message, "user key:alice: the open requests have"));
    ask(c[0], 1000);
    ask(c[0], 1);
    do assert_int_equal(lagan_next(c[0], &ev, 30000), 1);
    while (ev.kind == LAGAN_EVENT_TOKENS);
    assert_string_equal(ev.reason_name, "queue_full");
    assert_non_null(strstr(ev.message, "key:alice has 3 open requests"));
    lagan_close(c[1]); /* and with it one request */
    for (int i = 0; i < 1000; i++) {
        uint64_t id = ask(c[0], 1);

        do assert_int_equal(lagan_next(c[0], &ev, 30000), 1);
        while (ev.id != id);
        if (ev.kind != LAGAN_EVENT_ERROR) break;
        poll(NULL, 0, 20);
    }
    assert_int_equal(ev.kind, LAGAN_EVENT_TOKENS);
    lagan_close(c[0]);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
reload_reads_the_keys_again(void **state)
{
    struct dealer *ctl;
    struct lagan *c = start_with_one_open(&ctl), *none = NULL;

    (void)state;
    chmod(keys, 0644);
    call(ctl, 1, "reload", NULL, NULL);
    receive_error(ctl, 1, LAGAN_E_INVALID_REQUEST, "mode 0644", 30000);
    chmod(keys, 0600);
    reload_with(ctl, 2, eve.public, " eve");
    lagan_close(connect_as(eves));
    assert_int_equal(lagan_open_keys(&none, at, alices, 30000), -EACCES);
    call(ctl, 3, "status", NULL, NULL); /* alice's request has ended */
    assert_int_equal(
        number(msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 30000)->map, "result"), "requests"), 0);
    lagan_set_reconnect_timeout(c, 0);
    lagan_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

/* SIGHUP, like systemd's reload. */
static void
sighup_reads_the_keys_again(void **state)
{
    struct lagan *none = NULL;

    (void)state;
    start("good");
    lagan_close(connect_as(alices));
    chmod(keys, 0644);
    kill(r.pid, SIGHUP);
    assert_true(lagand_logged(&r, "reload by SIGHUP refused because of api.keys: ", 30000));
    write_keys(keys, server.secret, "client", eve.public, " eve");
    chmod(keys, 0600);
    systemd_clear_notices(&r.systemd);
    kill(r.pid, SIGHUP);
    assert_true(lagand_notified(&r, "RELOADING=1", 30000));
    lagan_close(connect_as(eves));
    assert_int_equal(lagan_open_keys(&none, at, alices, 30000), -EACCES);
    assert_int_equal(lagand_stop(&r), 0);
}

/* Requests of liblagan have names and continue without a connection, unless it sent a goodbye.
 * lagand is stopped: the goodbye and the end of the connection arrive together, and the worker has
 * generated tokens meanwhile. */
static void
frames_before_a_disconnect_are_read(void **state)
{
    enum { CLOSES = 20 };

    (void)state;
    start("brisk");
    for (int i = 0; i < CLOSES; i++) {
        struct lagan_event ev = { sizeof ev };
        struct lagan *c = connect_as(alices);
        struct dealer *ctl;

        ask(c, 100000);
        assert_int_equal(lagan_next(c, &ev, 30000), 1);
        kill(r.pid, SIGSTOP);
        lagan_close(c);
        poll(NULL, 0, 20);
        kill(r.pid, SIGCONT);
        ctl = dealer_open(&r, "ctl.sock");
        for (uint64_t n = 1; open_requests(ctl, n); n++)
            assert_true(poll(NULL, 0, ASK_MS) == 0 && n < 100);
        dealer_close(ctl);
    }
    assert_int_equal(lagand_stop(&r), 0);
}

/* The name stays, with another key. */
static void
replaced_key_is_not_served(void **state)
{
    struct dealer *ctl;
    struct lagan *c = start_with_one_open(&ctl);

    (void)state;
    reload_with(ctl, 1, eve.public, " alice");
    for (uint64_t i = 2; open_requests(ctl, i); i++) assert_true(poll(NULL, 0, 20) == 0 && i < 500);
    lagan_set_reconnect_timeout(c, 0);
    lagan_close(c);
    lagan_close(connect_as(eves));
    assert_int_equal(lagand_stop(&r), 0);
}

static void
reload_applies_new_limits_to_open_connections(void **state)
{
    struct lagan_event ev = { sizeof ev };
    struct dealer *ctl;
    struct lagan *c = start_with_one_open(&ctl);

    (void)state;
    reload_with(ctl, 1, alice.public, " alice max_inflight=1");
    ask(c, 3);
    do assert_int_equal(lagan_next(c, &ev, 30000), 1);
    while (ev.kind == LAGAN_EVENT_TOKENS && ev.id == 1);
    assert_int_equal(ev.kind, LAGAN_EVENT_ERROR);
    assert_string_equal(ev.message, "user key:alice has 1 open requests, which is its limit");
    lagan_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
message_with_many_frames_does_not_block_others(void **state)
{
    enum { FRAMES = 400000 };
    void *s;
    int zero = 0;
    struct dealer *other;
    uint32_t n = 0;

    (void)state;
    start("good");
    s = zmq_socket(r.zmq, ZMQ_DEALER);
    zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(s, ZMQ_SNDHWM, &zero, sizeof zero);
    zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, server.public, CURVE_KEY + 1);
    zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, alice.public, CURVE_KEY + 1);
    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, alice.secret, CURVE_KEY + 1);
    assert_int_equal(zmq_connect(s, at), 0);
    for (uint32_t i = 1; i <= FRAMES; i++)
        assert_int_equal(zmq_send(s, "", 0, i < FRAMES ? ZMQ_SNDMORE : 0), 0);
    zmq_send(s, "\x94\x01\x0c\x05\x80", 5, 0); /* PING */
    other = dealer_open(&r, "api.sock");
    for (uint32_t n_replies = 0; n_replies < 2;) { /* the ERROR, and the PONG after all frames */
        zmq_pollitem_t p = { .socket = s, .events = ZMQ_POLLIN };

        assert_true(zmq_poll(&p, 1, n_replies ? 0 : 30000) >= (n_replies ? 0 : 1));
        n_replies += p.revents != 0 && zmq_recv(s, (char[500]){ 0 }, 500, 0) > 0;
        if (!n_replies) continue;
        SEND(other, LAGAN_MSG_PING, 1, { "t", 1 });
        receive_type(other, LAGAN_MSG_PONG, 30000);
        if (n++ == 100000) break;
    }
    zmq_close(s);
    assert_in_range(n, 5, 99999);
    dealer_close(other);
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(only_keys_of_the_file_are_served),
        T(frames_without_valid_keys_do_not_arrive),
        T(tcp_needs_a_keys_file),
        T(reload_reads_the_keys_again),
        T(message_with_many_frames_does_not_block_others),
        T(sighup_reads_the_keys_again),
        T(frames_before_a_disconnect_are_read),
        T(replaced_key_is_not_served),
        T(reload_applies_new_limits_to_open_connections),
        T(limits_of_a_key_cover_all_its_connections),
    };

    if (!zmq_has("curve")) return 77;
    return cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
