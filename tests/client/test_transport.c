/* test_transport.c - the AF_UNIX connection of liblagan, against a raw socket as its peer. */
#include "base/clock.h"
#include "client/transport.h"
#include "tests/test.h"
#include "wire/zmtp.h"

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int listener, peer, epoll;
static struct transport *l;
static char path[64];

/* Makes a listening socket, a transport to it and the peer's end of the connection. */
static int
set_up(void **state)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };

    (void)state;
    snprintf(path, sizeof path, "@lagan-test-transport-%d", (int)getpid());
    memcpy(at.sun_path, path, strlen(path));
    at.sun_path[0] = 0;
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    assert_int_equal(bind(listener, (struct sockaddr *)&at,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))),
                     0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(unix_transport_open(&l, path, epoll), 0);
    peer = accept(listener, NULL, NULL);
    assert_true(peer >= 0);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    l = transport_close(l, 0);
    if (peer >= 0) close(peer);
    close(listener);
    close(epoll);
    return 0;
}

static void
read_all(void *to, size_t n)
{
    assert_int_equal(recv(peer, to, n, MSG_WAITALL), n);
}

static void
say(const void *p, size_t n)
{
    assert_int_equal(send(peer, p, n, MSG_NOSIGNAL), n);
}

static void
shake_hands(void)
{
    uint8_t theirs[ZMTP_HELLO], ours[ZMTP_HELLO];

    read_all(theirs, sizeof theirs);
    zmtp_hello(ours, /* client= */ true);
    assert_memory_equal(theirs, ours, sizeof ours);
    zmtp_hello(ours, /* client= */ false);
    say(ours, sizeof ours);
}

static enum transport_event
next(const void **frame, size_t *n)
{
    nsec until = clock_now() + 10 * NSEC_S;
    enum transport_event e = TRANSPORT_NOTHING;

    while (e == TRANSPORT_NOTHING && clock_now() < until) {
        e = transport_receive(l, frame, n);
        if (e == TRANSPORT_NOTHING) assert_int_equal(transport_wait(l, true, 10), 0);
    }
    return e;
}

static void
frames_arrive_whole_at_every_division(void **state)
{
    static const uint8_t frames[] = "\0\003abc\0\0\0\002de";
    uint8_t bytes[ZMTP_HELLO + sizeof frames - 1], theirs[ZMTP_HELLO];

    (void)state;
    read_all(theirs, sizeof theirs);
    zmtp_hello(bytes, /* client= */ false);
    memcpy(bytes + ZMTP_HELLO, frames, sizeof frames - 1);
    for (uint32_t i = 0; i < sizeof bytes; i++) {
        const void *p;
        size_t n = 99;
        enum transport_event want = i == ZMTP_HELLO + 4 || i == ZMTP_HELLO + 6 ||
                                            i == sizeof bytes - 1
                                        ? TRANSPORT_FRAME
                                        : TRANSPORT_NOTHING;

        say(bytes + i, 1);
        assert_int_equal(transport_receive(l, &p, &n), want);
        assert_int_equal(transport_state(l) & TRANSPORT_WRITABLE,
                         i < ZMTP_HELLO - 1 ? 0 : TRANSPORT_WRITABLE);
        if (want == TRANSPORT_FRAME)
            assert_int_equal(n, i == ZMTP_HELLO + 4 ? 3 : i == ZMTP_HELLO + 6 ? 0 : 2);
        if (n == 3) assert_memory_equal(p, "abc", 3);
    }
}

static void
one_read_has_all_frames_that_have_arrived(void **state)
{
    const void *p;
    size_t n;

    (void)state;
    shake_hands();
    say("\0\001a\0\001b\0\001c", 9);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(transport_receive(l, &p, &n), TRANSPORT_FRAME);
        assert_int_equal(*(const char *)p, "abc"[i]);
        assert_int_equal(transport_state(l) & TRANSPORT_READABLE, i < 2 ? TRANSPORT_READABLE : 0);
    }
    assert_int_equal(transport_receive(l, &p, &n), TRANSPORT_NOTHING);
}

static void
frame_beyond_the_socket_buffer_is_sent_in_parts_and_in_order(void **state)
{
    enum { LONG = 4 << 20 };
    uint8_t *frame = malloc(LONG), head[ZMTP_HEAD];
    struct epoll_event ev;
    const void *p;
    size_t n;

    (void)state;
    assert_non_null(frame);
    for (uint32_t i = 0; i < LONG; i++) frame[i] = (uint8_t)(i * 2654435761u >> 24);
    assert_int_equal(transport_send(l, "early", 5), -EAGAIN); /* before the handshake */
    shake_hands();
    assert_int_equal(transport_receive(l, &p, &n), TRANSPORT_NOTHING);
    assert_int_equal(epoll_wait(epoll, &ev, 1, 0), 0);
    assert_int_equal(transport_send(l, frame, LONG), 0);
    assert_int_equal(transport_state(l) & TRANSPORT_WRITABLE, 0);
    assert_int_equal(transport_send(l, "x", 1), -EAGAIN);
    assert_int_equal(zmtp_head(head, LONG), ZMTP_HEAD);
    for (size_t at = 0; at < LONG + ZMTP_HEAD;) {
        uint8_t got[1 << 16];
        size_t most = MIN(sizeof got, LONG + ZMTP_HEAD - at);
        ssize_t k = recv(peer, got, most, 0);

        assert_true(k > 0);
        for (ssize_t i = 0; i < k; i++, at++)
            assert_int_equal(got[i], at < ZMTP_HEAD ? head[at] : frame[at - ZMTP_HEAD]);
        (void)transport_state(l); /* sends what the socket has space for */
    }
    assert_int_equal(transport_state(l), TRANSPORT_WRITABLE);
    assert_int_equal(epoll_wait(epoll, &ev, 1, 0), 0); /* no longer for space */
    assert_int_equal(transport_send(l, "x", 1), 0);
    read_all(head, 3);
    assert_memory_equal(head, "\0\001x", 3);
    free(frame);
}

static void
frames_before_the_end_are_received_then_the_loss(void **state)
{
    const void *p;
    size_t n;

    (void)state;
    shake_hands();
    say("\0\001a\0\001b\0\003c", 9); /* the last one is cut off */
    close(peer);
    peer = -1;
    assert_int_equal(next(&p, &n), TRANSPORT_FRAME);
    assert_int_equal(transport_send(l, "too late!", 9), 0);
    assert_int_equal(next(&p, &n), TRANSPORT_FRAME);
    assert_int_equal(*(const char *)p, 'b');
    assert_int_equal(next(&p, &n), TRANSPORT_LOST);
}

static void
last_frame_leaves_within_the_linger_time(void **state)
{
    enum { LONG = 1 << 20 };
    static uint8_t frame[LONG], got[LONG + ZMTP_HEAD];
    const void *p;
    size_t n = 0;
    pid_t reader;
    int status;

    (void)state;
    shake_hands();
    assert_int_equal(transport_receive(l, &p, &n), TRANSPORT_NOTHING);
    assert_int_equal(transport_send(l, frame, LONG), 0);
    reader = fork();
    if (reader == 0) {
        _exit(recv(peer, got, sizeof got, MSG_WAITALL) != sizeof got);
    }
    close(peer);
    peer = -1;
    l = transport_close(l, 10000);
    assert_int_equal(waitpid(reader, &status, 0), reader);
    assert_int_equal(status, 0);
}

static void
peer_with_another_protocol_is_not_connected(void **state)
{
    const void *p;
    size_t n;

    (void)state;
    say("HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    assert_int_equal(next(&p, &n), TRANSPORT_NOT_CONNECTED);
}

static void
message_of_several_frames_is_ignored(void **state)
{
    const void *p;
    size_t n;

    (void)state;
    shake_hands();
    say("\1\001a\0\001b\0\001c", 9);
    assert_int_equal(next(&p, &n), TRANSPORT_FRAME);
    assert_int_equal(*(const char *)p, 'c');
}

static void
absent_socket_is_an_event_and_a_long_path_an_error(void **state)
{
    char too_long[200];
    struct transport *other;
    const void *p;
    size_t n;

    (void)state;
    assert_int_equal(unix_transport_open(&other, "/nowhere/api.sock", epoll), 0);
    assert_int_equal(transport_state(other), TRANSPORT_READABLE);
    assert_int_equal(transport_receive(other, &p, &n), TRANSPORT_NOT_CONNECTED);
    assert_int_equal(transport_send(other, "x", 1), -EAGAIN);
    transport_close(other, 100);
    memset(too_long, 'a', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = 0;
    assert_int_equal(unix_transport_open(&other, too_long, epoll), -ENAMETOOLONG);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(frames_arrive_whole_at_every_division),
        T(one_read_has_all_frames_that_have_arrived),
        T(frame_beyond_the_socket_buffer_is_sent_in_parts_and_in_order),
        T(frames_before_the_end_are_received_then_the_loss),
        T(last_frame_leaves_within_the_linger_time),
        T(peer_with_another_protocol_is_not_connected),
        T(message_of_several_frames_is_ignored),
        T(absent_socket_is_an_event_and_a_long_path_an_error),
    };

    return cmocka_run_group_tests_name("transport", tests, NULL, NULL);
}
