#include "base/array.h"
#include "gateway/http/http_internal.h"

#include <stdio.h>
#include <sys/socket.h>

enum {
    CHUNK_HEAD = 10,        /* at most 8 hex digits and CR LF */
    MAX_RESPONSE = 1 << 30, /* bytes of one complete response */
    OUT_START = 1 << 10
};

static const struct status {
    int status;
    const char *phrase;
} statuses[] = {
    { 200, "OK" },
    { 204, "No Content" },
    { 400, "Bad Request" },
    { 401, "Unauthorized" },
    { 403, "Forbidden" },
    { 404, "Not Found" },
    { 405, "Method Not Allowed" },
    { 408, "Request Timeout" },
    { 409, "Conflict" },
    { 411, "Length Required" },
    { 413, "Content Too Large" },
    { 414, "URI Too Long" },
    { 415, "Unsupported Media Type" },
    { 417, "Expectation Failed" },
    { 422, "Unprocessable Content" },
    { 429, "Too Many Requests" },
    { 431, "Request Header Fields Too Large" },
    { 500, "Internal Server Error" },
    { 501, "Not Implemented" },
    { 502, "Bad Gateway" },
    { 503, "Service Unavailable" },
    { 504, "Gateway Timeout" },
    { 505, "HTTP Version Not Supported" },
};

static const char *
phrase_of(int status)
{
    for (uint32_t i = 0; i < ARRAY_LEN(statuses); i++)
        if (statuses[i].status == status) return statuses[i].phrase;
    return "Unknown";
}

/* ---- the output buffer */

uint32_t
write_pending(const struct http_exchange *x)
{
    return x->out_n - x->out_at;
}

static void
release_output(struct http_exchange *x)
{
    free(x->out);
    x->out = NULL;
    x->out_at = x->out_n = x->out_cap = 0;
}

static void
break_off(struct http_exchange *x, const char *why)
{
    x->is_broken = true;
    x->why = why;
    queue_changed(x);
}

void
write_raw(struct http_exchange *x, const void *p, size_t n)
{
    if (!n) return;
    if (x->out_at && x->out_n + n > x->out_cap) {
        memmove(x->out, x->out + x->out_at, x->out_n - x->out_at);
        x->chunk_at -= x->out_at;
        x->out_n -= x->out_at;
        x->out_at = 0;
    }
    if (array_grow(&x->out, &x->out_cap, MAX(x->out_n + n, (size_t)OUT_START), MAX_RESPONSE, 1) <
        0) {
        break_off(x, "memory");
        return;
    }
    memcpy(x->out + x->out_n, p, n);
    x->out_n += (uint32_t)n;
    queue_changed(x);
}

static void
write_text(struct http_exchange *x, const char *text)
{
    write_raw(x, text, strlen(text));
}

/* Writes the length of the open chunk before it, and CR LF behind it. */
static void
close_chunk(struct http_exchange *x)
{
    char head[CHUNK_HEAD + 1];
    uint32_t size, n, spare;

    if (!x->has_chunk || x->is_broken) return;
    size = x->out_n - x->chunk_at - CHUNK_HEAD;
    n = (uint32_t)snprintf(head, sizeof head, "%x\r\n", size);
    spare = CHUNK_HEAD - n;
    memcpy(x->out + x->chunk_at, head, n);
    memmove(x->out + x->chunk_at + n, x->out + x->chunk_at + CHUNK_HEAD, size);
    x->out_n -= spare;
    x->has_chunk = false;
    write_raw(x, "\r\n", 2);
}

bool
write_flush(struct http_exchange *x)
{
    close_chunk(x);
    while (write_pending(x) && !x->is_broken) {
        ssize_t n = send(x->fd, x->out + x->out_at, write_pending(x), MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        x->out_at += (uint32_t)n;
        x->http->counts.bytes_sent += (uint64_t)n;
        x->sent_some = true;
    }
    if (x->out && !write_pending(x)) release_output(x);
    return true;
}

/* ---- heads of responses */

/* Returns the value of the header Date. */
static const char *
date_now(struct http *h)
{
    time_t now = time(NULL);
    struct tm tm;

    if (now != h->date_at) {
        gmtime_r(&now, &tm);
        strftime(h->date, sizeof h->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        h->date_at = now;
    }
    return h->date;
}

/* Writes the head. length: of the body; -1: it follows in pieces. */
static void
write_head(struct http_exchange *x, const struct http_response *r, int64_t length)
{
    struct http *h = x->http;
    char line[512];

    snprintf(line, sizeof line, "HTTP/1.1 %d %s\r\nServer: lagan-gateway\r\nDate: %s\r\n",
             r->status, phrase_of(r->status), date_now(h));
    write_text(x, line);
    if (r->content_type) {
        snprintf(line, sizeof line, "Content-Type: %s\r\n", r->content_type);
        write_text(x, line);
    }
    if (length < 0) {
        if (r->fields) write_text(x, r->fields);
        if (x->is_chunked) write_text(x, "Transfer-Encoding: chunked\r\n");
    } else if (r->status != 204) {
        snprintf(line, sizeof line, "Content-Length: %lld\r\n", (long long)length);
        write_text(x, line);
    }
    snprintf(line, sizeof line, "X-Request-Id: %s\r\n", x->id);
    write_text(x, line);
    if (length >= 0 && r->fields) write_text(x, r->fields);
    write_text(x, x->closes        ? "Connection: close\r\n\r\n"
                  : x->head.is_1_0 ? "Connection: keep-alive\r\n\r\n"
                                   : "\r\n");
}

/* Decides whether the connection stays open after the response. */
static void
begin_response(struct http_exchange *x, enum response_state response)
{
    struct http_fault ignored;

    check(x->response == RESPONSE_NONE);
    x->response = response;
    x->drops_body = x->head.method == HTTP_HEAD;
    if (!x->head.keep_alive || !x->http->listens) x->closes = true;
    /* The body of a request that is answered before it: whole, if it is there already. */
    if (!x->body.is_complete && input_decode(x, &ignored) != 1) x->closes = x->lingers = true;
}

void
http_respond(struct http_exchange *x, const struct http_response *r)
{
    begin_response(x, RESPONSE_DONE);
    write_head(x, r, r->content_type ? (int64_t)r->n : 0);
    if (r->content_type && !x->drops_body) write_raw(x, r->body, r->n);
    queue_changed(x);
}

void
http_stream(struct http_exchange *x, const struct http_response *r)
{
    begin_response(x, RESPONSE_STREAM);
    x->is_chunked = !x->head.is_1_0;
    if (x->head.is_1_0 && !x->drops_body) x->closes = true;
    write_head(x, r, -1);
    queue_changed(x);
}

int
http_write(struct http_exchange *x, const char *p, size_t n)
{
    static const char empty[CHUNK_HEAD];

    check(x->response == RESPONSE_STREAM);
    if (!n || x->drops_body || x->is_broken) return 0;
    if (write_pending(x) && write_pending(x) + n + CHUNK_HEAD + 2 > HTTP_OUTPUT) {
        x->wants_space = true;
        queue_changed(x);
        return -EAGAIN;
    }
    if (x->is_chunked && !x->has_chunk) {
        write_raw(x, empty, CHUNK_HEAD);
        x->chunk_at = x->out_n - CHUNK_HEAD;
        x->has_chunk = true;
    }
    write_raw(x, p, n);
    return 0;
}

void
http_end(struct http_exchange *x)
{
    check(x->response == RESPONSE_STREAM);
    x->response = RESPONSE_DONE;
    x->wants_space = false;
    close_chunk(x);
    if (x->is_chunked && !x->drops_body) write_text(x, "0\r\n\r\n");
    queue_changed(x);
}

void
http_cut(struct http_exchange *x)
{
    break_off(x, "cut");
}

bool
http_started(const struct http_exchange *x)
{
    return x->response != RESPONSE_NONE;
}
