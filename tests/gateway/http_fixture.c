#include "tests/gateway/http_fixture.h"

#include "tests/test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEADLINE (10 * NSEC_S)

/* ---- the handler */

static bool
path_is(const struct http_exchange *x, const char *path)
{
    struct http_text t = http_path(x);

    return t.n == strlen(path) && !memcmp(t.p, path, t.n);
}

static void
send_text(struct http_exchange *x, int status, const char *p, size_t n)
{
    const struct http_response r = {
        .status = status, .content_type = "text/plain", .body = p, .n = n
    };

    http_respond(x, &r);
}

static void
on_head(void *ctx, struct http_exchange *x)
{
    struct http_fixture *f = ctx;

    f->n_heads++;
    if (path_is(x, "/hold")) f->open = x;
    if (path_is(x, "/early")) send_text(x, 401, "no key\n", 7);
}

static int
on_request(void *ctx, struct http_exchange *x)
{
    struct http_fixture *f = ctx;
    const struct http_response stream = { .status = 200,
                                          .content_type = "text/event-stream; charset=utf-8",
                                          .fields = "Cache-Control: no-cache\r\n" };
    struct http_text body = http_body(x), path = http_path(x);

    f->n_requests++;
    f->body_n = body.n;
    snprintf(f->path, sizeof f->path, "%.*s", (int)path.n, path.p);
    if (path_is(x, "/echo"))
        send_text(x, 200, body.p, body.n);
    else if (path_is(x, "/hello"))
        send_text(x, 200, "hello\n", 6);
    else if (path_is(x, "/twice")) {
        if (++f->n_repeats % 3) return 1;
        send_text(x, 200, "twice\n", 6);
    } else if (path_is(x, "/big")) {
        char *big = malloc(BIG);

        memset(big, 'b', BIG);
        send_text(x, 200, big, BIG);
        free(big);
    } else if (path_is(x, "/wait"))
        f->open = x;
    else if (path_is(x, "/stream")) {
        f->open = x;
        http_stream(x, &stream);
    } else
        send_text(x, 404, "no such path\n", 13);
    return 0;
}

static void
on_writable(void *ctx, struct http_exchange *x)
{
    (void)x;
    ((struct http_fixture *)ctx)->n_writable++;
}

static void
on_gone(void *ctx, struct http_exchange *x, bool complete, const char *why)
{
    struct http_fixture *f = ctx;

    if (f->open == x) f->open = NULL;
    if (f->other == x) f->other = NULL;
    if (f->other) send_text(f->other, 200, "other\n", 6);
    f->n_gone++;
    f->n_complete += complete;
    snprintf(f->why, sizeof f->why, "%s", why);
}

static size_t
on_fault(void *ctx, int status, const char *rule, const char *sentence, char *buf, size_t n)
{
    struct http_fixture *f = ctx;

    snprintf(f->rule, sizeof f->rule, "%s", rule);
    return (size_t)snprintf(buf, n, "{\"rule\":\"%s\",\"status\":%d,\"message\":\"%s\"}\n", rule,
                            status, sentence);
}

struct http_limits
fixture_limits(void)
{
    return (struct http_limits){
        .connections = 64,
        .header_bytes = 16 << 10,
        .headers = 100,
        .target_bytes = 8 << 10,
        .body_bytes = 4 << 20,
        .header_timeout = 60 * NSEC_S,
        .body_timeout = 60 * NSEC_S,
        .idle_timeout = 60 * NSEC_S,
        .write_timeout = 60 * NSEC_S,
        .body_rate = 1 << 10,
    };
}

void
fixture_open(struct http_fixture *f, const char *listen, const struct http_limits *limits)
{
    const struct http_handler handler = { f, on_head, on_request, on_writable, on_gone, on_fault };
    struct err e;
    int r;

    memset(f, 0, sizeof *f);
    f->handler = handler;
    assert_true(sd_event_new(&f->loop) >= 0);
    r = http_open(&f->http, f->loop, &listen, 1, NULL, 0, limits, &handler, &e);
    if (r < 0) fail_msg("%s", e.text);
}

void
fixture_close(struct http_fixture *f)
{
    http_close(f->http);
    sd_event_unref(f->loop);
}

void
fixture_iterate(struct http_fixture *f)
{
    assert_true(sd_event_run(f->loop, 5000) >= 0);
}

void
until_at_least(struct http_fixture *f, const uint32_t *n, uint32_t least)
{
    nsec end = clock_now() + DEADLINE;

    while (*n < least) {
        assert_true(clock_now() < end);
        fixture_iterate(f);
    }
}

/* ---- clients */

void
client_open(struct http_client *c, struct http_fixture *f)
{
    const char *at = http_address(f->http, 0);
    struct sockaddr_in in = { .sin_family = AF_INET };
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    int r;

    memset(c, 0, sizeof *c);
    c->f = f;
    if (!strncmp(at, "unix:", 5)) {
        strcpy(un.sun_path, at + 5);
        c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        r = connect(c->fd, (struct sockaddr *)&un, sizeof un);
    } else {
        inet_pton(AF_INET, "127.0.0.1", &in.sin_addr);
        in.sin_port = htons((uint16_t)atoi(strrchr(at, ':') + 1));
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        r = connect(c->fd, (struct sockaddr *)&in, sizeof in);
    }
    if (r < 0) fail_msg("cannot connect to %s: %s", at, strerror(errno));
}

void
client_close(struct http_client *c)
{
    if (c->fd >= 0) close(c->fd);
    free(c->in);
    memset(c, 0, sizeof *c);
    c->fd = -1;
}

void
client_reset(struct http_client *c)
{
    struct linger l = { .l_onoff = 1, .l_linger = 0 };

    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    client_close(c);
}

void
client_send(struct http_client *c, const void *p, size_t n)
{
    const char *at = p;
    nsec end = clock_now() + DEADLINE;

    while (n) {
        ssize_t sent = send(c->fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno != EAGAIN) return; /* the server has closed; the test reads why */
        if (sent > 0) at += sent, n -= (size_t)sent;
        if (n) fixture_iterate(c->f);
        client_read(c);
        assert_true(clock_now() < end);
    }
}

void
client_text(struct http_client *c, const char *text)
{
    client_send(c, text, strlen(text));
}

void
client_read(struct http_client *c)
{
    for (;;) {
        ssize_t n;

        if (c->n + 65536 > c->cap) {
            c->cap = 2 * c->cap + 131072;
            c->in = realloc(c->in, c->cap);
        }
        n = recv(c->fd, c->in + c->n, 65535, MSG_DONTWAIT);
        c->is_closed |= n == 0 || (n < 0 && errno != EAGAIN);
        c->was_reset |= n < 0 && errno == ECONNRESET;
        if (n > 0) c->n += (size_t)n;
        c->in[c->n] = 0;
        if (n <= 0) return;
    }
}

uint32_t
client_count(const struct http_client *c, const char *text)
{
    uint32_t n = 0;

    for (const char *p = c->in; p && (p = strstr(p, text)); p += strlen(text)) n++;
    return n;
}

void
client_until(struct http_client *c, const char *text, uint32_t n)
{
    nsec end = clock_now() + DEADLINE;

    for (;;) {
        client_read(c);
        if (client_count(c, text) >= n) return;
        if (c->is_closed || clock_now() > end)
            fail_msg("%s before \"%s\" came %u times; received: %.2000s",
                     c->is_closed ? "closed" : "10 s passed", text, n, c->in);
        fixture_iterate(c->f);
    }
}

void
client_until_closed(struct http_client *c)
{
    nsec end = clock_now() + DEADLINE;

    for (;;) {
        client_read(c);
        if (c->is_closed) return;
        if (clock_now() > end) fail_msg("not closed after 10 s; received: %.2000s", c->in);
        fixture_iterate(c->f);
    }
}
