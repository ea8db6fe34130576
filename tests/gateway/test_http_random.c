/* test_http_random.c - many connections with drawn requests, pieces, responses and ends.
 *
 * A request is numbered, and its response has "<NUMBER>". Each connection gets the responses to its
 * requests in order, or the first ones of them if it was cut or left. Every exchange that began
 * ends once. With failing allocations a connection may end early, and nothing else changes. */
#include "tests/gateway/http_fixture.h"

#include "tests/test.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS = 40, MAX_REQUESTS = 6, ROUNDS = 25, MAX_OPEN = CLIENTS };

struct drawn_client {
    struct http_client c;
    char text[MAX_REQUESTS * 4096]; /* all requests */
    size_t n, sent, leaves_at;      /* leaves_at: bytes sent when the client leaves */
    size_t n_checked;               /* bytes of complete responses */
    uint32_t first, n_requests;     /* numbers of the requests */
    uint32_t n_responses;
    bool is_open, may_end; /* may_end: the server may close before the last response */
    nsec began;
};

static struct http_fixture f;
static struct drawn_client clients[CLIENTS];
static struct http_exchange *open_exchanges[MAX_OPEN];
static uint32_t n_open, n_began, n_ended, n_numbers;

/* ---- allocations of the server that fail */

static uint32_t fail_one_of; /* 0: none fails */
static bool in_server;
static uint32_t n_failed;

void *__real_malloc(size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_realloc(void *p, size_t n);

static bool
fails_now(void)
{
    bool fails = in_server && fail_one_of && test_below(fail_one_of) == 0;

    n_failed += fails;
    return fails;
}

void *
__wrap_malloc(size_t n)
{
    return fails_now() ? NULL : __real_malloc(n);
}

void *
__wrap_realloc(void *p, size_t n)
{
    return fails_now() ? NULL : __real_realloc(p, n);
}

/* ---- the handler: the path is /KIND/NUMBER */

static bool
kind_is(const struct http_exchange *x, const char *kind)
{
    struct http_text t = http_path(x);

    return t.n > strlen(kind) && !memcmp(t.p, kind, strlen(kind));
}

static int
marker(const struct http_exchange *x, char *buf, size_t n)
{
    struct http_text t = http_path(x);
    const char *slash = memrchr(t.p, '/', t.n);

    return snprintf(buf, n, "<%.*s>", (int)(t.p + t.n - slash - 1), slash + 1);
}

static void
respond(struct http_exchange *x)
{
    static char body[200000];
    struct http_response r = { .status = 200, .content_type = "text/plain", .body = body };

    memset(body, 'b', sizeof body);
    r.n = (size_t)marker(x, body, 64);
    body[r.n] = 'b';
    if (kind_is(x, "/big")) r.n = sizeof body;
    http_respond(x, &r);
}

static void
on_head(void *ctx, struct http_exchange *x)
{
    (void)ctx;
    n_began++;
    if (kind_is(x, "/early")) respond(x);
    if (kind_is(x, "/refuse")) http_cut(x);
}

static int
on_request(void *ctx, struct http_exchange *x)
{
    const struct http_response stream = { .status = 200, .content_type = "text/event-stream" };
    char text[64];
    int n = marker(x, text, sizeof text);

    (void)ctx;
    if (kind_is(x, "/again") && test_below(3)) return 1;
    if (kind_is(x, "/late") || kind_is(x, "/stream") || kind_is(x, "/cut")) {
        if (!kind_is(x, "/late")) {
            http_stream(x, &stream);
            assert_int_equal(http_write(x, text, (size_t)n), 0);
        }
        assert_true(n_open < MAX_OPEN);
        open_exchanges[n_open++] = x;
    } else
        respond(x);
    return 0;
}

static void
on_writable(void *ctx, struct http_exchange *x)
{
    (void)ctx, (void)x;
}

static void
on_gone(void *ctx, struct http_exchange *x, bool complete, const char *why)
{
    (void)ctx, (void)complete, (void)why;
    n_ended++;
    for (uint32_t i = 0; i < n_open; i++)
        if (open_exchanges[i] == x) open_exchanges[i--] = open_exchanges[--n_open];
}

static size_t
on_fault(void *ctx, int status, const char *rule, const char *sentence, char *buf, size_t n)
{
    (void)ctx;
    if (!fail_one_of || status != 503) fail_msg("%d %s: %s", status, rule, sentence);
    return (size_t)snprintf(buf, n, "%s", sentence);
}

/* Lets one of the open exchanges proceed. */
static void
proceed(void)
{
    static char more[30000];
    struct http_exchange *x;
    uint32_t i;

    if (!n_open) return;
    i = test_below(n_open);
    x = open_exchanges[i];
    if (http_started(x) && test_below(2)) {
        for (uint32_t n = test_below(4); n--;) /* what does not fit is left out */
            (void)!http_write(x, more, test_below(4) ? test_below(3000) : sizeof more);
        return;
    }
    open_exchanges[i] = open_exchanges[--n_open];
    if (kind_is(x, "/late"))
        respond(x);
    else if (kind_is(x, "/stream"))
        http_end(x);
    else
        http_cut(x);
}

/* ---- clients */

static void
draw_request(struct drawn_client *d)
{
    static const char *const kinds[] = {
        "now", "now", "late", "late", "stream", "stream", "again", "big", "early", "cut", "refuse",
    };
    const char *kind = kinds[test_below(ARRAY_LEN(kinds))];
    uint32_t n = test_below(4) ? test_below(50) : test_below(3000), how = test_below(3);
    char *p = d->text + d->n;

    d->may_end |= !strcmp(kind, "early") || !strcmp(kind, "cut") || !strcmp(kind, "refuse");
    p += sprintf(p, "%s /%s/%u HTTP/1.1\r\nHost: a\r\n", how ? "POST" : "GET", kind, n_numbers++);
    if (how == 1) p += sprintf(p, "Content-Length: %u\r\n\r\n%0*d", n + 1, (int)n + 1, 0);
    if (how == 2)
        p += sprintf(p, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%0*d\r\n1\r\nx\r\n0\r\n\r\n",
                     n + 1, (int)n + 1, 0);
    if (!how) p += sprintf(p, "\r\n");
    d->n = (size_t)(p - d->text);
    d->n_requests++;
}

static void
draw_client(struct drawn_client *d)
{
    d->n = d->sent = 0;
    d->first = n_numbers;
    d->n_requests = 0;
    d->may_end = fail_one_of != 0;
    d->n_responses = 0;
    d->n_checked = 0;
    d->began = clock_now();
    for (uint32_t n = 1 + test_below(MAX_REQUESTS); n--;) draw_request(d);
    d->leaves_at = test_below(4) ? SIZE_MAX : test_below((uint32_t)d->n);
    client_open(&d->c, &f);
    d->is_open = true;
}

/* Returns the end of a chunked body at p; NULL: it is not complete. The first chunk begins with the
 * marker. */
static const char *
chunks_end(const char *p, const char *end, const char *want)
{
    for (bool is_first = true;; is_first = false) {
        char *behind;
        size_t n = strtoul(p, &behind, 16);

        if (behind + 2 > end) return NULL;
        assert_true(behind > p && behind - p < 6 && (n == 0) == (*p == '0'));
        assert_memory_equal(behind, "\r\n", 2);
        p = behind + 2;
        if ((size_t)(end - p) < n + 2) return NULL;
        if (is_first) assert_memory_equal(p, want, strlen(want));
        assert_memory_equal(p + n, "\r\n", 2);
        p += n + 2;
        if (n == 0) return p;
    }
}

/* Reads the responses that are complete, and checks that each belongs to the next request. */
static void
check_responses(struct drawn_client *d)
{
    const char *end = d->c.in + d->c.n, *p, *head_end, *length;
    char want[32];

    while (d->c.in && (p = d->c.in + d->n_checked) < end && (head_end = strstr(p, "\r\n\r\n"))) {
        if (fail_one_of && !memcmp(p, "HTTP/1.1 503", 12)) return; /* the last response */
        if (memcmp(p, "HTTP/1.1 200 OK\r\n", 17)) fail_msg("%.2000s", p);
        snprintf(want, sizeof want, "<%u>", d->first + d->n_responses);
        length = strstr(p, "Content-Length: ");
        p = head_end + 4;
        if (length && length < head_end) {
            size_t n = (size_t)atol(length + 16);

            if ((size_t)(end - p) < n) return;
            assert_memory_equal(p, want, strlen(want));
            p += n;
        } else
            p = chunks_end(p, end, want);
        if (!p) return;
        d->n_checked = (size_t)(p - d->c.in);
        d->n_responses++;
        assert_true(d->n_responses <= d->n_requests);
    }
}

static void
end_client(struct drawn_client *d)
{
    if (test_below(2))
        client_reset(&d->c);
    else
        client_close(&d->c);
    d->is_open = false;
}

static void
move_client(struct drawn_client *d)
{
    size_t n = MIN(d->n - d->sent, (size_t)(test_below(3) ? 1 + test_below(2000) : 1));

    if (!d->is_open) {
        draw_client(d);
        return;
    }
    if (test_below(4)) client_read(&d->c);
    check_responses(d);
    if (d->c.is_closed) {
        if (!d->may_end) fail_msg("closed; received %.2000s", d->c.in);
        end_client(d);
    } else if (d->sent >= d->leaves_at || d->n_responses == d->n_requests)
        end_client(d);
    else if (n) {
        if (send(d->c.fd, d->text + d->sent, n, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n)
            d->sent += n;
    } else if (clock_now() - d->began > 20 * NSEC_S)
        fail_msg("%u of %u responses; received %.2000s", d->n_responses, d->n_requests, d->c.in);
}

static void
iterate(void)
{
    in_server = true;
    while (test_below(3)) proceed();
    sd_event_run(f.loop, 0);
    in_server = false;
}

static void
run_clients(void)
{
    const struct http_handler handler = {
        NULL, on_head, on_request, on_writable, on_gone, on_fault
    };
    struct http_limits l = fixture_limits();
    const char *listen = "127.0.0.1:0";
    struct err e;

    n_open = n_began = n_ended = 0;
    fixture_open(&f, listen, &l);
    http_close(f.http);
    assert_int_equal(http_open(&f.http, f.loop, &listen, 1, NULL, 0, &l, &handler, &e), 0);
    for (uint32_t i = 0; i < ROUNDS * CLIENTS * 20; i++) {
        move_client(&clients[test_below(CLIENTS)]);
        iterate();
    }
    for (int i = 0; i < CLIENTS; i++)
        while (clients[i].is_open) { /* to the end of each */
            move_client(&clients[i]);
            iterate();
        }
    for (int i = 0; i < 1000 && http_counts(f.http).connections; i++) {
        iterate();
        fixture_iterate(&f);
    }
    assert_int_equal(http_counts(f.http).connections, 0);
    assert_int_equal(http_counts(f.http).exchanges, 0);
    assert_int_equal(n_began, n_ended);
    assert_true(n_began > 1000);
    fixture_close(&f);
}

static void
every_connection_gets_its_responses_in_order(void **state)
{
    (void)state;
    test_seed();
    fail_one_of = 0;
    run_clients();
}

static void
failing_allocations_end_connections_and_nothing_else(void **state)
{
    (void)state;
    test_seed();
    fail_one_of = 150;
    run_clients();
    assert_true(n_failed > 10);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_connection_gets_its_responses_in_order),
        cmocka_unit_test(failing_allocations_end_connections_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
