/* test_connections.c - which connections are closed above the limit. */
#include "daemon/net/connections.h"

#include "tests/daemon/lagand_fixture.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 4 };

static struct lagand_fixture r;

static void
make(int pair[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
}

static bool
is_shut(int peer)
{
    char byte;

    return recv(peer, &byte, 1, MSG_DONTWAIT) == 0;
}

static void
oldest_connection_without_a_message_is_closed(void **state)
{
    struct connections *c = connections_new(MOST);
    nsec since;
    int s[MOST + 1][2];

    (void)state;
    for (int i = 0; i < MOST + 1; i++) make(s[i]);
    for (int i = 0; i < MOST; i++) assert_false(connections_opened(c, s[i][0], 10 + i));
    connections_set_client(c, s[0][0], 7);
    connections_set_client(c, s[2][0], 8);
    assert_true(connections_opened(c, s[MOST][0], 20));
    assert_int_equal(connections_oldest_unidentified(c, &since), s[1][0]);
    assert_int_equal(since, 11);
    connections_shutdown_unidentified(c, s[1][0]);
    assert_true(is_shut(s[1][1]));
    assert_false(is_shut(s[0][1]));
    assert_int_equal(connections_n(c), MOST);
    assert_int_equal(connections_oldest_unidentified(c, &since), s[3][0]);
    assert_int_equal(since, 13);
    assert_int_equal(connections_closed(c, s[1][0]),
                     CLIENT_NONE); /* libzmq has reported its end: known already */
    assert_int_equal(connections_closed(c, s[0][0]), 7); /* closed by the peer, after a message */
    assert_int_equal(connections_n(c), MOST - 1);
    connections_set_client(c, s[3][0], 9);
    connections_set_client(c, s[MOST][0], 10);
    assert_int_equal(connections_oldest_unidentified(c, &since), -1);
    connections_free(c);
}

static void
reused_descriptor_is_not_closed(void **state)
{
    struct connections *c = connections_new(MOST);
    uint64_t cookie;
    int old[2], new[2];

    (void)state;
    make(old);
    make(new);
    assert_false(connections_opened(c, old[0], 1));
    cookie = connections_cookie(old[0]);
    assert_true(cookie && cookie != connections_cookie(new[0]));
    assert_int_equal(dup2(new[0], old[0]), old[0]);
    connections_shutdown(c, old[0], cookie);
    assert_false(is_shut(new[1]));
    assert_false(
        connections_opened(c, old[0], 2)); /* its end was not reported: one entry, one socket */
    assert_int_equal(connections_n(c), 1);
    connections_shutdown(c, old[0], 0); /* not in the table */
    assert_false(is_shut(new[1]));
    dup2(old[1], old[0]); /* it has a client now */
    connections_shutdown_unidentified(c, old[0]);
    assert_false(is_shut(new[1]));
    assert_int_equal(connections_n(c), 0);
    assert_int_equal(pipe(new), 0);
    assert_int_equal(connections_cookie(new[0]), 0); /* no socket */
    connections_free(c);
}

static void
connection_limit_closes_idle_clients_only(void **state)
{
    struct dealer *busy, *idle[8], *late;

    (void)state;
    lagand_begin(&r, "brisk", ARGS("--api.max-connections", "4"));
    busy = dealer_open(&r, "api.sock");
    submit(busy, 1, 3, 500, 1);
    for (uint64_t i = 0; i < ARRAY_LEN(idle); i++) {
        idle[i] = dealer_open_small(&r, "api.sock", 1000);
        SEND(idle[i], LAGAN_MSG_HELLO, i, { "min", 1 }, { "max", 1 });
        receive_type(idle[i], LAGAN_MSG_WELCOME, 5000);
    }
    assert_true(lagand_logged(&r, "are open, which is the limit", 30000));
    late = dealer_open(&r, "api.sock");
    submit(late, 1, 3, 20, 2);
    take_all(late, 1, 20, 2);
    take_all(busy, 1, 500, 1);
    assert_int_equal(lagand_stop(&r), 0);
}

/* Some connections stay open without a message; one client has sent a goodbye. */
static void
closed_connection_is_removed_from_the_table(void **state)
{
    struct dealer *idle[2], *late;

    (void)state;
    lagand_begin(&r, "good", ARGS("--api.max-connections", "2", "--api.idle-timeout", "100ms"));
    for (uint64_t i = 0; i < ARRAY_LEN(idle); i++) {
        idle[i] = dealer_open_small(&r, "api.sock", 1000);
        SEND(idle[i], LAGAN_MSG_HELLO, i, { "min", 1 }, { "max", 1 });
        receive_type(idle[i], LAGAN_MSG_WELCOME, 5000);
    }
    send_keys(idle[0], LAGAN_MSG_BYE, 0, NULL, 0);
    poll(NULL, 0, 1500);
    late = dealer_open(&r, "api.sock");
    submit(late, 1, 3, 20, 2);
    take_all(late, 1, 20, 2);
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oldest_connection_without_a_message_is_closed),
        cmocka_unit_test(reused_descriptor_is_not_closed),
        lagand_test(connection_limit_closes_idle_clients_only),
        lagand_test(closed_connection_is_removed_from_the_table),
    };

    return cmocka_run_group_tests_name("connections", tests, NULL, NULL);
}
