/* test_hello.c - connections that end at any instant around HELLO.
 *
 * The peer is a raw socket with a minimal ZMTP that closes the connection while HELLO is in flight,
 * while WELCOME is in flight, or before a request. Every connection must begin with HELLO, and no
 * request may be lost. */
#include "client/client.h"
#include "tests/client/client_fixture.h"
#include "tests/test.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BREAKS = 300, WAIT_MS = 20000, OPEN_MS = 20 };
enum fate { AT_ONCE, WELCOME }; /* a connection ends at once, or after its WELCOME */

static struct lagan *c;
static pid_t server;

/* ---- the peer */

static bool
receive(int fd, uint8_t *to, size_t n)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    ssize_t r = 1;

    for (; n && r > 0; to += r, n -= (size_t)r) r = poll(&p, 1, WAIT_MS) == 1 ? read(fd, to, n) : 0;
    return n == 0;
}

/* Returns whether the next frame that is not a ZMTP command is HELLO. */
static bool
receive_hello(int fd)
{
    uint8_t head[2], body[255];
    struct msg m;
    bool hello;

    do {
        if (!receive(fd, head, 2) || !receive(fd, body, head[1])) return false;
    } while (head[0] & 4);
    if (head[0] || msg_decode(&m, body, head[1], NULL) < 0) return false;
    hello = m.type == LAGAN_MSG_HELLO;
    msg_done(&m);
    return hello;
}

static bool
welcome(int fd)
{
    msgpack_sbuffer b;
    msgpack_packer p;
    uint8_t head[2] = { 0 };
    bool ok;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_WELCOME, 0, 1);
    msg_key(&p, "proto"), msgpack_pack_int(&p, LAGAN_WIRE_VERSION);
    head[1] = (uint8_t)b.size;
    ok = write(fd, head, 2) == 2 && write(fd, b.data, b.size) == (ssize_t)b.size;
    msgpack_sbuffer_destroy(&b);
    return ok;
}

static bool
shake_hands(int fd)
{
    static const uint8_t ready[] = "\4\x1c\5READY\13Socket-Type\0\0\0\6ROUTER";
    uint8_t greeting[64] = { 0xff, [9] = 0x7f, 3, 0, 'N', 'U', 'L', 'L' }, theirs[64];

    return write(fd, greeting, sizeof greeting) == sizeof greeting &&
           receive(fd, theirs, sizeof theirs) &&
           write(fd, ready, sizeof ready - 1) == sizeof ready - 1;
}

static int
listen_to(int listener, const enum fate fate[2], uint32_t n, uint32_t open_ms)
{
    for (uint32_t i = 0; i < n; i++) {
        int fd = accept(listener, NULL, NULL);

        if (fd < 0 || !shake_hands(fd)) return 2;
        if (fate[i % 2] == WELCOME && !receive_hello(fd)) return 1;
        if (fate[i % 2] == WELCOME && !welcome(fd)) return 2;
        usleep(open_ms ? open_ms * 1000 : i % 16 * 20);
        close(fd);
    }
    return 0;
}

/* Serves n connections that end alternately in the two ways. */
static void
serve(enum fate even, enum fate odd, uint32_t n, uint32_t open_ms)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    mock_dir(&mock);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/api.sock", mock.dir);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 8), 0);
    server = fork();
    if (server == 0) {
        signal(SIGPIPE, SIG_IGN);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(listen_to(listener, (const enum fate[]){ even, odd }, n, open_ms));
    }
    close(listener);
    assert_int_equal(lagan_open(&c, mock.endpoint, 0), 0);
}

static bool
served(void)
{
    struct lagan_event ev = { sizeof ev };
    int status;

    assert_int_equal(lagan_next(c, &ev, 1), 0);
    if (waitpid(server, &status, WNOHANG) == 0) return false;
    assert_int_equal(status, 0);
    return true;
}

static void
ask(void)
{
    struct lagan_request *r = lagan_request_new();
    uint64_t id;

    lagan_set_str(r, "text", "one", 3);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
}

static int
finish(void **state)
{
    lagan_close(c);
    return teardown(state);
}

/* ---- tests */

static void
lost_hello_is_sent_again_on_the_next_connection(void **state)
{
    (void)state;
    serve(AT_ONCE, WELCOME, BREAKS, 0);
    while (!served()) continue;
}

static void
welcome_of_a_closed_connection_is_ignored(void **state)
{
    (void)state;
    serve(WELCOME, WELCOME, BREAKS, 0);
    ask();
    while (!served()) continue;
}

static void
request_is_not_sent_before_hello_after_a_reconnect(void **state)
{
    (void)state;
    serve(WELCOME, WELCOME, 10, OPEN_MS);
    while (!served()) {
        if (!c->welcome) continue;
        usleep(3 * OPEN_MS * 1000); /* the connection ends unnoticed */
        ask();
    }
}

int
main(void)
{
#define T(f) cmocka_unit_test_teardown(f, finish)
    const struct CMUnitTest tests[] = {
        T(lost_hello_is_sent_again_on_the_next_connection),
        T(welcome_of_a_closed_connection_is_ignored),
        T(request_is_not_sent_before_hello_after_a_reconnect),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
