/* test_tcp_server.c - lagand over tcp: authentication and limits of keys. */
#include "include/lagan.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/lagand_fixture.h"
#include "wire/curve.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zmq.h>

struct pair {
    char public[CURVE_KEY + 1], secret[CURVE_KEY + 1];
};

static struct lagand_fixture r;
static struct pair server, alice, eve;
static void *plain, *monitor; /* sockets, closed by tear_down() also after a failed test */
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
    if (plain) zmq_close(plain);
    if (monitor) zmq_close(monitor);
    plain = monitor = NULL;
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

static const char PING[] = "\x94\x01\x0c\x05\x80"; /* 5 bytes: version, type, rid, map */

/* Makes the DEALER `plain`, with the keys of a client and of a server; NULL: without encryption. */
static void
open_plain(const struct pair *client, const struct pair *of)
{
    int zero = 0;

    if (plain) zmq_close(plain);
    plain = zmq_socket(r.zmq, ZMQ_DEALER);
    zmq_setsockopt(plain, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(plain, ZMQ_SNDHWM, &zero, sizeof zero);
    if (!client) return;
    zmq_setsockopt(plain, ZMQ_CURVE_SERVERKEY, of->public, CURVE_KEY + 1);
    zmq_setsockopt(plain, ZMQ_CURVE_PUBLICKEY, client->public, CURVE_KEY + 1);
    zmq_setsockopt(plain, ZMQ_CURVE_SECRETKEY, client->secret, CURVE_KEY + 1);
}

static bool
readable(void *socket, int ms)
{
    zmq_pollitem_t p = { .socket = socket, .events = ZMQ_POLLIN };

    return zmq_poll(&p, 1, ms) == 1;
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

/* Regression: all had one error, a timeout, and lagand logged nothing. */
static void
failed_connections_have_different_errors(void **state)
{
    struct lagan *none = NULL;
    char closed[64];
    struct pair other;

    (void)state;
    start("good");
    zmq_curve_keypair(other.public, other.secret);
    write_keys(eves, alice.secret, "server", other.public, "");
    assert_int_equal(lagan_open_keys(&none, at, eves, 1000), -EACCES);
    assert_non_null(strstr(lagan_errmsg(NULL), "is not the key of that lagand"));
    assert_true(lagand_logged(&r, "failed the CURVE handshake", 30000));
    assert_int_equal(lagan_open_keys(&none, "tcp://no-such-host.invalid:7770", alices, 300),
                     -EHOSTUNREACH);
    assert_non_null(strstr(lagan_errmsg(NULL), "no-such-host.invalid cannot be resolved"));
    snprintf(closed, sizeof closed, "%s", at);
    lagan_close(connect_as(alices));
    assert_int_equal(lagand_stop(&r), 0);
    assert_int_equal(lagan_open_keys(&none, closed, alices, 300), -ECONNREFUSED);
    assert_non_null(strstr(lagan_errmsg(NULL), "Connection refused"));
}

/* With a plain socket, or with the key of another server. */
static void
frames_without_valid_keys_do_not_arrive(void **state)
{
    struct pair other;

    (void)state;
    start("good");
    zmq_curve_keypair(other.public, other.secret);
    for (int i = 0; i < 2; i++) {
        open_plain(i ? &alice : NULL, &other);
        assert_int_equal(zmq_connect(plain, at), 0);
        zmq_send(plain, PING, 5, 0);
        assert_false(readable(plain, 700));
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
    assert_int_equal(lagand_wait(&r, 3000), 77);
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
    receive_error(ctl, 1, LAGAN_E_UNAUTHORIZED, "mode 0644", 30000);
    chmod(keys, 0600);
    reload_with(ctl, 2, eve.public, " eve");
    lagan_close(connect_as(eves));
    assert_int_equal(lagan_open_keys(&none, at, alices, 30000), -EACCES);
    /* alice's request ends when the worker has handled its cancellation */
    for (uint64_t rid = 3; open_requests(ctl, rid) && rid < 300; rid++) poll(NULL, 0, ASK_MS);
    assert_int_equal(open_requests(ctl, 300), 0);
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
    assert_true(lagand_logged(&r, "reload refused: api.keys: ", 30000));
    write_keys(keys, server.secret, "client", eve.public, " eve");
    chmod(keys, 0600);
    kill(r.pid, SIGHUP);
    assert_true(lagand_logged(&r, "reload: took the keys in api.keys", 30000));
    lagan_close(connect_as(eves));
    assert_int_equal(lagan_open_keys(&none, at, alices, 30000), -EACCES);
    assert_false(lagand_logged(&r, "epoch 2", 0)); /* no worker was replaced */
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

/* The client sends its first frame after its key was removed from the file; lagand had accepted the
 * handshake before. */
static void
key_removed_after_the_handshake_is_refused(void **state)
{
    char frame[500] = { 0 };
    struct dealer *ctl;
    struct msg m;
    int n;

    (void)state;
    start("good");
    ctl = dealer_open(&r, "ctl.sock");
    open_plain(&alice, &server);
    monitor = zmq_socket(r.zmq, ZMQ_PAIR);
    assert_int_equal(zmq_socket_monitor(plain, "inproc://handshake", ZMQ_EVENT_HANDSHAKE_SUCCEEDED),
                     0);
    assert_int_equal(zmq_connect(monitor, "inproc://handshake"), 0);
    assert_int_equal(zmq_connect(plain, at), 0);
    assert_true(readable(monitor, 30000));
    reload_with(ctl, 1, eve.public, " eve");
    zmq_send(plain, PING, 5, 0);
    assert_true(readable(plain, 30000));
    n = zmq_recv(plain, frame, sizeof frame, 0);
    assert_in_range(n, 1, sizeof frame);
    assert_int_equal(msg_decode(&m, frame, (size_t)n, NULL), 0);
    assert_int_equal(m.type, LAGAN_MSG_ERROR);
    assert_non_null(strstr(text_of(&m.map, "message"), "removed from api.keys"));
    msg_done(&m);
    assert_int_equal(lagand_stop(&r), 0);
}

/* The key stays, with another name: its limits and its requests are those of another user. */
static void
renamed_key_is_another_user(void **state)
{
    struct lagan_event ev = { sizeof ev };
    struct dealer *ctl;
    struct lagan *c = start_with_one_open(&ctl);

    (void)state;
    reload_with(ctl, 1, alice.public, " bob max_inflight=1");
    for (uint64_t i = 2; open_requests(ctl, i); i++) assert_true(poll(NULL, 0, 20) == 0 && i < 500);
    do assert_int_equal(lagan_next(c, &ev, 30000), 1);
    while (ev.kind == LAGAN_EVENT_TOKENS);
    assert_string_equal(ev.reason_name, "cancelled");
    lagan_close(c);
    c = connect_as(alices);
    ask(c, 100000);
    ask(c, 1);
    do assert_int_equal(lagan_next(c, &ev, 30000), 1);
    while (ev.kind == LAGAN_EVENT_TOKENS);
    assert_string_equal(ev.message, "user key:bob has 1 open requests, which is its limit");
    lagan_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

/* The list is written twice, here and in lagan_wire.h, because an error in it gives rights away. */
static void
clients_may_call_only_these_verbs(void **state)
{
    static const char *const of_clients[] = {
        "status",     "workers list", "requests list", "cancel",   "tokenize",
        "detokenize", "config show",  "kv stats",      "kv pools", "metrics",
        "version",    "models",       "load",          "pieces",   "render",
    };
    static const char *const all[] = {
#define X(id, name, operators, args, result) name,
        LAGAN_VERBS(X)
#undef X
    };
    struct lagan *over_tcp;
    struct dealer *api;

    (void)state;
    start("good");
    over_tcp = connect_as(alices);
    api = dealer_open(&r, "api.sock");
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        uint32_t code = 0;
        char *reply = NULL;
        size_t k = 0;

        while (k < ARRAY_LEN(of_clients) && strcmp(of_clients[k], all[i])) k++;
        if (k < ARRAY_LEN(of_clients)) continue;
        call(api, i, all[i], NULL, NULL);
        receive_error(api, i, LAGAN_E_UNAUTHORIZED, "is for operators: connect to", 30000);
        assert_int_equal(lagan_call(over_tcp, all[i], NULL, &reply, &code, 30000), -EREMOTEIO);
        assert_int_equal(code, LAGAN_E_UNAUTHORIZED);
    }
    lagan_close(over_tcp);
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
    struct dealer *other;
    uint32_t n = 0;

    (void)state;
    start("good");
    open_plain(&alice, &server);
    assert_int_equal(zmq_connect(plain, at), 0);
    for (uint32_t i = 1; i <= FRAMES; i++)
        assert_int_equal(zmq_send(plain, "", 0, i < FRAMES ? ZMQ_SNDMORE : 0), 0);
    zmq_send(plain, PING, 5, 0);
    other = dealer_open(&r, "api.sock");
    for (uint32_t n_replies = 0; n_replies < 2;) { /* the ERROR, and the PONG after all frames */
        zmq_pollitem_t p = { .socket = plain, .events = ZMQ_POLLIN };

        assert_true(zmq_poll(&p, 1, n_replies ? 0 : 30000) >= (n_replies ? 0 : 1));
        n_replies += p.revents != 0 && zmq_recv(plain, (char[500]){ 0 }, 500, 0) > 0;
        if (!n_replies) continue;
        SEND(other, LAGAN_MSG_PING, 1, { "t", 1 });
        receive_type(other, LAGAN_MSG_PONG, 30000);
        if (n++ == 100000) break;
    }
    assert_in_range(n, 5, 99999);
    dealer_close(other);
    assert_int_equal(lagand_stop(&r), 0);
}

/* Forbids netlink sockets to this process and its children, like RestrictAddressFamilies= of the
 * documented drop-in, with the same error. */
static void
forbid_netlink(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = { ARRAY_LEN(code), code };

    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0) skip();
    assert_true(socket(AF_NETLINK, SOCK_RAW, 0) < 0);
}

/* The last test, because the filter stays. */
static void
tcp_on_an_address_needs_no_netlink_socket(void **state)
{
    struct lagan_event ev = { sizeof ev };
    struct lagan *c;

    (void)state;
    forbid_netlink();
    start("good");
    assert_true(strstr(at, "tcp://127.0.0.1:") == at);
    c = connect_as(alices);
    ask(c, 5);
    assert_int_equal(lagan_next(c, &ev, 30000), 1);
    assert_int_equal(ev.kind, LAGAN_EVENT_TOKENS);
    lagan_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(only_keys_of_the_file_are_served),
        T(failed_connections_have_different_errors),
        T(frames_without_valid_keys_do_not_arrive),
        T(tcp_needs_a_keys_file),
        T(reload_reads_the_keys_again),
        T(message_with_many_frames_does_not_block_others),
        T(sighup_reads_the_keys_again),
        T(frames_before_a_disconnect_are_read),
        T(replaced_key_is_not_served),
        T(key_removed_after_the_handshake_is_refused),
        T(renamed_key_is_another_user),
        T(clients_may_call_only_these_verbs),
        T(reload_applies_new_limits_to_open_connections),
        T(limits_of_a_key_cover_all_its_connections),
        T(tcp_on_an_address_needs_no_netlink_socket),
    };

    if (!zmq_has("curve")) return 77;
    return cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
