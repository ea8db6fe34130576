/* test_unix_server.c - unix_server.h, with the test as the peer of each connection.
 *
 * The other tests of lagand show that libzmq's DEALER works with it.
 */
#include "daemon/net/unix_server.h"

#include "base/clock.h"
#include "tests/test.h"
#include "wire/zmtp.h"

#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST = 4 << 20, PEERS = 32, HELLO_BYTES = ZMTP_GREETING + 30 };

static struct unix_server *l;
static char dir[32], path[64];
static struct unix_server_event news;

static int
set_up(void **state)
{
    struct err e;

    (void)state;
    strcpy(dir, "/tmp/lagan-local-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/s", dir);
    l = unix_server_open(MOST);
    assert_non_null(l);
    assert_int_equal(unix_server_listen(l, 1, path, PEERS, &e), 0);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    l = unix_server_close(l);
    unlink(path);
    rmdir(dir);
    return 0;
}

/* The next event that is not PARTIAL. Returns false if there is none. */
static bool
take(void)
{
    int r;

    do {
        unix_server_look(l);
        r = unix_server_take(l, 1, &news);
    } while (r > 0 && news.what == UNIX_SERVER_PARTIAL);
    unix_server_flush(l);
    return r > 0;
}

static int
dial(void)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    strcpy(a.sun_path, path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_true(take());
    assert_int_equal(news.what, UNIX_SERVER_OPENED);
    assert_int_equal(news.listener, 1);
    assert_int_equal(news.uid, getuid());
    return fd;
}

static void
say(int fd, const void *p, size_t n)
{
    assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), n);
}

static void
say_hello(int fd)
{
    static const char ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                                "DEALER";
    uint8_t theirs[HELLO_BYTES], hello[ZMTP_HELLO];

    zmtp_hello(hello, /* client= */ false);
    assert_int_equal(sizeof hello, HELLO_BYTES);
    say(fd, hello, ZMTP_GREETING);
    say(fd, ready, sizeof ready - 1);
    assert_false(take());
    assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), HELLO_BYTES);
    assert_memory_equal(theirs, hello, HELLO_BYTES);
}

static int
meet(struct unix_server_event *who)
{
    int fd = dial();

    *who = news;
    say_hello(fd);
    return fd;
}

static void
assert_frame(const struct unix_server_event *from, const void *p, size_t n)
{
    assert_true(take());
    assert_int_equal(news.what, UNIX_SERVER_FRAME);
    assert_true(news.peer == from->peer);
    assert_int_equal(news.n_frames, 1);
    assert_int_equal(news.n, n);
    assert_memory_equal(news.p, p, n);
}

static void
assert_ended(const struct unix_server_event *who)
{
    assert_true(take());
    assert_int_equal(news.what, UNIX_SERVER_CLOSED);
    assert_true(news.peer == who->peer);
    assert_int_equal(news.fd, who->fd);
    assert_false(take());
}

/* ---- received bytes */

static void
single_bytes_are_assembled_to_a_message(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);

    (void)state;
    for (int i = 0; i < 6; i++) {
        say(fd, "\0\5hello" + i, 1);
        assert_false(take());
    }
    say(fd, "o", 1);
    assert_frame(&who, "hello", 5);
    assert_false(take());
    close(fd);
    assert_ended(&who);
}

static void
bytes_before_the_disconnect_are_read(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);

    (void)state;
    say(fd, "\0\2ab\0\1c", 7);
    close(fd);
    assert_frame(&who, "ab", 2);
    assert_frame(&who, "c", 1);
    assert_ended(&who);
}

static void
message_of_several_frames_reports_only_their_number(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);

    (void)state;
    say(fd, "\1\0\1\2ab\0\1c\0\1d", 12);
    assert_true(take());
    assert_int_equal(news.what, UNIX_SERVER_FRAME);
    assert_int_equal(news.n_frames, 3);
    assert_null(news.p);
    assert_frame(&who, "d", 1);
    close(fd);
}

static void
peer_without_zmtp_is_disconnected_at_once(void **state)
{
    int fd = dial();
    struct unix_server_event who = news;

    (void)state;
    say(fd, "GET", 3);
    assert_ended(&who);
    close(fd);
}

static void
ping_gets_a_pong(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);
    char pong[10];

    (void)state;
    say(fd, "\x04\x0a\x04PING\0\0abc", 12);
    assert_false(take());
    assert_int_equal(recv(fd, pong, sizeof pong, MSG_WAITALL), 10);
    assert_memory_equal(pong, "\x04\x08\x04PONGabc", 10);
    close(fd);
}

static void
long_ping_context_is_returned_truncated(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);
    char pong[23];

    (void)state;
    say(fd, "\x04\x19\x04PING\0\0abcdefghijklmnopqr", 27);
    assert_false(take());
    assert_int_equal(recv(fd, pong, sizeof pong, MSG_WAITALL), 23);
    assert_memory_equal(pong, "\x04\x15\x04PONGabcdefghijklmnop", 23);
    close(fd);
}

/* Like libzmq's ROUTER: the socket type may be absent, and properties may be long. */
static void
ready_may_have_other_properties(void **state)
{
    static const char brief[] = "\x04\x06\x05READY";
    static const char before[] = "\x06\0\0\0\0\0\0\x13\x8e\x05READY\x03X-A\0\0\x13\x80";
    static const char value[0x1380];
    uint8_t hello[ZMTP_HELLO];

    (void)state;
    zmtp_hello(hello, /* client= */ false);
    for (int i = 0; i < 2; i++) {
        int fd = dial();
        struct unix_server_event who = news;

        say(fd, hello, ZMTP_GREETING);
        if (i == 0) {
            say(fd, brief, sizeof brief - 1);
        } else {
            say(fd, before, sizeof before - 1);
            say(fd, value, sizeof value);
        }
        say(fd, "\0\2ab", 4);
        assert_frame(&who, "ab", 2);
        close(fd);
        assert_ended(&who);
    }
}

/* A peer sends the smallest messages without end; a message of another peer comes among the first
 * thousands. */
static void
no_peer_is_passed_over(void **state)
{
    static char flood[128 << 10];
    struct unix_server_event loud, shy;
    int fd = meet(&loud), other = meet(&shy);
    uint32_t n = 0;

    (void)state;
    say(fd, flood, sizeof flood);
    say(other, "\0\2hi", 4);
    do {
        assert_true(take());
        assert_int_equal(news.what, UNIX_SERVER_FRAME);
    } while (news.peer != shy.peer && ++n < sizeof flood);
    assert_in_range(n, 0, 4096);
    close(fd);
    close(other);
}

enum {
    MANY = (UNIX_SERVER_PARTS >> 20) / (MOST >> 20) + 2
}; /* of the longest frames: above the limit */
static const uint8_t head[9] = { ZMTP_LONG, 0, 0, 0, 0, 0, MOST >> 16 };
static char body[MOST];

/* Each peer has sent all but the last byte of a frame. */
static void
oldest_partial_frame_is_dropped_above_the_limit(void **state)
{
    struct unix_server_event who[MANY];
    uint32_t n_ended = 0, at;
    int fd[MANY];

    (void)state;
    for (uint32_t i = 0; i < MANY; i++) {
        fd[i] = meet(&who[i]);
        say(fd[i], head, sizeof head);
        for (at = 0; at < MOST - 1; at += MIN(64u << 10, MOST - 1 - at)) {
            say(fd[i], body, MIN(64u << 10, MOST - 1 - at));
            while (take()) {
                assert_int_equal(news.what, UNIX_SERVER_CLOSED);
                assert_true(news.peer == who[n_ended++].peer);
            }
        }
    }
    assert_in_range(n_ended, 2, 3);
    say(fd[MANY - 1], body, 1);
    assert_frame(&who[MANY - 1], body, MOST);
    for (uint32_t i = 0; i < MANY; i++) close(fd[i]);
}

static void
completed_frame_is_not_counted_as_partial(void **state)
{
    struct unix_server_event who;
    int fd[MANY];

    (void)state;
    for (uint32_t i = 0; i < MANY; i++) {
        fd[i] = meet(&who);
        say(fd[i], head, sizeof head);
        for (uint32_t at = 0; at < MOST; at += 64u << 10) {
            say(fd[i], body, 64 << 10);
            if (at + (64u << 10) < MOST) assert_false(take());
        }
        assert_frame(&who, body, MOST);
        assert_false(take());
    }
    for (uint32_t i = 0; i < MANY; i++) close(fd[i]);
}

static void
too_long_frame_disconnects_its_peer(void **state)
{
    static const uint8_t longer[9] = { ZMTP_LONG, 0, 0, 0, 0, 0, MOST >> 16, 0, 1 };
    struct unix_server_event who;
    int fd = meet(&who);

    (void)state;
    say(fd, longer, sizeof longer);
    assert_ended(&who);
    close(fd);
}

/* ---- what leaves */

static void
messages_of_an_iteration_are_sent_together(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);
    char all[8];

    (void)state;
    assert_int_equal(unix_server_send(l, who.fd, who.peer, "ab", 2), 0);
    assert_int_equal(unix_server_send(l, who.fd, who.peer, "cd", 2), 0);
    assert_int_equal(recv(fd, all, sizeof all, MSG_DONTWAIT), -1);
    unix_server_flush(l);
    assert_int_equal(recv(fd, all, sizeof all, MSG_DONTWAIT), sizeof all);
    assert_memory_equal(all, "\0\2ab\0\2cd", sizeof all);
    close(fd);
}

static void
unsent_bytes_wait_and_keep_their_order(void **state)
{
    static uint8_t frame[100 << 10], received[9 + sizeof frame];
    struct unix_server_event who;
    int fd = meet(&who);
    uint32_t sent = 0, got = 0;

    (void)state;
    while (sent < 20) {
        memset(frame, (int)sent++, sizeof frame);
        assert_int_equal(unix_server_send(l, who.fd, who.peer, frame, sizeof frame), 0);
        unix_server_flush(l);
    }
    while (got < sent) {
        uint32_t n = 0;

        while (n < sizeof received) {
            ssize_t r = recv(fd, received + n, sizeof received - n, MSG_DONTWAIT);

            if (r < 0) assert_false(take()); /* the socket has space again */
            if (r > 0) n += (uint32_t)r;
        }
        memset(frame, (int)got++, sizeof frame);
        assert_memory_equal(received + 9, frame, sizeof frame);
    }
    close(fd);
}

static void
send_above_the_limit_or_to_a_lost_peer_fails(void **state)
{
    static uint8_t frame[1 << 20];
    struct unix_server_event who, next;
    int fd = meet(&who), n = 0, r;

    (void)state;
    do r = unix_server_send(l, who.fd, who.peer, frame, sizeof frame);
    while (r == 0 && ++n < 1000);
    assert_int_equal(r, -EAGAIN);
    assert_int_equal(n, (UNIX_SERVER_UNSENT >> 20) - 1); /* with their headers */
    assert_true(unix_server_disconnect(l, who.fd));
    assert_int_equal(unix_server_send(l, who.fd, who.peer, frame, 1), -EHOSTUNREACH);
    assert_ended(&who);
    assert_false(unix_server_disconnect(l, who.fd));
    close(fd);
    fd = meet(&next); /* the old number, and another peer */
    assert_int_equal(next.fd, who.fd);
    assert_int_equal(unix_server_send(l, who.fd, who.peer, frame, 1), -EHOSTUNREACH);
    assert_int_equal(unix_server_send(l, next.fd, next.peer, frame, 1), 0);
    close(fd);
}

/* It may have sent a goodbye. */
static void
bytes_of_a_leaving_peer_are_read_despite_sends(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);

    (void)state;
    say(fd, "\0\x01y\0\x01z", 6);
    close(fd);
    assert_int_equal(unix_server_send(l, who.fd, who.peer, "x", 1), 0);
    unix_server_flush(l); /* both are in its socket */
    assert_frame(&who, "y", 1);
    assert_int_equal(unix_server_send(l, who.fd, who.peer, "x", 1), 0);
    unix_server_flush(l); /* one is read already */
    assert_frame(&who, "z", 1);
    assert_int_equal(unix_server_send(l, who.fd, who.peer, "x", 1), 0);
    unix_server_flush(l);
    assert_int_equal(unix_server_send(l, who.fd, who.peer, "x", 1), -EHOSTUNREACH);
    assert_ended(&who);
}

static void
peer_that_never_reads_gets_no_more_pongs(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);
    char pings[25 * 400];
    ssize_t r;
    size_t n = 0;

    (void)state;
    for (int i = 0; i < 400; i++)
        memcpy(pings + 25 * i, "\x04\x17\x04PING\0\0sixteen bytes...", 25);
    for (int i = 0; i < 400; i++) {
        say(fd, pings, sizeof pings);
        assert_false(take());
    }
    for (; (r = recv(fd, pings, sizeof pings, MSG_DONTWAIT)) > 0; n += (size_t)r)
        assert_false(take());
    assert_in_range(n, 1, 1 << 20); /* a socket buffer and 64 KiB, of 3.7 MB */
    close(fd);
}

static void
unsent_bytes_are_sent_at_close(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);
    char last[3];

    (void)state;
    assert_int_equal(unix_server_send(l, who.fd, who.peer, "x", 1), 0);
    l = unix_server_close(l);
    assert_int_equal(recv(fd, last, sizeof last, MSG_WAITALL), 3);
    assert_memory_equal(last, "\0\1x", 3);
    assert_int_equal(recv(fd, last, 1, 0), 0);
    close(fd);
}

/* ---- time */

static void
peer_without_ready_is_disconnected_after_the_timeout(void **state)
{
    int fd = dial();
    struct unix_server_event who = news;

    (void)state;
    unix_server_tick(l, 1 + UNIX_SERVER_IDLE_TIMEOUT - 1);
    assert_false(take());
    unix_server_tick(l, 1 + UNIX_SERVER_IDLE_TIMEOUT);
    assert_ended(&who);
    close(fd);
}

static void
peer_without_pong_is_disconnected(void **state)
{
    struct unix_server_event dead, live;
    int fd = meet(&dead), other = meet(&live);
    char ping[ZMTP_PING];

    (void)state;
    for (nsec now = 1; now < 4 * UNIX_SERVER_IDLE_TIMEOUT; now += NSEC_S / 4) {
        unix_server_tick(l, now);
        if (!take()) {
            if (recv(other, ping, sizeof ping, MSG_DONTWAIT) == sizeof ping)
                say(other, "\x04\x05\x04PONG", 7);
            continue;
        }
        assert_int_equal(news.what, UNIX_SERVER_CLOSED);
        assert_true(news.peer == dead.peer);
        assert_in_range(now, UNIX_SERVER_IDLE_TIMEOUT, 2 * UNIX_SERVER_IDLE_TIMEOUT);
        dead.peer = 0; /* once */
    }
    assert_int_equal(dead.peer, 0);
    assert_int_equal(unix_server_send(l, live.fd, live.peer, "", 0), 0);
    close(fd);
    close(other);
}

/* libzmq 4.1, which announces ZMTP 3.0, takes a PING for a message. */
static void
peer_without_ping_support_gets_no_ping(void **state)
{
    static const char ready[] = "\x04\x06\x05READY";
    int fd = dial();
    struct unix_server_event who = news;
    uint8_t hello[ZMTP_HELLO], theirs[HELLO_BYTES];

    (void)state;
    zmtp_hello(hello, /* client= */ true);
    say(fd, hello, ZMTP_GREETING);
    say(fd, ready, sizeof ready - 1);
    assert_false(take());
    assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), HELLO_BYTES);
    for (nsec now = 1; now < 4 * UNIX_SERVER_IDLE_TIMEOUT; now += NSEC_S / 4) {
        unix_server_tick(l, now);
        assert_false(take());
    }
    assert_int_equal(recv(fd, theirs, 1, MSG_DONTWAIT), -1);
    assert_int_equal(unix_server_send(l, who.fd, who.peer, "", 0), 0);
    close(fd);
}

/* lagand did not run, and the PONG is there, unread. */
static void
peer_that_has_replied_is_not_disconnected(void **state)
{
    struct unix_server_event who;
    int fd = meet(&who);

    (void)state;
    unix_server_tick(l, 1 + 2 * NSEC_S);
    unix_server_flush(l);
    say(fd, "\x04\x05\x04PONG", 7);
    unix_server_tick(l, 1 + 100 * NSEC_S);
    assert_false(take());
    assert_int_equal(unix_server_send(l, who.fd, who.peer, "", 0), 0);
    close(fd);
}

/* ---- the listener */

static void
peers_above_the_limit_are_refused_and_file_mode_is_group(void **state)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct stat st;
    int fd[PEERS + 1];
    char c;

    (void)state;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);
    for (int i = 0; i < PEERS; i++) fd[i] = dial();
    strcpy(a.sun_path, path);
    fd[PEERS] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd[PEERS], (struct sockaddr *)&a, sizeof a), 0);
    assert_false(take());
    assert_int_equal(recv(fd[PEERS], &c, 1, 0), 0);
    for (int i = 0; i <= PEERS; i++) close(fd[i]);
}

/* The loop sleeps meanwhile. */
static void
accept_waits_for_a_free_descriptor(void **state)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct pollfd listener = { .fd = unix_server_fd(l), .events = POLLIN };
    struct rlimit files, few;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), next = dup(fd);

    (void)state;
    getrlimit(RLIMIT_NOFILE, &files);
    few = (struct rlimit){ (rlim_t)next, files.rlim_max };
    close(next);
    strcpy(a.sun_path, path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    setrlimit(RLIMIT_NOFILE, &few);
    assert_false(take());
    assert_int_equal(poll(&listener, 1, 0), 0);
    unix_server_tick(l, 1);
    assert_false(take());
    setrlimit(RLIMIT_NOFILE, &files);
    unix_server_tick(l, 1);
    assert_true(take());
    assert_int_equal(news.what, UNIX_SERVER_OPENED);
    close(fd);
}

#define local_test(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        local_test(single_bytes_are_assembled_to_a_message),
        local_test(bytes_before_the_disconnect_are_read),
        local_test(message_of_several_frames_reports_only_their_number),
        local_test(peer_without_zmtp_is_disconnected_at_once),
        local_test(ping_gets_a_pong),
        local_test(long_ping_context_is_returned_truncated),
        local_test(ready_may_have_other_properties),
        local_test(no_peer_is_passed_over),
        local_test(oldest_partial_frame_is_dropped_above_the_limit),
        local_test(completed_frame_is_not_counted_as_partial),
        local_test(too_long_frame_disconnects_its_peer),
        local_test(messages_of_an_iteration_are_sent_together),
        local_test(unsent_bytes_wait_and_keep_their_order),
        local_test(send_above_the_limit_or_to_a_lost_peer_fails),
        local_test(bytes_of_a_leaving_peer_are_read_despite_sends),
        local_test(peer_that_never_reads_gets_no_more_pongs),
        local_test(unsent_bytes_are_sent_at_close),
        local_test(peer_without_ready_is_disconnected_after_the_timeout),
        local_test(peer_without_pong_is_disconnected),
        local_test(peer_without_ping_support_gets_no_ping),
        local_test(peer_that_has_replied_is_not_disconnected),
        local_test(accept_waits_for_a_free_descriptor),
        local_test(peers_above_the_limit_are_refused_and_file_mode_is_group),
    };

    return cmocka_run_group_tests_name("local", tests, NULL, NULL);
}
