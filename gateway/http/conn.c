#include "gateway/http/http_internal.h"

#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FAULT_BODY = 1024, MAX_EMPTY = 2 };

/* ---- open, close */

struct http_exchange *
conn_open(struct http *h, int fd, const char *peer, uint64_t address_key)
{
    struct http_exchange *x = TAILQ_FIRST(&h->unused);
    struct epoll_event ev = { .events = EPOLLIN | EPOLLRDHUP };
    uint32_t generation;

    if (!x) return NULL;
    generation = x->generation + 1;
    ev.data.u64 = (uint64_t)generation << 32 | (uint32_t)(x - h->slot);
    if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &ev) < 0) return NULL;
    TAILQ_REMOVE(&h->unused, x, in_class);
    memset(x, 0, sizeof *x);
    x->http = h;
    x->fd = fd;
    x->generation = generation;
    x->epoll_mask = ev.events;
    x->address_key = address_key;
    snprintf(x->peer, sizeof x->peer, "%s", peer);
    x->state = CONN_HEAD;
    head_init(&x->head);
    x->wait = WAIT_HEAD;
    x->since = h->now;
    TAILQ_INSERT_TAIL(&h->class[WAIT_HEAD], x, in_class);
    h->n_class[WAIT_HEAD]++;
    h->n_used++;
    h->counts.accepted++;
    return x;
}

/* Ends the open exchange of a connection, if there is one. */
static void
end_exchange(struct http_exchange *x, bool complete, const char *why)
{
    struct http *h = x->http;

    if (!x->is_open) return;
    x->is_open = false;
    h->counts.exchanges--;
    h->handler.gone(h->handler.ctx, x, complete, why);
    x->user = NULL;
}

void
conn_close(struct http_exchange *x, const char *why)
{
    struct http *h = x->http;
    uint32_t n;

    end_exchange(x, false, why);
    if (x->is_changed) TAILQ_REMOVE(&h->changed, x, in_changed);
    TAILQ_REMOVE(&h->class[x->wait], x, in_class);
    h->n_class[x->wait]--;
    h->n_used--;
    if (h->addresses && x->address_key) {
        n = map_take(h->addresses, x->address_key);
        if (n != MAP_NONE && n > 1) (void)!map_put(h->addresses, x->address_key, n - 1);
    }
    input_release(x);
    free(x->head_text);
    free(x->out);
    close(x->fd);
    x->state = CONN_FREE;
    x->is_changed = false;
    TAILQ_INSERT_HEAD(&h->unused, x, in_class);
}

/* ---- ids */

static bool
is_id_byte(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr("._:-", c));
}

/* Sets the id of a request: of X-Request-Id if it is one, or a new one. */
static void
set_id(struct http_exchange *x)
{
    struct http_text t = head_field(&x->head, x->head_text, "X-Request-Id", 0);
    bool good = t.n > 0 && t.n < sizeof x->id;

    for (size_t i = 0; good && i < t.n; i++) good = is_id_byte(t.p[i]);
    if (good)
        snprintf(x->id, sizeof x->id, "%.*s", (int)t.n, t.p);
    else
        snprintf(x->id, sizeof x->id, "req-%016llx",
                 (unsigned long long)rng_id(&x->http->id_state));
}

/* ---- faults of HTTP itself */

void
conn_fault(struct http_exchange *x, const struct http_fault *f)
{
    struct http *h = x->http;
    char body[MAX_FAULT_BODY];
    struct http_response r = {
        .status = f->status,
        .content_type = "application/json",
        .fields = f->status == 405   ? "Allow: GET, HEAD, POST, DELETE, OPTIONS\r\n"
                  : f->status == 503 ? "Retry-After: 1\r\n"
                                     : NULL,
        .body = body,
    };

    if (x->response) { /* the handler was faster: its response is the last one */
        x->closes = x->lingers = true;
        return;
    }
    h->counts.refused++;
    end_exchange(x, false, f->rule);
    input_release(x);
    x->raw_at = 0;
    if (!x->id[0])
        snprintf(x->id, sizeof x->id, "req-%016llx", (unsigned long long)rng_id(&h->id_state));
    r.n = h->handler.fault(h->handler.ctx, f->status, f->rule, f->sentence, body, sizeof body);
    x->head.keep_alive = false;
    x->body.is_complete = true; /* the rest of it is dropped */
    x->lingers = true;
    x->state = CONN_WAIT;
    http_respond(x, &r);
}

/* ---- states */

/* The head is complete: opens the exchange. */
static void
open_exchange(struct http_exchange *x)
{
    static const char proceed[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct http *h = x->http;

    x->head_text = malloc(x->head.n);
    if (!x->head_text) {
        x->is_broken = true;
        x->why = "memory";
        return;
    }
    memcpy(x->head_text, x->in, x->head.n);
    input_drop(x, x->head.n);
    body_init(&x->body, &x->head);
    x->raw_at = 0;
    x->rate = (struct http_rate){ .since = h->now };
    set_id(x);
    x->is_open = true;
    h->counts.exchanges++;
    x->state = CONN_BODY;
    h->handler.head(h->handler.ctx, x);
    if (x->response == RESPONSE_NONE && x->head.expects_continue && !x->body.is_complete && !x->in)
        write_raw(x, proceed, sizeof proceed - 1);
}

/* Parses and calls the handler until input or the response is missing. */
static void
advance(struct http_exchange *x)
{
    struct http *h = x->http;
    struct http_fault f;
    int r;

    if (x->state == CONN_IDLE && x->in_n) {
        x->state = CONN_HEAD;
        head_init(&x->head);
        queue_wait(x, WAIT_HEAD);
    }
    if (x->state == CONN_HEAD) {
        r = head_parse(&x->head, x->in, x->in_n, &h->limits, &f);
        if (r < 0) conn_fault(x, &f);
        if (r == 1) open_exchange(x);
    }
    if (x->state == CONN_BODY && !x->response) {
        r = input_decode(x, &f);
        if (r < 0) conn_fault(x, &f);
        if (r == 1) x->state = CONN_REQUEST;
    }
    if (x->state == CONN_REQUEST && !x->response && !x->is_broken) {
        r = h->handler.request(h->handler.ctx, x);
        if (r == 1 && !x->response)
            queue_changed(x);
        else
            x->state = CONN_WAIT;
    }
    if (x->response) x->state = CONN_WAIT;
    if (x->state == CONN_WAIT && x->raw_at) { /* the body was processed */
        input_drop(x, x->raw_at);
        x->raw_at = 0;
    }
}

/* The response was sent: ends the exchange, and closes the connection or prepares the next request.
 * Returns false if the connection is closed. */
static bool
finish(struct http_exchange *x)
{
    end_exchange(x, true, "complete");
    free(x->head_text);
    x->head_text = NULL;
    if (x->closes) {
        if (!x->lingers && !x->in_n) {
            conn_close(x, "complete");
            return false;
        }
        input_release(x);
        shutdown(x->fd, SHUT_WR);
        x->state = CONN_LINGER;
        x->response = RESPONSE_NONE;
        x->linger_left = HTTP_LINGER_BYTES;
        return true;
    }
    x->response = RESPONSE_NONE;
    x->has_chunk = x->is_chunked = x->wants_space = false;
    x->id[0] = 0;
    x->state = CONN_IDLE;
    if (x->in_n) queue_changed(x);
    return true;
}

static bool
wants_input(const struct http_exchange *x)
{
    return x->state == CONN_IDLE || x->state == CONN_HEAD || x->state == CONN_BODY ||
           x->state == CONN_LINGER;
}

static void
set_mask(struct http_exchange *x, uint32_t mask)
{
    struct http *h = x->http;
    struct epoll_event ev = { .events = mask };

    if (mask == x->epoll_mask) return;
    ev.data.u64 = (uint64_t)x->generation << 32 | (uint32_t)(x - h->slot);
    epoll_ctl(h->epoll, EPOLL_CTL_MOD, x->fd, &ev);
    x->epoll_mask = mask;
}

static enum wait_class
wait_of(const struct http_exchange *x)
{
    return x->state == CONN_LINGER ? WAIT_LINGER
           : write_pending(x)      ? WAIT_WRITE
           : x->state == CONN_IDLE ? WAIT_IDLE
           : x->state == CONN_HEAD ? WAIT_HEAD
           : x->state == CONN_BODY ? WAIT_BODY
                                   : WAIT_HANDLER;
}

void
conn_update(struct http_exchange *x)
{
    struct http *h = x->http;
    enum wait_class wait;

    advance(x);
    if (!x->is_broken && !write_flush(x)) {
        conn_close(x, "client_gone");
        return;
    }
    if (x->is_broken) {
        conn_close(x, x->why);
        return;
    }
    if (x->wants_space && write_pending(x) <= HTTP_OUTPUT / 2) {
        x->wants_space = false;
        h->handler.writable(h->handler.ctx, x); /* its bytes are sent in the next loop iteration */
    }
    if (x->response == RESPONSE_DONE && !write_pending(x) && !x->is_broken && !finish(x)) return;
    wait = wait_of(x);
    if (wait != x->wait || (wait == WAIT_WRITE && x->sent_some)) queue_wait(x, wait);
    x->sent_some = false;
    /* EPOLLIN stays set while no input is wanted; conn_event() clears it if input arrives. */
    set_mask(x, EPOLLRDHUP | (wants_input(x) ? EPOLLIN : x->epoll_mask & EPOLLIN) |
                    (write_pending(x) && !x->is_changed ? EPOLLOUT : 0));
}

/* ---- events */

/* Most bytes of one recv(), so that at most HTTP_PIPELINE bytes of later requests are held. */
static size_t
input_limit(const struct http_exchange *x)
{
    if (x->state != CONN_BODY)
        return MIN((size_t)HTTP_PIPELINE, (size_t)x->http->limits.header_bytes + 1 - x->in_n);
    return MIN((uint64_t)HTTP_SCRATCH, x->body.left + HTTP_PIPELINE);
}

/* Ends the body that got no byte for the longest time, so that its memory is free. Returns false if
 * it is the body of x, or there is none. */
static bool
end_oldest_body(struct http_exchange *x, const struct http_fault *f)
{
    struct http_exchange *oldest = TAILQ_FIRST(&x->http->class[WAIT_BODY]);

    if (!oldest || oldest == x) return false;
    conn_fault(oldest, f);
    conn_update(oldest);
    return true;
}

/* Appends n bytes of the scratch buffer to the input. False: there is no memory for them. */
static bool
keep_input(struct http_exchange *x, size_t n)
{
    struct http_fault f;
    int r;

    http_fault_set(&f, 503, "memory", "no memory for the body of the request; try again later");
    while ((r = input_append(x, x->http->scratch, n)) < 0 && end_oldest_body(x, &f)) continue;
    if (r < 0) conn_fault(x, &f);
    return r == 0;
}

static void
receive(struct http_exchange *x)
{
    struct http *h = x->http;
    struct http_fault f;
    ssize_t n = recv(x->fd, h->scratch, input_limit(x), MSG_DONTWAIT);

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        conn_close(x, "client_gone");
        return;
    }
    if (n < 0) return;
    if (x->wait == WAIT_BODY) queue_wait(x, WAIT_BODY);
    if (keep_input(x, (size_t)n) && x->state == CONN_BODY &&
        !body_rate_count(&x->rate, h->now, (size_t)n, h->limits.body_rate)) {
        http_fault_set(&f, 408, "body_rate", "the body arrives with less than %u bytes a second",
                       h->limits.body_rate);
        conn_fault(x, &f);
    }
    conn_update(x);
}

/* Reads and drops what a peer sends behind its last request. */
static void
receive_rest(struct http_exchange *x)
{
    ssize_t n = recv(x->fd, x->http->scratch, HTTP_SCRATCH, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || (uint32_t)n >= x->linger_left)
        conn_close(x, "complete");
    else
        x->linger_left -= (uint32_t)n;
}

void
conn_event(struct http_exchange *x, uint32_t events)
{
    uint32_t generation = x->generation;

    if (events & (EPOLLERR | EPOLLHUP)) {
        conn_close(x, "client_gone");
        return;
    }
    if (events & EPOLLIN) {
        if (x->state == CONN_LINGER)
            receive_rest(x);
        else if (wants_input(x))
            receive(x);
        else
            set_mask(x, x->epoll_mask & ~(uint32_t)EPOLLIN);
    } else if (events & EPOLLOUT)
        conn_update(x);
    if ((events & EPOLLRDHUP) && x->generation == generation && x->state != CONN_FREE)
        conn_close(x, "client_gone");
}

void
conn_expire(struct http_exchange *x)
{
    const struct http_limits *l = &x->http->limits;
    struct http_fault f;

    if (x->wait == WAIT_WRITE)
        conn_close(x, "slow_reader");
    else if (x->wait == WAIT_BODY || (x->wait == WAIT_HEAD && x->in_n > MAX_EMPTY)) {
        if (x->wait == WAIT_BODY)
            http_fault_set(&f, 408, "body_timeout", "no byte of the body arrived for %.1f s",
                           (double)l->body_timeout / NSEC_S);
        else
            http_fault_set(&f, 408, "header_timeout", "the head was not complete after %.1f s",
                           (double)l->header_timeout / NSEC_S);
        conn_fault(x, &f);
        conn_update(x);
    } else
        conn_close(x, "timeout");
}
