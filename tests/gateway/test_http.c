/* test_http.c - the HTTP server on a socket: requests, streams, timeouts and clients that leave. */
#include "tests/gateway/http_fixture.h"

#include "tests/test.h"

#define GET_HELLO "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"
#define GET_WAIT "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n"
#define GET_STREAM "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"

static void
a_connection_serves_one_request_after_the_other(void **state)
{
    struct http_fixture f;
    struct http_client c;
    struct http_limits l = fixture_limits();

    (void)state;
    fixture_open(&f, "127.0.0.1:0", &l);
    client_open(&c, &f);
    client_text(&c, GET_HELLO);
    client_until(&c, "hello\n", 1);
    client_text(&c, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
    client_text(&c, "de");
    client_until(&c, "abcde", 1);
    client_text(&c, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                    "3\r\nxyz\r\n4\r\n1234\r\n0\r\n\r\n");
    client_until(&c, "xyz1234", 1);
    client_text(&c, "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client_until_closed(&c);
    assert_int_equal(client_count(&c, "hello\n"), 2);
    assert_int_equal(client_count(&c, "Connection: close\r\n"), 1);
    assert_int_equal(f.n_heads, 4);
    assert_int_equal(f.n_complete, 4);
    client_close(&c);
    fixture_close(&f);
}

static void
thousand_pipelined_requests_are_answered_in_order(void **state)
{
    struct http_fixture f;
    struct http_client c;
    struct http_limits l = fixture_limits();

    (void)state;
    fixture_open(&f, "127.0.0.1:0", &l);
    client_open(&c, &f);
    for (int i = 0; i < 1000; i++) client_text(&c, GET_HELLO);
    client_until(&c, "\r\n\r\nhello\n", 1000);
    assert_int_equal(f.n_complete, 1000);
    client_close(&c);
    fixture_close(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_serves_one_request_after_the_other),
        cmocka_unit_test(thousand_pipelined_requests_are_answered_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
