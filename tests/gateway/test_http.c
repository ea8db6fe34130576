/* test_http.c - the HTTP server on a socket: requests, responses and streams. */
#include "tests/gateway/http_fixture.h"

#include "tests/test.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"
#define POST(path, fields) "POST " path " HTTP/1.1\r\nHost: a\r\n" fields "\r\n"
#define CHUNKED "Transfer-Encoding: chunked\r\n"
#define AB GET("/hello")

static struct http_fixture f;

static int
set_up(void **state)
{
    struct http_limits l = fixture_limits();

    (void)state;
    fixture_open(&f, "127.0.0.1:0", &l);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    fixture_close(&f);
    return 0;
}

/* What a connection sees of an input: statuses in order, heads and requests that reached the
 * handler, and whether the server closes. */
struct row {
    const char *in;
    size_t n;
    const char *statuses;
    uint32_t n_heads, n_requests;
    bool closes;
};

#define IN(text) text, sizeof(text) - 1

/* clang-format off */
static const struct row rows[] = {
    { IN(AB), "200", 1, 1, 0 },
    { IN(AB AB AB), "200 200 200", 3, 3, 0 },
    { IN("\r\n" AB "\r\n" AB), "200 200", 2, 2, 0 },
    { IN(AB "\r\n\r\n" AB), "200 400", 1, 1, 1 },
    { IN("GET http://b/hello?x HTTP/1.1\r\nHost: a\r\n\r\n" AB), "200 200", 2, 2, 0 },
    { IN("BREW /hello HTTP/1.1\r\nHost: a\r\n\r\n" AB), "200 200", 2, 2, 0 },
    { IN("GET /hello HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" AB),
      "200 200", 2, 2, 0 },
    { IN("GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" AB), "200", 1, 1, 1 },
    { IN("GET /hello HTTP/1.0\r\n\r\n"), "200", 1, 1, 1 },
    { IN("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" AB), "200 200", 2, 2, 0 },
    { IN("HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n" AB), "200 200", 2, 2, 0 },
    { IN(GET("/nowhere") AB), "404 200", 2, 2, 0 },
    { IN(GET("/v1/..%2f/hello") AB), "404 200", 2, 2, 0 },
    { IN(POST("/echo", "Content-Length: 3\r\n") "abc" AB), "200 200", 2, 2, 0 },
    { IN(POST("/echo", "Content-Length: 0\r\n") AB), "200 200", 2, 2, 0 },
    { IN(POST("/echo", CHUNKED) "3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n" AB), "200 200",
      2, 2, 0 },
    { IN(POST("/echo", CHUNKED) "0\r\n\r\n" AB), "200 200", 2, 2, 0 },
    { IN(POST("/twice", "Content-Length: 3\r\n") "abc" AB), "200 200", 2, 4, 0 },
    /* the body is longer than its length */
    { IN(POST("/echo", "Content-Length: 3\r\n") "abcdef" AB), "200 400", 1, 1, 1 },
    /* two readings of one length */
    { IN(POST("/echo", "Content-Length: 3\r\nContent-Length: 3\r\n") "abc" AB), "400", 0, 0, 1 },
    { IN(POST("/echo", "Content-Length: 3\r\n" CHUNKED) "0\r\n\r\n" AB), "400", 0, 0, 1 },
    { IN(POST("/echo", CHUNKED "Content-Length: 3\r\n") "0\r\n\r\n" AB), "400", 0, 0, 1 },
    { IN(POST("/echo", "Transfer-Encoding : chunked\r\n") "0\r\n\r\n" AB), "400", 0, 0, 1 },
    { IN(POST("/echo", "Transfer-: chunked\r\n Encoding\r\n") "0\r\n\r\n" AB), "400", 0, 0, 1 },
    { IN(POST("/echo", "Transfer-Encoding: gzip, chunked\r\n") "0\r\n\r\n" AB), "501", 0, 0, 1 },
    { IN("POST /echo HTTP/1.0\r\n" CHUNKED "\r\n0\r\n\r\n" AB), "400", 0, 0, 1 },
    /* chunks */
    { IN(POST("/echo", CHUNKED) "3;a=b\r\nabc\r\n0\r\n\r\n" AB), "400", 1, 0, 1 },
    { IN(POST("/echo", CHUNKED) "0x3\r\nabc\r\n0\r\n\r\n" AB), "400", 1, 0, 1 },
    { IN(POST("/echo", CHUNKED) "3\nabc\r\n0\r\n\r\n" AB), "400", 1, 0, 1 },
    { IN(POST("/echo", CHUNKED) "3\r\nabc0\r\n\r\n" AB), "400", 1, 0, 1 },
    { IN(POST("/echo", CHUNKED) "3\r\nabc\r\n0\r\nA: b\r\n\r\n" AB), "400", 1, 0, 1 },
    { IN(POST("/echo", CHUNKED) "ffffffffffffffff\r\n" AB), "400", 1, 0, 1 },
    { IN(POST("/echo", CHUNKED) "ffffffff\r\n" AB), "413", 1, 0, 1 },
    /* heads; test_head.c has all */
    { IN("GET /hello HTTP/1.1\r\n\r\n" AB), "400", 0, 0, 1 },
    { IN("GET /hello HTTP/1.2\r\nHost: a\r\n\r\n" AB), "505", 0, 0, 1 },
    { IN("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "505", 0, 0, 1 },
    { IN("get /hello HTTP/1.1\r\nHost: a\r\n\r\n" AB), "400", 0, 0, 1 },
    { IN("TRACE /hello HTTP/1.1\r\nHost: a\r\n\r\n" AB), "405", 0, 0, 1 },
    { IN("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), "400", 0, 0, 1 },
    { IN("SSH-2.0-OpenSSH_9.2\r\n"), "400", 0, 0, 1 },
    { IN(POST("/echo", "")), "411", 0, 0, 1 },
    { IN(POST("/echo", "Content-Length: 4194305\r\n")), "413", 0, 0, 1 },
    { IN(POST("/echo", "Content-Length: 1\r\nExpect: foo\r\n")), "417", 0, 0, 1 },
    { IN(AB "GET /hello HTTP/1.1\nHost: a\n\n" AB), "200 400", 1, 1, 1 },
};
/* clang-format on */

/* Writes the statuses of all responses that were received. */
static void
list_statuses(const struct http_client *c, char *buf, size_t n)
{
    size_t at = 0;

    buf[0] = 0;
    for (const char *p = c->in; p && (p = strstr(p, "HTTP/1.1 ")); p += 9)
        if (p[9] >= '1' && p[9] <= '5')
            at += (size_t)snprintf(buf + at, n - at, "%s%.3s", at ? " " : "", p + 9);
}

/* Runs the loop until the statuses are there, and the connection is closed if it has to be. */
static void
expect_row(struct http_client *c, const struct row *row)
{
    nsec end = clock_now() + 5 * NSEC_S;
    char got[64];

    do {
        client_read(c);
        list_statuses(c, got, sizeof got);
        if (!strcmp(got, row->statuses) && c->is_closed == row->closes) break;
        fixture_iterate(&f);
    } while (clock_now() < end);
    if (strcmp(got, row->statuses) || c->is_closed != row->closes || f.n_heads != row->n_heads ||
        f.n_requests != row->n_requests || c->was_reset)
        fail_msg("%.*s\nstatuses %s, heads %u, requests %u, %s; received %s", (int)row->n, row->in,
                 got, f.n_heads, f.n_requests,
                 c->was_reset   ? "reset"
                 : c->is_closed ? "closed"
                                : "open",
                 c->in);
    for (int i = 0; i < 3 && !row->closes; i++) { /* nothing more comes */
        fixture_iterate(&f);
        client_read(c);
    }
    list_statuses(c, got, sizeof got);
    assert_string_equal(got, row->statuses);
    assert_int_equal(c->is_closed, row->closes);
}

static void
run_rows(bool bytewise)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct http_client c;

        f.n_heads = f.n_requests = 0;
        client_open(&c, &f);
        for (size_t at = 0, n; at < rows[i].n && !c.is_closed; at += n) {
            n = bytewise ? 1 : rows[i].n;
            client_send(&c, rows[i].in + at, n);
            if (bytewise) fixture_iterate(&f);
        }
        expect_row(&c, &rows[i]);
        client_close(&c);
    }
}

static void
inputs_give_their_statuses(void **state)
{
    (void)state;
    run_rows(/* bytewise= */ false);
}

static void
inputs_give_the_same_statuses_byte_by_byte(void **state)
{
    (void)state;
    run_rows(/* bytewise= */ true);
}

static void
thousand_pipelined_requests_are_answered_in_order(void **state)
{
    struct http_client c;
    const char *p;

    (void)state;
    client_open(&c, &f);
    for (int i = 0; i < 1000; i++) {
        char head[128], body[16];
        int n = snprintf(body, sizeof body, "<%d>", i);

        snprintf(head, sizeof head, POST("/echo", "Content-Length: %d\r\n") "%s", n, body);
        client_text(&c, head);
    }
    client_until(&c, "<999>", 1);
    p = c.in;
    for (int i = 0; i < 1000; i++) {
        char body[32];

        snprintf(body, sizeof body, "\r\n\r\n<%d>", i);
        p = strstr(p, body);
        assert_non_null(p);
    }
    assert_int_equal(f.n_complete, 1000);
    client_close(&c);
}

static void
a_response_has_the_headers_of_the_server(void **state)
{
    struct http_client c;
    const char *date;

    (void)state;
    client_open(&c, &f);
    client_text(&c, "GET /hello HTTP/1.1\r\nHost: a\r\nX-Request-Id: my.id:1\r\n\r\n");
    client_until(&c, "hello\n", 1);
    date = strstr(c.in, "Date: ");
    assert_non_null(date);
    assert_memory_equal(c.in, "HTTP/1.1 200 OK\r\nServer: lagan-gateway\r\nDate: ", 46);
    assert_string_equal(date + strlen("Date: Mon, 24 Nov 2026 00:00:00"),
                        " GMT\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n"
                        "X-Request-Id: my.id:1\r\n\r\nhello\n");
    client_text(&c, "GET /hello HTTP/1.1\r\nHost: a\r\nX-Request-Id: not valid\r\n\r\n");
    client_until(&c, "hello\n", 2);
    assert_int_equal(client_count(&c, "X-Request-Id: req-"), 1);
    client_close(&c);
}

static void
a_response_to_HEAD_has_the_length_and_no_body(void **state)
{
    struct http_client c;

    (void)state;
    client_open(&c, &f);
    client_text(&c, "HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    client_until(&c, "Content-Length: 6\r\n", 1);
    client_text(&c, AB);
    client_until(&c, "hello\n", 1);
    assert_int_equal(client_count(&c, "\r\n\r\nHTTP/1.1 200"), 1);
    client_close(&c);
}

/* Sends a body of n bytes to /echo and compares what is received. */
static void
echo(size_t n, bool chunked)
{
    struct http_client c;
    char head[128], *body = malloc(n);
    uint64_t seed = n;

    for (size_t i = 0; i < n; i++) body[i] = (char)('a' + (seed = seed * 1103515245 + 12345) % 23);
    client_open(&c, &f);
    if (chunked) {
        client_text(&c, POST("/echo", CHUNKED));
        for (size_t at = 0, take; at < n; at += take) {
            take = MIN(n - at, (size_t)(1 + at % 100000));
            snprintf(head, sizeof head, "%zx\r\n", take);
            client_text(&c, head);
            client_send(&c, body + at, take);
            client_text(&c, "\r\n");
        }
        client_text(&c, "0\r\n\r\n");
    } else {
        snprintf(head, sizeof head, POST("/echo", "Content-Length: %zu\r\n"), n);
        client_text(&c, head);
        client_send(&c, body, n);
    }
    client_until(&c, "\r\n\r\n", 1);
    while (c.n < (size_t)(strstr(c.in, "\r\n\r\n") + 4 - c.in) + n) {
        fixture_iterate(&f);
        client_read(&c);
        assert_false(c.is_closed);
    }
    assert_memory_equal(strstr(c.in, "\r\n\r\n") + 4, body, n);
    assert_int_equal(f.body_n, n);
    free(body);
    client_close(&c);
}

static void
bodies_up_to_the_limit_are_read(void **state)
{
    (void)state;
    echo(1, false);
    echo(16385, false);
    echo(100000, true);
    echo(4 << 20, false);
    echo(4 << 20, true);
}

static void
a_body_is_asked_for_with_100_continue(void **state)
{
    struct http_client c;

    (void)state;
    client_open(&c, &f);
    client_text(&c, POST("/echo", "Content-Length: 3\r\nExpect: 100-continue\r\n"));
    client_until(&c, "HTTP/1.1 100 Continue\r\n\r\n", 1);
    client_text(&c, "abc");
    client_until(&c, "\r\n\r\nabc", 1);
    client_close(&c);
    /* no 100 where the body comes unasked, or where the response is there already */
    client_open(&c, &f);
    client_text(&c, POST("/echo", "Content-Length: 3\r\nExpect: 100-continue\r\n") "abc");
    client_until(&c, "\r\n\r\nabc", 1);
    client_text(&c, POST("/early", "Content-Length: 3\r\nExpect: 100-continue\r\n"));
    client_until_closed(&c);
    assert_int_equal(client_count(&c, "HTTP/1.1 401"), 1);
    assert_int_equal(client_count(&c, "100 Continue"), 0);
    client_close(&c);
}

static void
a_response_before_the_body_keeps_the_connection_if_the_body_is_there(void **state)
{
    struct http_client c;
    static char rest[32 << 10];

    (void)state;
    client_open(&c, &f);
    client_text(&c, POST("/early", "Content-Length: 3\r\n") "abc" AB);
    client_until(&c, "hello\n", 1);
    client_text(&c, POST("/early", CHUNKED) "3\r\nabc\r\n0\r\n\r\n" AB);
    client_until(&c, "hello\n", 2);
    assert_int_equal(client_count(&c, "HTTP/1.1 401"), 2);
    /* the rest of a body is read and dropped, so that the response arrives */
    client_text(&c, POST("/early", "Content-Length: 32773\r\n") "abcde");
    for (int i = 0; i < 3; i++) fixture_iterate(&f);
    client_send(&c, rest, sizeof rest);
    client_until_closed(&c);
    assert_false(c.was_reset);
    assert_int_equal(client_count(&c, "HTTP/1.1 401"), 3);
    assert_int_equal(f.n_requests, 2);
    client_close(&c);
}

static void
all_writes_of_an_iteration_leave_in_one_chunk(void **state)
{
    struct http_client c;
    const char *body;

    (void)state;
    client_open(&c, &f);
    client_text(&c, GET("/stream") AB);
    until_at_least(&f, &f.n_requests, 1);
    assert_int_equal(http_write(f.open, "one,", 4), 0);
    assert_int_equal(http_write(f.open, "two", 3), 0);
    client_until(&c, "7\r\none,two\r\n", 1);
    assert_int_equal(http_write(f.open, "a longer third one", 18), 0);
    client_until(&c, "12\r\na longer third one\r\n", 1);
    assert_int_equal(http_write(f.open, "end", 3), 0);
    http_end(f.open);
    client_until(&c, "hello\n", 1); /* the pipelined request follows */
    body = strstr(c.in, "\r\n\r\n") + 4;
    assert_int_equal(
        strncmp(body, "7\r\none,two\r\n12\r\na longer third one\r\n3\r\nend\r\n0\r\n\r\nHTTP", 53),
        0);
    assert_int_equal(client_count(&c, "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n"),
                     1);
    assert_int_equal(f.n_complete, 2);
    client_close(&c);
}

static void
a_stream_of_http_1_0_ends_with_the_connection(void **state)
{
    struct http_client c;

    (void)state;
    client_open(&c, &f);
    client_text(&c, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    until_at_least(&f, &f.n_requests, 1);
    assert_int_equal(http_write(f.open, "one", 3), 0);
    client_until(&c, "one", 1);
    assert_int_equal(http_write(f.open, "two", 3), 0);
    http_end(f.open);
    client_until_closed(&c);
    assert_int_equal(client_count(&c, "Connection: close\r\n\r\nonetwo"), 1);
    assert_int_equal(client_count(&c, "chunked"), 0);
    client_close(&c);
}

static void
a_cut_stream_has_no_end(void **state)
{
    struct http_client c;

    (void)state;
    client_open(&c, &f);
    client_text(&c, GET("/stream"));
    until_at_least(&f, &f.n_requests, 1);
    assert_int_equal(http_write(f.open, "one", 3), 0);
    client_until(&c, "one", 1);
    http_cut(f.open);
    client_until_closed(&c);
    assert_int_equal(client_count(&c, "\r\n0\r\n\r\n"), 0);
    assert_int_equal(f.n_gone, 1);
    assert_int_equal(f.n_complete, 0);
    assert_string_equal(f.why, "cut");
    client_close(&c);
}

static void
a_large_response_is_sent_whole(void **state)
{
    struct http_client c;

    (void)state;
    client_open(&c, &f);
    client_text(&c, GET("/big") AB);
    client_until(&c, "hello\n", 1);
    assert_true(c.n > BIG);
    assert_int_equal(f.n_complete, 2);
    client_close(&c);
}

/* Leaves the socket file of a program that was killed. */
static void
make_stale(const char *path)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    strcpy(a.sun_path, path);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
}

static void
a_unix_socket_serves_the_same(void **state)
{
    struct http_limits l = fixture_limits();
    struct http_fixture first = f;
    struct http_client c;
    char where[64];

    (void)state;
    snprintf(where, sizeof where, "unix:test_http.%d.sock", (int)getpid());
    for (int i = 0; i < 2; i++) { /* the second finds a stale socket file */
        fixture_open(&f, where, &l);
        assert_string_equal(http_address(f.http, 0), where);
        client_open(&c, &f);
        client_text(&c, POST("/echo", "Content-Length: 3\r\n") "abc");
        client_until(&c, "\r\n\r\nabc", 1);
        client_close(&c);
        fixture_close(&f);
        if (i == 0) make_stale(where + strlen("unix:"));
    }
    assert_int_equal(access(where + strlen("unix:"), F_OK), -1);
    f = first;
}

static void
an_ipv4_client_of_a_socket_for_both_families_has_its_address(void **state)
{
    struct http_limits l = fixture_limits();
    const struct http_handler handler = f.handler;
    struct sockaddr_in6 a = { .sin6_family = AF_INET6 };
    struct http_client c;
    struct err e;
    int fd = socket(AF_INET6, SOCK_STREAM, 0), off = 0;

    (void)state;
    if (fd < 0) skip();
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 10) < 0) skip();
    http_close(f.http);
    assert_int_equal(http_open(&f.http, f.loop, NULL, 0, &fd, 1, &l, &handler, &e), 0);
    assert_memory_equal(http_address(f.http, 0), "[::]:", 5);
    client_open(&c, &f);
    client_text(&c, GET("/wait"));
    until_at_least(&f, &f.n_requests, 1);
    assert_string_equal(http_peer(f.open), "127.0.0.1");
    client_close(&c);
}

static void
addresses_that_cannot_be_listened_at_are_named(void **state)
{
    static const struct {
        const char *where, *text;
    } bad[] = {
        { "8000", "HOST:PORT" },          { ":8000", "HOST:PORT" },
        { "127.0.0.1:", "HOST:PORT" },    { "::1:8000", "stands in [ ]" },
        { "127.0.0.1:x", "127.0.0.1:x" }, { "192.0.2.1:8000", "192.0.2.1:8000" },
        { "unix:", "1 to 107 bytes" },    { "unix:/nowhere/at/all", "/nowhere/at/all" },
    };
    struct http_limits l = fixture_limits();
    const struct http_handler handler = { .ctx = NULL };
    struct http *h = NULL;
    struct err e;
    int fds[2];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_true(http_open(&h, f.loop, &bad[i].where, 1, NULL, 0, &l, &handler, &e) < 0);
        if (!strstr(e.text, bad[i].text)) fail_msg("%s: %s", bad[i].where, e.text);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(http_open(&h, f.loop, NULL, 0, fds, 1, &l, &handler, &e), -EINVAL);
    assert_non_null(strstr(e.text, "no listening socket"));
    close(fds[1]);
    assert_null(h);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(inputs_give_their_statuses),
        TEST(inputs_give_the_same_statuses_byte_by_byte),
        TEST(thousand_pipelined_requests_are_answered_in_order),
        TEST(a_response_has_the_headers_of_the_server),
        TEST(a_response_to_HEAD_has_the_length_and_no_body),
        TEST(bodies_up_to_the_limit_are_read),
        TEST(a_body_is_asked_for_with_100_continue),
        TEST(a_response_before_the_body_keeps_the_connection_if_the_body_is_there),
        TEST(all_writes_of_an_iteration_leave_in_one_chunk),
        TEST(a_stream_of_http_1_0_ends_with_the_connection),
        TEST(a_cut_stream_has_no_end),
        TEST(a_large_response_is_sent_whole),
        TEST(a_unix_socket_serves_the_same),
        TEST(an_ipv4_client_of_a_socket_for_both_families_has_its_address),
        TEST(addresses_that_cannot_be_listened_at_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
