/* client.c - the connection: open, HELLO, send, receive, pings, loss; see client.h and lagan.h.
 *
 * Frames go out only after WELCOME, so none reaches a lagand that has not said which version it
 * speaks; until then they wait in c->out. HELLO goes out when the socket first becomes writable
 * (ZMQ_IMMEDIATE: only a live connection is writable). After DISCONNECTED of the socket's monitor, and
 * after silence, the socket is closed and another one made, so that nothing of an old connection is
 * read behind the WELCOME of a new one; resume.c then takes the requests over.
 */
#include "client/client.h"

#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define PING_AFTER (2 * NSEC_S)  /* silent for so long: say something; lagand's lease is 10 s */
#define LOST_AFTER (10 * NSEC_S) /* heard nothing for so long, and asked */
#define PATIENCE (30 * NSEC_S)   /* lagan_patience() */
#define DEFAULT_ENDPOINT "ipc:///run/lagan/api.sock"

static _Thread_local char open_why[320];

int
client_fail(struct lagan *c, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
    return code;
}

void
frame_free(struct frame *f)
{
    msg_done(&f->m);
    zmq_msg_close(&f->z);
    free(f);
}

/* ---- open requests */

struct row *
client_row(struct lagan *c, uint64_t rid)
{
    uint32_t lo = 0, hi = c->n_rows;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (c->rows[mid].rid < rid)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < c->n_rows && c->rows[lo].rid == rid ? &c->rows[lo] : NULL;
}

void
client_close_row(struct lagan *c, uint64_t rid)
{
    struct row *r = client_row(c, rid);

    if (!r) return;
    free(r->body);
    free(r->ids);
    msgpack_sbuffer_destroy(&r->end);
    c->n_rows--;
    memmove(r, r + 1, (size_t)(c->rows + c->n_rows - r) * sizeof *r);
}

/* ---- out */

static int
writable(struct lagan *c)
{
    int events = 0;
    size_t n = sizeof events;

    /* Reading ZMQ_EVENTS also makes libzmq look at its commands, which a send may skip. */
    if (zmq_getsockopt(c->sock, ZMQ_EVENTS, &events, &n) < 0) return 0;
    return events;
}

static void
drop_out(struct lagan *c)
{
    while (c->out_first) {
        struct out *o = c->out_first;

        c->out_first = o->next;
        free(o);
    }
    c->out_last = &c->out_first;
    c->n_out = 0;
}

static bool
send_now(struct lagan *c, const void *body, size_t n)
{
    if (zmq_send(c->sock, body, n, ZMQ_DONTWAIT) < 0) return false;
    c->sent = clock_now();
    return true;
}

static void
flush_out(struct lagan *c)
{
    while (c->welcome && c->out_first && send_now(c, c->out_first->body, c->out_first->n)) {
        struct out *o = c->out_first;

        c->out_first = o->next;
        if (!o->next) c->out_last = &c->out_first;
        c->n_out--;
        free(o);
    }
}

bool
client_apart(const struct lagan *c)
{
    return c->was_welcome && !c->welcome;
}

int
client_send(struct lagan *c, const msgpack_sbuffer *b)
{
    struct out *o;

    if (c->welcome && !c->out_first && send_now(c, b->data, b->size)) return 0;
    if (c->n_out == CLIENT_MAX_OUT)
        return client_fail(c, -EAGAIN, "%u frames wait for lagand at %s already", c->n_out,
                           c->endpoint);
    o = malloc(sizeof *o + b->size);
    if (!o) return client_fail(c, -ENOMEM, "no memory for a frame of %zu bytes", b->size);
    o->next = NULL;
    o->n = b->size;
    memcpy(o->body, b->data, b->size);
    *c->out_last = o;
    c->out_last = &o->next;
    c->n_out++;
    return 0;
}

static void
send_hello(struct lagan *c)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_HELLO, 0, 4);
    msg_key(&p, "min"), msgpack_pack_uint32(&p, LAGAN_WIRE_VERSION);
    msg_key(&p, "max"), msgpack_pack_uint32(&p, LAGAN_WIRE_VERSION);
    msg_key(&p, "client"), msg_text(&p, "liblagan " PACKAGE_VERSION);
    msg_key(&p, "session"), msg_bin(&p, c->session, sizeof c->session);
    c->hello_sent = send_now(c, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
}

static void
send_ping(struct lagan *c, nsec now)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_PING, 0, 1);
    msg_key(&p, "t"), msgpack_pack_int64(&p, now);
    if (send_now(c, b.data, b.size) && !c->ping_at) c->ping_at = now;
    c->sent = now; /* also when the pipe is full: the next try is two seconds away */
    msgpack_sbuffer_destroy(&b);
}

void
client_ack(struct lagan *c, bool all)
{
    uint32_t i;

    if (client_apart(c)) return; /* RESUME says it all */
    for (i = 0; i < c->n_rows; i++) {
        struct row *r = &c->rows[i];
        msgpack_sbuffer b;
        msgpack_packer p;

        /* A quarter of the window: lagand never runs dry while we take, and few ACKs are sent. */
        if (r->taken == r->acked || (!all && r->taken - r->acked < MAX(1u, r->win / 4))) continue;
        msgpack_sbuffer_init(&b);
        msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
        msg_begin(&p, LAGAN_MSG_ACK, r->rid, 1);
        msg_key(&p, "n"), msgpack_pack_uint64(&p, r->taken);
        if (client_send(c, &b) == 0) r->acked = r->taken;
        msgpack_sbuffer_destroy(&b);
    }
    if (all) c->ack_at = 0;
}

/* ---- loss */

void
client_lose(struct lagan *c, uint32_t code, const char *why)
{
    snprintf(c->lost_why, sizeof c->lost_why, "%s", why);
    snprintf(c->why, sizeof c->why, "%s", why);
    c->lost_code = code;
    c->losing = true;
    c->ping_at = c->ack_at = 0;
    c->apart_since = clock_now();
    drop_out(c);
}

static int open_socket(struct lagan *c);
static void close_socket(struct lagan *c);

/* The connection is gone; another one is being made behind the scenes. */
static void
apart(struct lagan *c, const char *why)
{
    snprintf(c->lost_why, sizeof c->lost_why, "%s", why);
    if (!c->welcome) return; /* libzmq goes on trying */
    c->hello_sent = c->welcome = false;
    c->apart_since = clock_now();
    c->ping_at = c->ack_at = 0;
    c->resume_rid = 0;
    c->n_breaks++;
    drop_out(c);
    close_socket(c);
    if (open_socket(c) < 0) client_lose(c, LAGAN_E_INTERNAL, "no memory for another connection");
}

/* Look at the socket's monitor: frames of two parts, the first begins with the event's number. */
static void
watch_monitor(struct lagan *c)
{
    char why[240];

    for (;;) {
        zmq_msg_t z;
        uint16_t event = 0;

        zmq_msg_init(&z);
        if (zmq_msg_recv(&z, c->mon, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&z);
            return;
        }
        if (zmq_msg_size(&z) >= sizeof event) memcpy(&event, zmq_msg_data(&z), sizeof event);
        while (zmq_msg_more(&z) && zmq_msg_recv(&z, c->mon, 0) >= 0) continue;
        zmq_msg_close(&z);
        if (event != ZMQ_EVENT_DISCONNECTED) continue;
        snprintf(why, sizeof why, "lagand at %.180s closed the connection", c->endpoint);
        c->hello_sent = false;
        apart(c, why);
    }
}

/* ---- in */

static void
take_welcome(struct lagan *c, const struct msg *m)
{
    struct msg_span s;
    uint64_t proto = LAGAN_WIRE_VERSION;
    char why[240];

    if (msg_u64(&m->map, "proto", &proto) == 0 && proto != LAGAN_WIRE_VERSION) {
        snprintf(why, sizeof why, "lagand at %.120s speaks protocol %llu, this library %d",
                 c->endpoint, (unsigned long long)proto, LAGAN_WIRE_VERSION);
        c->refused = true;
        client_lose(c, LAGAN_E_UNSUPPORTED, why);
        return;
    }
    if (msg_str(&m->map, "state", &s) == 0)
        snprintf(c->state, sizeof c->state, "%.*s", (int)MIN(s.n, 31u), s.p);
    c->welcome = true;
    if (c->was_welcome) client_resume(c);
    c->was_welcome = true;
    flush_out(c);
}

static void
pong(struct lagan *c, const struct msg *m)
{
    uint64_t t = 0;
    msgpack_sbuffer b;
    msgpack_packer p;

    msg_u64(&m->map, "t", &t);
    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_PONG, 0, 1);
    msg_key(&p, "t"), msgpack_pack_uint64(&p, t);
    send_now(c, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
}

/* A frame about the connection and no request: an ERROR without a rid, or BYE. */
static void
take_farewell(struct lagan *c, const struct msg *m)
{
    struct msg_span s = { "", 0 };
    char why[240];
    uint64_t code = m->type == LAGAN_MSG_BYE ? LAGAN_E_DRAINING : LAGAN_E_INTERNAL;

    msg_u64(&m->map, "code", &code);
    if (msg_str(&m->map, "message", &s) < 0) msg_str(&m->map, "reason", &s);
    snprintf(why, sizeof why, "lagand at %.100s %s: %.*s", c->endpoint,
             m->type == LAGAN_MSG_BYE ? "says goodbye" : "refuses", (int)MIN(s.n, 100u), s.p);
    if (!c->welcome) c->refused = true;
    if (m->type == LAGAN_MSG_BYE) c->welcome = false; /* until it has closed and we are back */
    client_lose(c, (uint32_t)code, why);
}

/* With the seed that was chosen another lagand makes the same tokens. */
static void
take_accept(struct lagan *c, const struct msg *m)
{
    struct row *r = client_row(c, m->rid);

    if (!r) return;
    r->accepted = r->here = true;
    if (r->gave_seed || r->has_seed) return;
    r->has_seed = msg_u64(&m->map, "seed", &r->seed) == 0;
}

/* What the frame means for the connection. True: it is for the caller, who owns it now. */
static bool
take_frame(struct lagan *c, struct frame *f)
{
    switch (f->m.type) {
    case LAGAN_MSG_WELCOME:
        take_welcome(c, &f->m);
        return false;
    case LAGAN_MSG_PING:
        pong(c, &f->m);
        return false;
    case LAGAN_MSG_BYE:
        take_farewell(c, &f->m);
        return false;
    case LAGAN_MSG_ERROR:
        if (!f->m.rid) return take_farewell(c, &f->m), false;
        /* fallthrough */
    case LAGAN_MSG_REPLY:
        if (c->resume_rid && f->m.rid == c->resume_rid) return client_resumed(c, &f->m), false;
        if (c->call_rid && f->m.rid == c->call_rid) {
            c->call_frame = f;
            return true;
        }
        return f->m.type == LAGAN_MSG_ERROR && client_row(c, f->m.rid);
    case LAGAN_MSG_CHUNK:
    case LAGAN_MSG_DONE:
        return client_row(c, f->m.rid) != NULL;
    case LAGAN_MSG_ACCEPT:
        take_accept(c, &f->m);
        return false;
    default:
        return false; /* PONG, EVENT and what later versions may add */
    }
}

/* One frame from the socket. 1: *ret. 0: something came, not for the caller. -EAGAIN: nothing. */
static int
receive(struct lagan *c, struct frame **ret)
{
    struct frame *f = calloc(1, sizeof *f);
    struct err e;
    int r;

    if (!f) return -ENOMEM;
    zmq_msg_init(&f->z);
    if (zmq_msg_recv(&f->z, c->sock, ZMQ_DONTWAIT) < 0) {
        frame_free(f);
        return -EAGAIN;
    }
    c->heard = clock_now();
    c->ping_at = 0;
    r = msg_decode_long(&f->m, zmq_msg_data(&f->z), zmq_msg_size(&f->z), CLIENT_MAX_NODES, &e);
    if (r < 0) {
        char why[240];

        snprintf(why, sizeof why, "lagand at %.50s sent what is not understood: %.140s",
                 c->endpoint, e.text);
        if (!c->welcome) c->refused = true;
        client_lose(c, LAGAN_E_INTERNAL, why);
    } else if (take_frame(c, f)) {
        *ret = f;
        return 1;
    }
    frame_free(f);
    return 0;
}

/* ---- time */

static nsec
next_deadline(const struct lagan *c)
{
    nsec at = NSEC_NEVER;

    if (c->welcome) at = c->sent + PING_AFTER;
    if (c->welcome && c->ping_at) at = MIN(at, c->ping_at + LOST_AFTER - PING_AFTER);
    if (!c->welcome && c->n_rows) at = MIN(at, clock_after(c->apart_since, c->patience));
    at = MIN(at, client_retry_at(c));
    if (c->ack_at) at = MIN(at, c->ack_at);
    return at;
}

/* Called only when everything that came has been looked at: a caller who was away for a minute finds
 * the PONG before the clock is asked. */
static void
tick(struct lagan *c)
{
    nsec now = clock_now();
    char why[240];

    if (c->ack_at && now >= c->ack_at) client_ack(c, /* all= */ true);
    if (c->welcome && c->ping_at && now >= c->ping_at + LOST_AFTER - PING_AFTER) {
        snprintf(why, sizeof why, "lagand at %.180s has said nothing for %lld s", c->endpoint,
                 (long long)((now - c->heard) / NSEC_S));
        apart(c, why);
    }
    if (c->welcome && now >= c->sent + PING_AFTER) send_ping(c, now);
    client_retry(c, now);
    if (!c->welcome && c->n_rows && !c->losing && now >= clock_after(c->apart_since, c->patience)) {
        int n = *c->lost_why ? snprintf(why, sizeof why, "%.120s; ", c->lost_why) : 0;

        snprintf(why + n, sizeof why - (size_t)n, "no answer from lagand at %.80s for %lld s",
                 c->endpoint, (long long)((now - c->apart_since) / NSEC_S));
        client_lose(c, LAGAN_E_INTERNAL, why);
    }
}

int
client_step(struct lagan *c, struct frame **ret, nsec until)
{
    uint32_t n_breaks = c->n_breaks;

    for (;;) {
        zmq_pollitem_t items[2] = { { .events = ZMQ_POLLIN }, { .events = ZMQ_POLLIN } };
        nsec now, at;
        int events, r;

        *ret = NULL;
        while ((r = receive(c, ret)) == 0 && !c->losing) continue;
        if (r == -ENOMEM) return client_fail(c, -ENOMEM, "no memory for a frame");
        if (r == 1) {
            if (*ret == c->call_frame) *ret = NULL;
            return 1;
        }
        if (!c->losing) watch_monitor(c);
        if (c->call_rid && c->n_breaks != n_breaks) return 1;
        if (c->came) return c->came = false, 1;
        events = writable(c);
        if (!c->losing && events & ZMQ_POLLIN) continue;
        if (!c->losing && events & ZMQ_POLLOUT) {
            if (!c->hello_sent) send_hello(c);
            flush_out(c);
        }
        if (!c->losing) tick(c);
        if (c->losing) return 1;
        now = clock_now();
        if (now >= until) return 0;
        at = MIN(until, next_deadline(c));
        items[0].socket = c->sock; /* as it is now: it may be another than at the start */
        items[1].socket = c->mon;
        if (!c->hello_sent || c->out_first) items[0].events |= ZMQ_POLLOUT;
        if (zmq_poll(items, 2, at == NSEC_NEVER ? -1 : (long)CEIL_DIV(MAX(at - now, 0), NSEC_MS)) <
                0 &&
            errno == EINTR)
            return client_fail(c, -EINTR, "interrupted by a signal");
    }
}

/* ---- the wake-up */

/* ZMQ_FD is edge-triggered: it is readable when libzmq has commands that nobody looked at, and reading
 * ZMQ_EVENTS or receiving takes that away though frames remain. So every public call ends here: after
 * the last look at ZMQ_EVENTS, `more` is made readable iff there is still something to do. What comes
 * before that look is in `more`; what comes after it makes ZMQ_FD readable again; `timer` covers pings
 * and ACKs. All three are level-triggered members of one epoll descriptor, which is what callers get. */
void
client_rearm(struct lagan *c)
{
    uint64_t one = 1, was;
    bool more;
    nsec at;
    int events, mon = 0;
    size_t n = sizeof mon;

    if (!c->watched) return;
    events = writable(c);
    if (events & ZMQ_POLLOUT) {
        if (!c->hello_sent) send_hello(c);
        flush_out(c);
        events = writable(c);
    }
    zmq_getsockopt(c->mon, ZMQ_EVENTS, &mon, &n);
    more = c->first || c->losing || c->next_output || events & ZMQ_POLLIN || mon & ZMQ_POLLIN;
    if (more && !c->more_set) more = write(c->more, &one, sizeof one) == sizeof one;
    if (!more && c->more_set) more = read(c->more, &was, sizeof was) != sizeof was;
    c->more_set = more;
    at = next_deadline(c);
    /* An early wake-up costs one call; so the timer moves only when it is late, spent or due earlier. */
    if (at != NSEC_NEVER && (at < c->timer_at || c->timer_at <= clock_now())) {
        struct itimerspec t = { .it_value = { at / NSEC_S, at % NSEC_S } };

        if (timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &t, NULL) == 0) c->timer_at = at;
    } else if (at == NSEC_NEVER && c->timer_at != NSEC_NEVER) {
        struct itimerspec off = { 0 };

        if (timerfd_settime(c->timer, 0, &off, NULL) == 0) c->timer_at = NSEC_NEVER;
    }
}

static int
open_wakeup(struct lagan *c)
{
    int fds[2], i;

    c->more = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->timer_at = NSEC_NEVER;
    if (c->more < 0 || c->timer < 0 || c->epoll < 0) return -errno;
    fds[0] = c->more;
    fds[1] = c->timer;
    for (i = 0; i < 2; i++) {
        struct epoll_event ev = { .events = EPOLLIN, .data.fd = fds[i] };

        if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, fds[i], &ev) < 0) return -errno;
    }
    return 0;
}

/* ---- open and close */

/* The descriptor of one of our sockets, in or out of the epoll descriptor. */
static int
watch(struct lagan *c, void *sock, int op)
{
    struct epoll_event ev = { .events = EPOLLIN };
    size_t n = sizeof(int);

    if (zmq_getsockopt(sock, ZMQ_FD, &ev.data.fd, &n) < 0) return -errno;
    return epoll_ctl(c->epoll, op, ev.data.fd, &ev) < 0 ? -errno : 0;
}

static int
open_socket(struct lagan *c)
{
    int one = 1, fast = 5, slow = 500, linger = 0, hwm = 0;
    int64_t max = 64 << 20; /* an answer may be longer than a request: encoder states, long lists */
    char mon[64];

    c->sock = zmq_socket(c->ctx, ZMQ_DEALER);
    c->mon = zmq_socket(c->ctx, ZMQ_PAIR);
    if (!c->sock || !c->mon) return -errno;
    zmq_setsockopt(c->sock, ZMQ_IMMEDIATE, &one, sizeof one);
    zmq_setsockopt(c->sock, ZMQ_RECONNECT_IVL, &fast, sizeof fast);
    zmq_setsockopt(c->sock, ZMQ_RECONNECT_IVL_MAX, &slow, sizeof slow);
    zmq_setsockopt(c->sock, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(c->mon, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(c->sock, ZMQ_RCVHWM, &hwm, sizeof hwm); /* the windows bound it */
    zmq_setsockopt(c->sock, ZMQ_MAXMSGSIZE, &max, sizeof max);
    snprintf(mon, sizeof mon, "inproc://monitor-%u", ++c->n_sockets);
    if (zmq_socket_monitor(c->sock, mon, ZMQ_EVENT_DISCONNECTED) < 0) return -errno;
    if (zmq_connect(c->mon, mon) < 0) return -errno;
    TRY(watch(c, c->sock, EPOLL_CTL_ADD));
    TRY(watch(c, c->mon, EPOLL_CTL_ADD));
    return zmq_connect(c->sock, c->endpoint) < 0 ? -errno : 0;
}

static void
close_socket(struct lagan *c)
{
    if (c->sock) {
        watch(c, c->sock, EPOLL_CTL_DEL);
        zmq_socket_monitor(c->sock, NULL, 0);
    }
    if (c->mon) {
        watch(c, c->mon, EPOLL_CTL_DEL);
        zmq_close(c->mon);
    }
    if (c->sock) zmq_close(c->sock);
    c->sock = c->mon = NULL;
}

static int
open_all(struct lagan *c)
{
    if (getrandom(c->session, sizeof c->session, 0) != sizeof c->session) return -EIO;
    c->ctx = zmq_ctx_new();
    if (!c->ctx) return -errno;
    TRY(open_wakeup(c));
    return open_socket(c);
}

int
lagan_open(struct lagan **ret, const char *endpoint, int timeout_ms)
{
    struct lagan *c = calloc(1, sizeof *c);
    struct frame *f;
    nsec now = clock_now();
    int r = 0;

    *open_why = '\0';
    if (!c) return snprintf(open_why, sizeof open_why, "no memory"), -ENOMEM;
    c->self = c;
    c->last = &c->first;
    c->out_last = &c->out_first;
    c->epoll = c->more = c->timer = -1;
    c->apart_since = c->heard = c->sent = now;
    c->patience = PATIENCE;
    if (!endpoint) endpoint = DEFAULT_ENDPOINT;
    if (strlen(endpoint) >= sizeof c->endpoint) {
        r = client_fail(c, -ENAMETOOLONG, "the endpoint is %zu bytes long, at most %zu are taken",
                        strlen(endpoint), sizeof c->endpoint - 1);
    } else {
        snprintf(c->endpoint, sizeof c->endpoint, "%s", endpoint);
        r = open_all(c);
        if (r < 0) client_fail(c, r, "connect to %s: %s", endpoint, zmq_strerror(-r));
    }
    if (r == 0 && timeout_ms) {
        nsec until = timeout_ms < 0 ? NSEC_NEVER : clock_after(now, timeout_ms * NSEC_MS);

        while (!c->welcome && !c->refused && clock_now() < until && r >= 0) {
            r = client_step(c, &f, MIN(until, clock_now() + NSEC_MS));
            if (f) frame_free(f);
            if (!c->refused) c->losing = false;
        }
        if (r >= 0) r = c->welcome ? 0 : c->refused ? -EPROTO : -ETIMEDOUT;
        if (r == -ETIMEDOUT)
            client_fail(c, r, "no answer from lagand at %s within %d ms", c->endpoint, timeout_ms);
    }
    if (r < 0) {
        snprintf(open_why, sizeof open_why, "%s", c->why);
        lagan_close(c);
        return r;
    }
    *ret = c;
    return 0;
}

/* Tell lagand what ends with us, so that it need not find out. */
static void
say_goodbye(struct lagan *c)
{
    int linger = 200; /* ms, for a lagand that does not read just now */
    msgpack_sbuffer b;
    msgpack_packer p;
    uint32_t i;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    if (c->n_rows) {
        msg_begin(&p, LAGAN_MSG_CANCEL, c->rows[0].rid, 1);
        msg_key(&p, "rids"), msgpack_pack_array(&p, c->n_rows);
        for (i = 0; i < c->n_rows; i++) msgpack_pack_uint64(&p, c->rows[i].rid);
        send_now(c, b.data, b.size);
        msgpack_sbuffer_clear(&b);
    }
    msg_begin(&p, LAGAN_MSG_BYE, 0, 1);
    msg_key(&p, "reason"), msg_text(&p, "closed");
    send_now(c, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
    zmq_setsockopt(c->sock, ZMQ_LINGER, &linger, sizeof linger);
}

void
lagan_close(struct lagan *c)
{
    if (!c) return;
    if (c->sock && c->welcome) say_goodbye(c);
    if (c->now) frame_free(c->now);
    while (c->first) {
        struct frame *f = c->first;

        c->first = f->next;
        frame_free(f);
    }
    drop_out(c);
    close_socket(c);
    if (c->epoll >= 0) close(c->epoll);
    if (c->more >= 0) close(c->more);
    if (c->timer >= 0) close(c->timer);
    if (c->ctx) zmq_ctx_term(c->ctx);
    while (c->n_rows) client_close_row(c, c->rows[0].rid);
    free(c->rows);
    free(c->ids);
    free(c->logprob);
    free(c->top);
    free(c);
}

void
lagan_patience(struct lagan *c, int ms)
{
    c->patience = ms < 0 ? NSEC_NEVER : ms * (nsec)NSEC_MS;
    client_rearm(c);
}

int
lagan_fd(const struct lagan *c)
{
    c->self->watched = true;
    client_rearm(c->self);
    return c->epoll;
}

const char *
lagan_why(const struct lagan *c)
{
    return c ? c->why : open_why;
}

const char *
lagan_version(void)
{
    return PACKAGE_VERSION;
}
