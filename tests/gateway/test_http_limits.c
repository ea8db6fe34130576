/* test_http_limits.c - clients of the HTTP server that are slow, silent, too many, or leave. */
#include "gateway/http/http_internal.h"
#include "tests/gateway/http_fixture.h"

#include "tests/test.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"
#define POST(path, fields) "POST " path " HTTP/1.1\r\nHost: a\r\n" fields "\r\n"

static struct http_fixture f;

static void
start(const struct http_limits *l)
{
    fixture_open(&f, "127.0.0.1:0", l);
}

static int
set_up(void **state)
{
    struct http_limits l = fixture_limits();

    (void)state;
    start(&l);
    return 0;
}

static int
set_up_short_timeouts(void **state)
{
    struct http_limits l = fixture_limits();

    (void)state;
    l.header_timeout = l.body_timeout = l.idle_timeout = 300 * NSEC_MS;
    l.write_timeout = 500 * NSEC_MS;
    start(&l);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    fixture_close(&f);
    return 0;
}

/* Opens a connection and sends a text; the server has read it when the handler has seen it, or
 * after a few iterations. */
static void
open_with(struct http_client *c, const char *text)
{
    uint32_t before = f.n_requests;

    client_open(c, &f);
    client_text(c, text);
    for (int i = 0; i < 3 && f.n_requests == before; i++) fixture_iterate(&f);
}

/* ---- slow clients */

static void
half_a_head_and_silence_gets_408(void **state)
{
    struct http_client c;

    (void)state;
    open_with(&c, "GET /hello HTTP/1.1\r\nHo");
    client_until_closed(&c);
    assert_int_equal(client_count(&c, "HTTP/1.1 408 Request Timeout\r\n"), 1);
    assert_string_equal(f.rule, "header_timeout");
    assert_int_equal(f.n_heads, 0);
    client_close(&c);
}

static void
a_head_that_trickles_is_ended_by_the_same_timeout(void **state)
{
    struct http_client c;
    nsec end = clock_now() + 5 * NSEC_S;

    (void)state;
    open_with(&c, "GET /hello HTTP/1.1\r\nX: ");
    while (!c.is_closed && clock_now() < end) {
        client_text(&c, "y");
        for (int i = 0; i < 4; i++) fixture_iterate(&f);
        client_read(&c);
    }
    assert_true(c.is_closed);
    assert_string_equal(f.rule, "header_timeout");
    client_close(&c);
}

static void
silent_and_idle_connections_are_closed_without_a_word(void **state)
{
    struct http_client silent, idle;

    (void)state;
    open_with(&silent, "");
    open_with(&idle, GET("/hello"));
    client_until(&idle, "hello\n", 1);
    client_until_closed(&silent);
    client_until_closed(&idle);
    assert_int_equal(silent.n, 0);
    assert_int_equal(client_count(&idle, "HTTP/1.1"), 1);
    client_close(&silent);
    client_close(&idle);
}

static void
a_body_that_stops_gets_408(void **state)
{
    static const char *const inputs[] = {
        POST("/echo", "Content-Length: 3\r\n") "ab",
        POST("/echo", "Content-Length: 3\r\nExpect: 100-continue\r\n"),
        POST("/echo", "Transfer-Encoding: chunked\r\n") "3\r\nabc\r\n0\r\n\r",
    };

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(inputs); i++) {
        struct http_client c;

        open_with(&c, inputs[i]);
        client_until_closed(&c);
        assert_int_equal(client_count(&c, "HTTP/1.1 408"), 1);
        assert_int_equal(client_count(&c, "HTTP/1.1 100"), i == 1);
        assert_string_equal(f.why, "body_timeout");
        assert_int_equal(f.n_gone, i + 1);
        client_close(&c);
    }
    assert_int_equal(f.n_complete, 0);
    assert_int_equal(f.n_requests, 0);
}

static void
a_response_and_a_timeout_of_the_body_at_once_are_one_response(void **state)
{
    struct http_client first, second;

    (void)state;
    open_with(&first, POST("/hold", "Content-Length: 3\r\n") "a");
    open_with(&second, POST("/hold", "Content-Length: 3\r\n") "a");
    f.other = f.open;
    usleep(400000); /* both time out in one loop iteration */
    client_until_closed(&first);
    client_until_closed(&second);
    assert_int_equal(client_count(&first, "HTTP/1.1 408"), 1);
    assert_int_equal(client_count(&second, "HTTP/1.1"), 1);
    assert_int_equal(client_count(&second, "HTTP/1.1 200"), 1);
    assert_int_equal(f.n_complete, 1);
    client_close(&first);
    client_close(&second);
}

static void
without_memory_the_body_that_stopped_first_is_ended(void **state)
{
    static char body[600000];
    struct http_client c[3];

    (void)state;
    f.http->max_input = 1200000;
    for (int i = 0; i < 3; i++) {
        open_with(&c[i], POST("/echo", "Content-Length: 600001\r\n"));
        client_send(&c[i], body, i == 0 ? 200000 : 500000);
        for (int k = 0; k < 20; k++) fixture_iterate(&f);
        if (i == 1) client_send(&c[0], body, 1); /* so the second one got no byte for longest */
    }
    client_send(&c[2], body, 100001);
    client_until(&c[2], "HTTP/1.1 200", 1);
    client_until_closed(&c[1]);
    assert_int_equal(client_count(&c[1], "HTTP/1.1 503"), 1);
    assert_string_equal(f.rule, "memory");
    client_read(&c[0]);
    assert_false(c[0].is_closed);
    for (int i = 0; i < 3; i++) client_close(&c[i]);
}

/* Writes to the open stream until -EAGAIN. Returns the bytes written. */
static size_t
fill_stream(void)
{
    static char piece[10000];
    size_t n = 0;

    memset(piece, 's', sizeof piece);
    for (uint32_t before = f.n_gone; f.n_gone == before && n < 64 << 20;) {
        int r = http_write(f.open, piece, sizeof piece);

        if (r == 0) n += sizeof piece;
        /* The socket may take more of it. */
        for (int i = 0; i < 3 && f.open; i++) fixture_iterate(&f);
        if (r < 0 && http_write(f.open, piece, sizeof piece) < 0) break;
    }
    return n;
}

static void
a_client_that_reads_nothing_costs_bounded_memory_and_is_closed(void **state)
{
    struct http_client c;
    int small = 16 << 10;

    (void)state;
    client_open(&c, &f);
    setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    send(c.fd, GET("/stream"), strlen(GET("/stream")), 0);
    until_at_least(&f, &f.n_requests, 1);
    assert_true(fill_stream() < 4 << 20);
    until_at_least(&f, &f.n_gone, 1);
    assert_string_equal(f.why, "slow_reader");
    assert_int_equal(f.n_complete, 0);
    assert_int_equal(f.n_writable, 0);
    client_close(&c);
}

static void
a_client_that_reads_late_gets_everything(void **state)
{
    struct http_client c;
    size_t n;
    uint32_t got = 0;

    (void)state;
    open_with(&c, GET("/stream"));
    n = fill_stream();
    client_read(&c);
    until_at_least(&f, &f.n_writable, 1);
    assert_int_equal(http_write(f.open, "last", 4), 0);
    http_end(f.open);
    client_until(&c, "last\r\n0\r\n\r\n", 1);
    for (size_t i = 0; i < c.n; i++) got += c.in[i] == 's';
    assert_in_range(got, n, n + 20000); /* and the headers */
    assert_int_equal(f.n_complete, 1);
    client_close(&c);
}

static void
a_client_that_does_not_read_a_large_response_is_closed(void **state)
{
    struct http_client c;
    int small = 16 << 10;

    (void)state;
    client_open(&c, &f);
    setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (int i = 0; i < 16; i++) send(c.fd, GET("/big"), strlen(GET("/big")), 0);
    until_at_least(&f, &f.n_gone, 1);
    while (f.n_complete == f.n_gone) until_at_least(&f, &f.n_gone, f.n_gone + 1);
    assert_string_equal(f.why, "slow_reader");
    client_close(&c);
}

/* ---- clients that leave */

static void
a_client_that_leaves_while_it_waits_is_noticed_at_once(void **state)
{
    struct http_client c;

    (void)state;
    for (int half = 0; half < 2; half++) {
        uint32_t before = f.n_gone;

        open_with(&c, GET("/wait"));
        assert_non_null(f.open);
        if (half)
            shutdown(c.fd, SHUT_WR);
        else
            client_close(&c);
        fixture_iterate(&f);
        assert_int_equal(f.n_gone, before + 1);
        assert_string_equal(f.why, "client_gone");
        if (half) client_close(&c);
    }
    assert_int_equal(f.n_complete, 0);
}

static void
a_request_and_a_shutdown_together_get_the_response_that_is_ready(void **state)
{
    struct http_client c;

    (void)state;
    client_open(&c, &f);
    send(c.fd, GET("/hello"), strlen(GET("/hello")), 0);
    shutdown(c.fd, SHUT_WR);
    client_until_closed(&c);
    assert_int_equal(client_count(&c, "hello\n"), 1);
    client_close(&c);
}

static void
resets_in_every_state_leave_nothing(void **state)
{
    static const char *const inputs[] = {
        "",
        "\r\n",
        "GET /he",
        GET("/hello"),
        GET("/wait"),
        GET("/stream"),
        GET("/big"),
        GET("/big") GET("/hello"),
        POST("/echo", "Content-Length: 3\r\n"),
        POST("/echo", "Content-Length: 3\r\n") "ab",
        POST("/echo", "Transfer-Encoding: chunked\r\n") "3\r\na",
        POST("/echo", "Content-Length: 3\r\nExpect: 100-continue\r\n"),
        POST("/early", "Content-Length: 3\r\n"),
        "GET / HTTP/1.1\r\n\r\n",
    };

    (void)state;
    for (int early = 0; early < 2; early++)
        for (size_t i = 0; i < ARRAY_LEN(inputs); i++) {
            struct http_client c;

            client_open(&c, &f);
            send(c.fd, inputs[i], strlen(inputs[i]), 0);
            for (int k = 0; k < 3 && !early; k++) fixture_iterate(&f);
            if (f.open && i == 5) assert_int_equal(http_write(f.open, "x", 1), 0);
            client_reset(&c);
            for (int k = 0; k < 5; k++) fixture_iterate(&f);
        }
    for (int i = 0; i < 100 && http_counts(f.http).connections; i++) fixture_iterate(&f);
    assert_int_equal(http_counts(f.http).connections, 0);
    assert_int_equal(http_counts(f.http).exchanges, 0);
    assert_int_equal(f.n_gone, f.n_heads);
    assert_null(f.open);
}

/* ---- too many clients */

static void
a_full_server_closes_idle_connections_and_never_running_ones(void **state)
{
    struct http_limits l = fixture_limits();
    struct http_client c[9], more;
    uint32_t before;

    (void)state;
    fixture_close(&f);
    l.connections = 8;
    start(&l);
    for (int i = 0; i < 8; i++) open_with(&c[i], i < 6 ? GET("/wait") : GET("/hello"));
    open_with(&more, GET("/wait"));
    client_until_closed(&c[6]); /* the longest idle one */
    open_with(&c[8], GET("/wait"));
    client_until_closed(&c[7]);
    assert_int_equal(f.n_requests, 10);
    client_close(&c[6]);
    client_close(&c[7]);
    /* all have a request */
    open_with(&c[7], GET("/hello"));
    client_until_closed(&c[7]);
    assert_int_equal(client_count(&c[7], "HTTP/1.1 503 Service Unavailable\r\n"), 1);
    assert_int_equal(client_count(&c[7], "Retry-After: 1\r\n"), 1);
    assert_string_equal(f.rule, "max_connections");
    assert_false(c[7].was_reset);
    client_close(&c[7]);
    assert_int_equal(f.n_gone, 2);
    /* one ends, so there is a place */
    before = f.n_gone;
    client_close(&c[0]);
    until_at_least(&f, &f.n_gone, before + 1);
    open_with(&c[0], GET("/hello"));
    client_until(&c[0], "hello\n", 1);
    for (int i = 0; i < 6; i++) client_close(&c[i]);
    client_close(&c[8]);
    client_close(&more);
}

static void
silent_connections_have_at_most_seven_eighths_of_the_places(void **state)
{
    struct http_limits l = fixture_limits();
    struct http_client c[9];

    (void)state;
    fixture_close(&f);
    l.connections = 8;
    start(&l);
    for (int i = 0; i < 9; i++) open_with(&c[i], i % 2 ? "GET /" : "");
    client_until_closed(&c[0]);
    client_until_closed(&c[1]);
    client_read(&c[2]);
    assert_false(c[2].is_closed);
    assert_int_equal(http_counts(f.http).connections, 7);
    for (int i = 0; i < 9; i++) client_close(&c[i]);
}

static void
an_address_has_at_most_its_connections(void **state)
{
    struct http_limits l = fixture_limits();
    struct http_client c[3];

    (void)state;
    fixture_close(&f);
    l.connections_per_address = 2;
    start(&l);
    for (int i = 0; i < 2; i++) open_with(&c[i], GET("/wait"));
    open_with(&c[2], GET("/hello"));
    client_until_closed(&c[2]);
    assert_int_equal(client_count(&c[2], "HTTP/1.1 503"), 1);
    assert_string_equal(f.rule, "max_connections_per_address");
    client_close(&c[2]);
    client_close(&c[0]);
    until_at_least(&f, &f.n_gone, 1);
    open_with(&c[0], GET("/hello"));
    client_until(&c[0], "hello\n", 1);
    client_close(&c[0]);
    client_close(&c[1]);
}

/* Opens n connections that say nothing, as far as descriptors allow. */
static uint32_t
open_silent(int *fds, uint32_t n)
{
    struct http_client c;

    for (uint32_t i = 0; i < n; i++) {
        client_open(&c, &f);
        fds[i] = c.fd;
        if (i % 32 == 31) fixture_iterate(&f);
    }
    return n;
}

static void
five_thousand_silent_connections_do_not_keep_others_out(void **state)
{
    struct http_limits l = fixture_limits();
    struct rlimit old, limit;
    uint32_t n = 5000;
    struct http_client c;
    int *fds;

    (void)state;
    getrlimit(RLIMIT_NOFILE, &old);
    limit = (struct rlimit){ MIN(old.rlim_max, (rlim_t)12000), old.rlim_max };
    setrlimit(RLIMIT_NOFILE, &limit);
    n = MIN(n, (uint32_t)limit.rlim_cur / 2 - 100);
    fixture_close(&f);
    l.connections = n / 5 * 4;
    start(&l);
    fds = calloc(n, sizeof *fds);
    open_silent(fds, n);
    open_with(&c, GET("/hello"));
    client_until(&c, "hello\n", 1);
    assert_true(http_counts(f.http).connections <= l.connections);
    client_close(&c);
    for (uint32_t i = 0; i < n; i++) close(fds[i]);
    free(fds);
    setrlimit(RLIMIT_NOFILE, &old);
}

static void
without_descriptors_silent_connections_are_closed(void **state)
{
    struct http_limits l = fixture_limits();
    struct rlimit old, limit;
    struct http_client c[8];
    int fd;

    (void)state;
    fixture_close(&f);
    start(&l);
    for (int i = 0; i < 6; i++) open_with(&c[i], i < 3 ? GET("/wait") : "");
    for (int i = 6; i < 8; i++) client_open(&c[i], &f); /* not accepted yet */
    getrlimit(RLIMIT_NOFILE, &old);
    fd = dup(0); /* every lower number is in use */
    limit = (struct rlimit){ (rlim_t)fd, old.rlim_max };
    close(fd);
    setrlimit(RLIMIT_NOFILE, &limit);
    client_text(&c[6], GET("/hello"));
    client_text(&c[7], GET("/hello"));
    client_until(&c[6], "hello\n", 1);
    client_until(&c[7], "hello\n", 1);
    setrlimit(RLIMIT_NOFILE, &old);
    assert_int_equal(f.n_gone, 2);
    for (int i = 0; i < 8; i++) client_close(&c[i]);
}

/* ---- the end of the server */

static void
after_stop_running_requests_end_and_idle_connections_close(void **state)
{
    struct http_client idle, running, late;
    const struct http_response r = {
        .status = 200, .content_type = "text/plain", .body = "x", .n = 1
    };

    (void)state;
    open_with(&idle, GET("/hello"));
    open_with(&running, GET("/wait"));
    client_open(&late, &f);
    fixture_iterate(&f);
    http_stop_listening(f.http);
    client_until_closed(&idle);
    http_respond(f.open, &r);
    client_until_closed(&running);
    assert_int_equal(client_count(&running, "Connection: close\r\n\r\nx"), 1);
    client_text(&late, GET("/hello")); /* it was accepted before */
    client_until_closed(&late);
    assert_int_equal(client_count(&late, "hello\n"), 1);
    client_close(&idle);
    client_close(&running);
    client_close(&late);
}

static void
servers_share_a_port_and_the_last_one_serves_it(void **state)
{
    struct http_limits l = fixture_limits();
    struct http_fixture first = f;
    struct http_client c[20];

    (void)state;
    fixture_open(&f, http_address(first.http, 0), &l);
    /* connections that wait at the first server when it stops are served */
    for (int i = 0; i < 20; i++) {
        client_open(&c[i], &f);
        send(c[i].fd, GET("/hello"), strlen(GET("/hello")), 0);
    }
    http_stop_listening(first.http);
    for (int i = 0; i < 20; i++) {
        nsec end = clock_now() + 5 * NSEC_S;

        while (client_count(&c[i], "hello\n") == 0 && clock_now() < end) {
            sd_event_run(first.loop, 1000);
            sd_event_run(f.loop, 1000);
            client_read(&c[i]);
        }
        assert_int_equal(client_count(&c[i], "hello\n"), 1);
        client_close(&c[i]);
    }
    fixture_close(&first);
    open_with(&c[0], GET("/hello"));
    client_until(&c[0], "hello\n", 1);
    client_close(&c[0]);
}

static void
limits_change_while_connections_are_open(void **state)
{
    struct http_limits l = fixture_limits();
    struct http_client c[3];

    (void)state;
    open_with(&c[0], GET("/wait"));
    open_with(&c[1], GET("/wait"));
    open_with(&c[2], POST("/echo", "Content-Length: 100\r\n"));
    l.connections = 1;
    l.header_bytes = 40;
    l.body_bytes = 10;
    http_set_limits(f.http, &l);
    client_text(&c[2], "0123456789012345678901234567890123456789012345678901234567890123456789"
                       "012345678901234567890123456789"); /* its head was accepted */
    client_until(&c[2], "HTTP/1.1 200", 1);
    client_text(&c[2], POST("/echo", "X: y\r\nContent-Length: 11\r\n"));
    client_until_closed(&c[2]);
    assert_int_equal(client_count(&c[2], "HTTP/1.1 431"), 1);
    client_close(&c[2]);
    open_with(&c[2], GET("/hello"));
    client_until_closed(&c[2]);
    assert_int_equal(client_count(&c[2], "HTTP/1.1 503"), 1);
    client_close(&c[2]);
    l = fixture_limits();
    l.connections = 1 << 20; /* more than at the start have no place */
    http_set_limits(f.http, &l);
    open_with(&c[2], GET("/hello"));
    client_until(&c[2], "hello\n", 1);
    for (int i = 0; i < 3; i++) client_close(&c[i]);
}

static void
closing_the_server_ends_open_exchanges(void **state)
{
    struct http_limits l = fixture_limits();
    struct http_client c[3];

    (void)state;
    open_with(&c[0], GET("/wait"));
    open_with(&c[1], GET("/stream"));
    open_with(&c[2], POST("/echo", "Content-Length: 3\r\n"));
    for (int i = 0; i < 3; i++) fixture_iterate(&f);
    http_close(f.http);
    assert_int_equal(f.n_gone, 3);
    assert_int_equal(f.n_complete, 0);
    assert_string_equal(f.why, "closed");
    for (int i = 0; i < 3; i++) {
        client_read(&c[i]);
        assert_true(c[i].is_closed);
        client_close(&c[i]);
    }
    sd_event_unref(f.loop);
    start(&l);
}

static void
counts_are_those_of_the_connections(void **state)
{
    struct http_client idle, waiting, half;
    struct http_counts n;

    (void)state;
    open_with(&idle, GET("/hello"));
    open_with(&waiting, GET("/wait"));
    open_with(&half, "GET");
    n = http_counts(f.http);
    assert_int_equal(n.connections, 3);
    assert_int_equal(n.idle, 1);
    assert_int_equal(n.reading, 1);
    assert_int_equal(n.exchanges, 1);
    assert_int_equal(n.accepted, 3);
    assert_int_equal(n.refused, 0);
    client_read(&idle);
    assert_int_equal(n.bytes_sent, idle.n);
    client_close(&idle);
    client_close(&waiting);
    client_close(&half);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define TIMEOUT(name) cmocka_unit_test_setup_teardown(name, set_up_short_timeouts, tear_down)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TIMEOUT(half_a_head_and_silence_gets_408),
        TIMEOUT(a_head_that_trickles_is_ended_by_the_same_timeout),
        TIMEOUT(silent_and_idle_connections_are_closed_without_a_word),
        TIMEOUT(a_body_that_stops_gets_408),
        TIMEOUT(a_response_and_a_timeout_of_the_body_at_once_are_one_response),
        TEST(without_memory_the_body_that_stopped_first_is_ended),
        TIMEOUT(a_client_that_reads_nothing_costs_bounded_memory_and_is_closed),
        TEST(a_client_that_reads_late_gets_everything),
        TIMEOUT(a_client_that_does_not_read_a_large_response_is_closed),
        TEST(a_client_that_leaves_while_it_waits_is_noticed_at_once),
        TEST(a_request_and_a_shutdown_together_get_the_response_that_is_ready),
        TEST(resets_in_every_state_leave_nothing),
        TEST(a_full_server_closes_idle_connections_and_never_running_ones),
        TEST(silent_connections_have_at_most_seven_eighths_of_the_places),
        TEST(an_address_has_at_most_its_connections),
        TEST(five_thousand_silent_connections_do_not_keep_others_out),
        TEST(without_descriptors_silent_connections_are_closed),
        TEST(after_stop_running_requests_end_and_idle_connections_close),
        TEST(servers_share_a_port_and_the_last_one_serves_it),
        TEST(limits_change_while_connections_are_open),
        TEST(closing_the_server_ends_open_exchanges),
        TEST(counts_are_those_of_the_connections),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
