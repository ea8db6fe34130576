/* test_head.c - heads of requests: which rule refuses them, and what is read from valid ones. */
#include "gateway/http/head.h"

#include "tests/test.h"

#include <stdio.h>

enum { MAX_IN = 20000 };

static const struct http_limits limits = {
    .header_bytes = 16 << 10, .headers = 100, .target_bytes = 8 << 10, .body_bytes = 4 << 20
};

struct refusal {
    const char *in;
    size_t n;
    int status;
    const char *rule;
};

#define HEAD(text) text, sizeof(text) - 1
#define GET(fields) HEAD("GET / HTTP/1.1\r\n" fields)
#define POST(fields) HEAD("POST / HTTP/1.1\r\nHost: a\r\n" fields "\r\n")

/* clang-format off */
static const struct refusal refusals[] = {
    /* the request line */
    { HEAD("get / HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("GEt / HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD(" GET / HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("GET  / HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /  HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("GET / HTTP/1.1 \r\n"), 400, "request_line" },
    { HEAD("GET\t/ HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("GET /\tHTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /\r\n"), 400, "request_line" },
    { HEAD("GET\r\n"), 400, "request_line" },
    { HEAD("GET / HTTP/1.1\n"), 400, "line_end" },
    { HEAD("GET / HTTP/1.1\rX"), 400, "line_end" },
    { HEAD("GET / HTTP/1.1\r\r"), 400, "line_end" },
    { HEAD("GET / http/1.1\r\n"), 400, "request_line" },
    { HEAD("GET / HTTP/1.11\r\n"), 400, "request_line" },
    { HEAD("GET / HTTP/11\r\n"), 400, "request_line" },
    { HEAD("GET / HTTP/a.1\r\n"), 400, "request_line" },
    { HEAD("GET / XTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("\r\n\r\n"), 400, "request_line" },
    { HEAD("\r\n\r\nGET / HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("\rGET / HTTP/1.1\r\n"), 400, "line_end" },
    { HEAD("\nGET / HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG / HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("G\x01T / HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), 400, "request_line" },   /* TLS */
    { HEAD("SSH-2.0-OpenSSH_9.2\r\n"), 400, "request_line" },
    { HEAD("\x80\x2e\x01\x00"), 400, "request_line" },
    { HEAD("\0\0\0\0"), 400, "request_line" },
    /* versions */
    { HEAD("GET / HTTP/1.2\r\n"), 505, "version" },
    { HEAD("GET / HTTP/1.9\r\n"), 505, "version" },
    { HEAD("GET / HTTP/0.9\r\n"), 505, "version" },
    { HEAD("GET / HTTP/2.0\r\n"), 505, "version" },
    { HEAD("GET / HTTP/3.0\r\n"), 505, "version" },
    { HEAD("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505, "version" },     /* HTTP/2, gRPC */
    /* methods */
    { HEAD("CONNECT a:443 HTTP/1.1\r\n"), 405, "method" },
    { HEAD("TRACE / HTTP/1.1\r\n"), 405, "method" },
    /* targets */
    { HEAD("GET x HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET * HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET ftp://a/ HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET http:///x HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET http://u:p@a/x HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /a#b HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /% HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /%4 HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /%zz HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /%4z HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /%00 HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /a?b=%00 HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /a?b=% HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /\xc3\xa4 HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /\x7f HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /\x01 HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /\0 HTTP/1.1\r\n"), 400, "target" },
    { HEAD("GET /a\rb HTTP/1.1\r\n"), 400, "request_line" },
    { HEAD("GET /a\nb HTTP/1.1\r\n"), 400, "request_line" },
    /* names */
    { GET("Host : a\r\n"), 400, "header_name" },
    { GET(" Host: a\r\n"), 400, "header_name" },
    { GET("\tHost: a\r\n"), 400, "header_name" },
    { GET(": a\r\n"), 400, "header_name" },
    { GET("Host\r\n"), 400, "header_name" },
    { GET("Host\n"), 400, "line_end" },
    { GET("Ho\0st: a\r\n"), 400, "header_name" },
    { GET("Ho\x01st: a\r\n"), 400, "header_name" },
    { GET("Ho\x7fst: a\r\n"), 400, "header_name" },
    { GET("H\xc3\xb6st: a\r\n"), 400, "header_name" },
    { GET("Ho(st: a\r\n"), 400, "header_name" },
    { GET("Host: a\r\n x: b\r\n"), 400, "header_name" },                /* folding */
    { GET("Host: a\r\n\tx: b\r\n"), 400, "header_name" },
    { GET("Host: a\r\nTransfer-Encoding : chunked\r\n\r\n"), 400, "header_name" },
    { GET("Host: a\r\nTransfer-: chunked\r\n Encoding: x\r\n\r\n"), 400, "header_name" },
    { GET("Host: a\r\nTransfer-: chunked\r\n Encoding\r\n\r\n"), 400, "header_name" },
    /* values and line ends */
    { GET("Host: a\0b\r\n"), 400, "header_value" },
    { GET("Host: a\x01\r\n"), 400, "header_value" },
    { GET("Host: a\x7f\r\n"), 400, "header_value" },
    { GET("Host: a\n"), 400, "line_end" },
    { GET("Host: a\rb\r\n"), 400, "line_end" },
    { GET("Host: a\r\r\n"), 400, "line_end" },
    { GET("Host: a\r\n\n"), 400, "line_end" },
    { GET("Host: a\r\n\rX"), 400, "line_end" },
    /* Host */
    { GET("\r\n"), 400, "host" },
    { GET("X: y\r\n\r\n"), 400, "host" },
    { GET("Host: a\r\nHost: a\r\n"), 400, "host" },
    { GET("Host: a\r\nhOST: b\r\n"), 400, "host" },
    { HEAD("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"), 400, "host" },
    /* Content-Length */
    { POST("Content-Length: 5\r\nContent-Length: 5\r\n"), 400, "content_length" },
    { POST("Content-Length: 5\r\nContent-Length: 6\r\n"), 400, "content_length" },
    { POST("Content-Length: 5\r\ncontent-length: 5\r\n"), 400, "content_length" },
    { POST("Content-Length: 5, 5\r\n"), 400, "content_length" },
    { POST("Content-Length: 5,\r\n"), 400, "content_length" },
    { POST("Content-Length: +2\r\n"), 400, "content_length" },
    { POST("Content-Length: -1\r\n"), 400, "content_length" },
    { POST("Content-Length: 0x2\r\n"), 400, "content_length" },
    { POST("Content-Length: 2 2\r\n"), 400, "content_length" },
    { POST("Content-Length: 2\t2\r\n"), 400, "content_length" },
    { POST("Content-Length: 2.0\r\n"), 400, "content_length" },
    { POST("Content-Length: 1e2\r\n"), 400, "content_length" },
    { POST("Content-Length:\r\n"), 400, "content_length" },
    { POST("Content-Length: \"\"\r\n"), 400, "content_length" },
    { POST("Content-Length: \xb2\r\n"), 400, "content_length" },
    { POST("Content-Length: 100000000000000000000\r\n"), 400, "content_length" },
    { POST("Content-Length: 0000000000000000002\r\n"), 400, "content_length" },
    { POST("Content-Length: 4194305\r\n"), 413, "max_body" },
    { POST("Content-Length: 999999999999999999\r\n"), 413, "max_body" },
    { POST("Content-Length: 4194305\r\nExpect: 100-continue\r\n"), 413, "max_body" },
    { POST(""), 411, "length" },
    /* Transfer-Encoding */
    { POST("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400, "transfer_encoding" },
    { POST("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400, "transfer_encoding" },
    { POST("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"), 400, "transfer_encoding" },
    { POST("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400,
      "transfer_encoding" },
    { POST("Transfer-Encoding: xchunked\r\n"), 501, "transfer_encoding" },
    { POST("Transfer-Encoding: gzip, chunked\r\n"), 501, "transfer_encoding" },
    { POST("Transfer-Encoding: chunked, chunked\r\n"), 501, "transfer_encoding" },
    { POST("Transfer-Encoding: chunked,\r\n"), 501, "transfer_encoding" },
    { POST("Transfer-Encoding: chunked;q=1\r\n"), 501, "transfer_encoding" },
    { POST("Transfer-Encoding: \"chunked\"\r\n"), 501, "transfer_encoding" },
    { POST("Transfer-Encoding: chunked\xa0\r\n"), 501, "transfer_encoding" },
    { POST("Transfer-Encoding: identity\r\n"), 501, "transfer_encoding" },
    { POST("Transfer-Encoding:\r\n"), 501, "transfer_encoding" },
    { HEAD("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400, "transfer_encoding" },
    /* bodies */
    { GET("Host: a\r\nContent-Length: 1\r\n\r\n"), 400, "body" },
    { GET("Host: a\r\nTransfer-Encoding: chunked\r\n\r\n"), 400, "body" },
    { HEAD("HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"), 400, "body" },
    { HEAD("DELETE / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"), 400, "body" },
    { HEAD("OPTIONS / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"), 400, "body" },
    /* Expect */
    { POST("Content-Length: 1\r\nExpect: foo\r\n"), 417, "expect" },
    { POST("Content-Length: 1\r\nExpect:\r\n"), 417, "expect" },
    { POST("Content-Length: 1\r\nExpect: 100-continue, foo\r\n"), 417, "expect" },
};

struct reading {
    const char *in;
    size_t n;
    enum http_method method;
    const char *path, *query;   /* query NULL: none */
    bool keep_alive, chunked, expects;
    uint64_t length;
};

static const struct reading readings[] = {
    { GET("Host: a\r\n\r\n"), HTTP_GET, "/", NULL, 1, 0, 0, 0 },
    { GET("Host:\r\n\r\n"), HTTP_GET, "/", NULL, 1, 0, 0, 0 },
    { GET("Host: 10.0.0.7:8000\r\nX:\t y \t\r\nZ: \xff\x80\r\n\r\n"), HTTP_GET, "/", NULL,
      1, 0, 0, 0 },
    { HEAD("\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/v1/models", NULL,
      1, 0, 0, 0 },
    { HEAD("HEAD /a/ HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_HEAD, "/a", NULL, 1, 0, 0, 0 },
    { HEAD("GET /a// HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/a/", NULL, 1, 0, 0, 0 },
    { HEAD("GET //a/../b/./c HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "//a/../b/./c", NULL,
      1, 0, 0, 0 },
    { HEAD("GET /%61%2f%2E%2F..%2fb HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET,
      "/a%2f.%2F..%2fb", NULL, 1, 0, 0, 0 },
    { HEAD("GET /%2561 HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/%61", NULL, 1, 0, 0, 0 },
    { HEAD("GET /%C3%A4%ff HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/\xc3\xa4\xff", NULL,
      1, 0, 0, 0 },
    { HEAD("GET /a?after=1%2C2&x HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/a",
      "after=1%2C2&x", 1, 0, 0, 0 },
    { HEAD("GET /a??b/ HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/a", "?b/", 1, 0, 0, 0 },
    { HEAD("GET /a? HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/a", NULL, 1, 0, 0, 0 },
    { HEAD("GET http://other:1/a?b HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/a", "b",
      1, 0, 0, 0 },
    { HEAD("GET HTTPS://other HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/", NULL, 1, 0, 0, 0 },
    { HEAD("GET http://other?b HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_GET, "/", "b", 1, 0, 0, 0 },
    { HEAD("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_OPTIONS, "*", NULL, 1, 0, 0, 0 },
    { HEAD("DELETE /v1/streams/k HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"),
      HTTP_DELETE, "/v1/streams/k", NULL, 1, 0, 0, 0 },
    { HEAD("BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_OTHER, "/pot", NULL, 1, 0, 0, 0 },
    { HEAD("M-SEARCH /a HTTP/1.1\r\nHost: a\r\n\r\n"), HTTP_OTHER, "/a", NULL, 1, 0, 0, 0 },
    { HEAD("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"), HTTP_OTHER, "/a", NULL,
      1, 0, 0, 3 },
    { POST("Content-Length: 0\r\n"), HTTP_POST, "/", NULL, 1, 0, 0, 0 },
    { POST("Content-Length:4194304\r\n"), HTTP_POST, "/", NULL, 1, 0, 0, 4194304 },
    { POST("content-length: \t 000000000000000007 \r\n"), HTTP_POST, "/", NULL, 1, 0, 0, 7 },
    { POST("Transfer-Encoding: Chunked\r\n"), HTTP_POST, "/", NULL, 1, 1, 0, 0 },
    { POST("Content-Length: 1\r\nExpect: 100-Continue\r\n"), HTTP_POST, "/", NULL, 1, 0, 1, 1 },
    /* connections */
    { GET("Host: a\r\nConnection: close\r\n\r\n"), HTTP_GET, "/", NULL, 0, 0, 0, 0 },
    { GET("Host: a\r\nConnection: keep-alive, CLOSE\r\n\r\n"), HTTP_GET, "/", NULL, 0, 0, 0, 0 },
    { GET("Host: a\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n"), HTTP_GET, "/", NULL,
      0, 0, 0, 0 },
    { GET("Host: a\r\nConnection: ,, closed ,\r\n\r\n"), HTTP_GET, "/", NULL, 1, 0, 0, 0 },
    { GET("Host: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"), HTTP_GET, "/", NULL,
      1, 0, 0, 0 },
    { GET("Host: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"), HTTP_GET,
      "/", NULL, 1, 0, 0, 0 },
    { HEAD("GET / HTTP/1.0\r\n\r\n"), HTTP_GET, "/", NULL, 0, 0, 0, 0 },
    { HEAD("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), HTTP_GET, "/", NULL,
      1, 0, 0, 0 },
    { HEAD("POST / HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"), HTTP_POST,
      "/", NULL, 0, 0, 0, 2 },
};
/* clang-format on */

/* The result of a parse; the head and its text after it. */
struct result {
    int r;
    struct http_head h;
    struct http_fault f;
    char text[MAX_IN];
};

/* Parses in pieces: first bytes, then `each` bytes at a time. */
static void
parse(struct result *ret, const char *in, size_t n, size_t first, size_t each)
{
    size_t at = MIN(first, n);

    memset(ret, 0, sizeof *ret);
    memcpy(ret->text, in, n);
    head_init(&ret->h);
    for (;;) {
        ret->r = head_parse(&ret->h, ret->text, (uint32_t)at, &limits, &ret->f);
        if (ret->r || at == n) return;
        at = MIN(at + each, n);
    }
}

static void
assert_same(const struct result *a, const struct result *b)
{
    assert_int_equal(a->r, b->r);
    assert_int_equal(a->f.status, b->f.status);
    assert_string_equal(a->f.sentence, b->f.sentence);
    assert_memory_equal(&a->h, &b->h, sizeof a->h);
    assert_memory_equal(a->text, b->text, sizeof a->text);
}

/* Parses in one piece and in every division in two, and byte by byte. */
static void
parse_split(struct result *ret, const char *in, size_t n)
{
    static struct result other;

    parse(ret, in, n, n, 1);
    parse(&other, in, n, 1, 1);
    assert_same(ret, &other);
    for (size_t k = 1; k < n && n < 1000; k++) {
        parse(&other, in, n, k, n);
        assert_same(ret, &other);
    }
}

static void
heads_that_break_a_rule_are_refused_by_its_name(void **state)
{
    static struct result got;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        const struct refusal *row = &refusals[i];

        parse_split(&got, row->in, row->n);
        if (got.r != -EPROTO || got.f.status != row->status || strcmp(got.f.rule, row->rule))
            fail_msg("%.*s: result %d, status %d, rule %s, \"%s\"", (int)row->n, row->in, got.r,
                     got.f.status, got.f.rule, got.f.sentence);
    }
}

static bool
text_equals(const char *p, uint32_t n, const char *want)
{
    return n == (want ? strlen(want) : 0) && !memcmp(p, want ? want : "", n);
}

static void
valid_heads_are_read(void **state)
{
    static struct result got;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(readings); i++) {
        const struct reading *row = &readings[i];
        const struct http_head *h = &got.h;

        parse_split(&got, row->in, row->n);
        if (got.r != 1) fail_msg("%s: %d %s", row->in, got.r, got.f.sentence);
        if (!text_equals(got.text + h->path_at, h->path_n, row->path) ||
            !text_equals(got.text + h->query_at, h->query_n, row->query))
            fail_msg("%s: path %.*s, query %.*s", row->in, (int)h->path_n, got.text + h->path_at,
                     (int)h->query_n, got.text + h->query_at);
        assert_int_equal(h->n, row->n);
        assert_int_equal(h->method, row->method);
        assert_int_equal(h->keep_alive, row->keep_alive);
        assert_int_equal(h->is_chunked, row->chunked);
        assert_int_equal(h->expects_continue, row->expects);
        assert_int_equal(h->length, row->length);
    }
}

/* Parses a request whose target or header makes it n bytes long. */
static void
parse_sized(struct result *ret, size_t target_n, size_t n_fields, size_t n)
{
    static char in[MAX_IN];
    size_t at = 0;

    at += (size_t)sprintf(in, "GET /%0*d HTTP/1.1\r\nHost: a\r\n", (int)target_n - 1, 0);
    for (size_t i = 1; i + 1 < n_fields; i++) at += (size_t)sprintf(in + at, "X: y\r\n");
    if (n_fields > 1) at += (size_t)sprintf(in + at, "X: %0*d\r\n", n ? (int)(n - at - 7) : 1, 0);
    at += (size_t)sprintf(in + at, "\r\n");
    if (n) assert_int_equal(at, n);
    parse_split(ret, in, at);
}

static void
limits_of_a_head_hold_to_the_byte(void **state)
{
    static struct result got;

    (void)state;
    parse_sized(&got, 8192, 1, 0);
    assert_int_equal(got.r, 1);
    parse_sized(&got, 8193, 1, 0);
    assert_int_equal(got.f.status, 414);
    parse_sized(&got, 2, 100, 0);
    assert_int_equal(got.r, 1);
    parse_sized(&got, 2, 101, 0);
    assert_int_equal(got.f.status, 431);
    assert_string_equal(got.f.rule, "max_headers");
    parse_sized(&got, 2, 2, 16384);
    assert_int_equal(got.r, 1);
    parse_sized(&got, 2, 2, 16385);
    assert_int_equal(got.f.status, 431);
    assert_string_equal(got.f.rule, "max_header");
}

static void
a_head_without_its_end_is_not_complete(void **state)
{
    static const char in[] = "\r\nPOST /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";
    static struct result got;

    (void)state;
    for (size_t n = 0; n < sizeof in - 1; n++) {
        parse_split(&got, in, n);
        assert_int_equal(got.r, 0);
    }
}

static void
bytes_behind_a_head_are_not_read(void **state)
{
    static const char in[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\nget\n\n\x01 / HTTP/7.1";
    static struct result got;

    (void)state;
    parse_split(&got, in, sizeof in - 1);
    assert_int_equal(got.r, 1);
    assert_int_equal(got.h.n, strlen("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
}

static void
header_fields_are_found_by_name_and_number(void **state)
{
    static const char in[] = "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nX:\r\n"
                             "auTHORization:\t Basic  y \r\nAuthorizatio: z\r\n\r\n";
    static struct result got;
    struct http_text t;

    (void)state;
    parse_split(&got, in, sizeof in - 1);
    assert_int_equal(got.r, 1);
    t = head_field(&got.h, got.text, "authorization", 0);
    assert_true(text_equals(t.p, (uint32_t)t.n, "Bearer x"));
    t = head_field(&got.h, got.text, "Authorization", 1);
    assert_true(text_equals(t.p, (uint32_t)t.n, "Basic  y"));
    assert_null(head_field(&got.h, got.text, "Authorization", 2).p);
    assert_null(head_field(&got.h, got.text, "Authorizations", 0).p);
    t = head_field(&got.h, got.text, "x", 0);
    assert_non_null(t.p);
    assert_int_equal(t.n, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_that_break_a_rule_are_refused_by_its_name),
        cmocka_unit_test(valid_heads_are_read),
        cmocka_unit_test(limits_of_a_head_hold_to_the_byte),
        cmocka_unit_test(a_head_without_its_end_is_not_complete),
        cmocka_unit_test(bytes_behind_a_head_are_not_read),
        cmocka_unit_test(header_fields_are_found_by_name_and_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
