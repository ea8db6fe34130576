/* client.c - runs a connection: HELLO, send, receive, pings, loss; see client.h and lagan.h.
 *
 * HELLO is sent when the transport first becomes writable. All other frames are sent after
 * WELCOME, when the protocol version of lagand is known; until then they are queued in
 * c->out_first. When the transport reports the end of its connection, or after silence, the
 * library closes the transport and makes another one, and resume.c moves the requests to it. */
#include "client/client.h"

#include "config.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* PING is sent this time after the last sent frame, because lagand closes a silent connection. */
#define PING_AFTER (2 * NSEC_S)
#define LOST_AFTER (10 * NSEC_S)  /* the connection is lost if no frame arrives despite a PING */
#define WAIT_LEAST (5 * NSEC_MS)  /* first delay before another transport is made */
#define WAIT_MOST (500 * NSEC_MS) /* longest delay, reached by doubling */

int
client_fail(struct lagan *c, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(c->errmsg, sizeof c->errmsg, fmt, ap);
    va_end(ap);
    return code;
}

msgpack_packer
client_begin(msgpack_sbuffer *b, uint32_t type, uint64_t rid, uint32_t n_keys)
{
    msgpack_packer p;

    msgpack_packer_init(&p, b, msgpack_sbuffer_write);
    msg_begin(&p, type, rid, n_keys);
    return p;
}

int
client_pack_ids(msgpack_packer *p, const int32_t *ids, size_t n)
{
    if (msgpack_pack_bin(p, 4 * n) < 0) return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = (uint32_t)ids[i];
        const uint8_t le[4] = { (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16),
                                (uint8_t)(v >> 24) };

        if (msgpack_pack_bin_body(p, le, 4) < 0) return -ENOMEM;
    }
    return 0;
}

int
frame_new(struct frame **ret, const void *bytes, size_t n, struct err *e)
{
    struct frame *f = malloc(sizeof *f + n);

    if (!f) return -ENOMEM;
    f->next = NULL;
    memcpy(f->bytes, bytes, n);
    *ret = f;
    return msg_decode_long(&f->m, f->bytes, n, CLIENT_MAX_NODES, e);
}

void
frame_free(struct frame *f)
{
    msg_done(&f->m);
    free(f);
}

void
client_queue_received(struct lagan *c, struct frame *f)
{
    f->next = NULL;
    *c->last = f;
    c->last = &f->next;
}

struct frame *
client_take_received(struct lagan *c)
{
    struct frame *f = c->first;

    if (f) c->first = f->next;
    if (!c->first) c->last = &c->first;
    return f;
}

void
client_drop_received(struct lagan *c)
{
    while (c->first) frame_free(client_take_received(c));
}

/* ---- open requests */

struct open_request *
client_find(struct lagan *c, uint64_t rid)
{
    uint32_t lo = 0, hi = c->n_requests;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (c->requests[mid].rid < rid)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < c->n_requests && c->requests[lo].rid == rid ? &c->requests[lo] : NULL;
}

void
client_close_request(struct lagan *c, uint64_t rid)
{
    struct open_request *r = client_find(c, rid);

    if (!r) return;
    free(r->body);
    free(r->ids);
    msgpack_sbuffer_destroy(&r->end);
    c->n_requests--;
    memmove(r, r + 1, (size_t)(c->requests + c->n_requests - r) * sizeof *r);
}

/* ---- calls of lagan_start_call() */

bool
client_is_call(const struct lagan *c, uint64_t rid)
{
    uint32_t i = 0;

    while (i < c->n_calls && c->calls[i] != rid) i++;
    return i < c->n_calls;
}

void
client_close_call(struct lagan *c, uint64_t rid)
{
    uint32_t i = 0;

    while (i < c->n_calls && c->calls[i] != rid) i++;
    if (i == c->n_calls) return;
    c->n_lost_calls -= i < c->n_lost_calls;
    c->n_calls--;
    memmove(c->calls + i, c->calls + i + 1, (c->n_calls - i) * sizeof *c->calls);
}

/* ---- sending */

static unsigned
state_of_transport(const struct lagan *c)
{
    return c->transport ? transport_state(c->transport) : 0;
}

/* Removes the frame *at from the queue. */
static void
drop_frame(struct lagan *c, struct out **at)
{
    struct out *o = *at;

    *at = o->next;
    if (!o->next) c->out_last = at;
    c->n_out--;
    free(o);
}

void
client_drop_out(struct lagan *c)
{
    while (c->out_first) drop_frame(c, &c->out_first);
}

static bool
send_now(struct lagan *c, const void *body, size_t n)
{
    if (!c->transport || transport_send(c->transport, body, n) < 0) return false;
    c->sent = clock_now();
    return true;
}

static void
flush_out(struct lagan *c)
{
    while (c->welcome && c->out_first && send_now(c, c->out_first->body, c->out_first->n))
        drop_frame(c, &c->out_first);
}

bool
client_disconnected(const struct lagan *c)
{
    return c->was_welcome && !c->welcome;
}

static int
queue_out(struct lagan *c, const msgpack_sbuffer *b, uint64_t rid)
{
    struct out *o = malloc(sizeof *o + b->size);

    if (!o) return client_fail(c, -ENOMEM, "out of memory for a message of %zu bytes", b->size);
    o->next = NULL;
    o->call = rid;
    o->n = b->size;
    memcpy(o->body, b->data, b->size);
    *c->out_last = o;
    c->out_last = &o->next;
    c->n_out++;
    return 0;
}

int
client_send(struct lagan *c, const msgpack_sbuffer *b)
{
    return client_send_call(c, b, 0);
}

int
client_send_call(struct lagan *c, const msgpack_sbuffer *b, uint64_t rid)
{
    if (c->welcome && !c->out_first && send_now(c, b->data, b->size)) return 0;
    if (c->n_out >= CLIENT_MAX_OUT)
        return client_fail(
            c, -EAGAIN,
            "%u messages already wait to be sent to lagand at %s; call lagan_next() first",
            c->n_out, c->endpoint);
    return queue_out(c, b, rid);
}

void
client_unsend_call(struct lagan *c, uint64_t rid)
{
    struct out **at = &c->out_first;

    while (*at && (*at)->call != rid) at = &(*at)->next;
    if (*at) drop_frame(c, at);
}

int
client_send_cancel(struct lagan *c, uint64_t rid)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };

    client_begin(&b, LAGAN_MSG_CANCEL, rid, 0);
    return client_send(c, &b);
}

static void
send_hello(struct lagan *c)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    msgpack_packer p = client_begin(&b, LAGAN_MSG_HELLO, 0, 4);

    msg_key(&p, "min"), msgpack_pack_uint32(&p, LAGAN_WIRE_VERSION);
    msg_key(&p, "max"), msgpack_pack_uint32(&p, LAGAN_WIRE_VERSION);
    msg_key(&p, "client"), msg_text(&p, "liblagan " PACKAGE_VERSION);
    msg_key(&p, "session"), msg_bin(&p, c->session, sizeof c->session);
    c->hello_sent = send_now(c, b.data, b.size);
}

static void
send_ping(struct lagan *c, nsec now)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    msgpack_packer p = client_begin(&b, LAGAN_MSG_PING, 0, 1);

    msg_key(&p, "t"), msgpack_pack_int64(&p, now);
    if (send_now(c, b.data, b.size) && !c->ping_at) c->ping_at = now;
    c->sent = now; /* also if the pipe is full, so that the next PING is tried after PING_AFTER */
}

static int
send_ack(struct lagan *c, struct open_request *r)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    msgpack_packer p = client_begin(&b, LAGAN_MSG_ACK, r->rid, 1);

    msg_key(&p, "n"), msgpack_pack_uint64(&p, r->taken);
    TRY(client_send(c, &b));
    r->acked = r->taken;
    return 0;
}

void
client_ack(struct lagan *c, bool all)
{
    struct open_request *r = c->ack_rid ? client_find(c, c->ack_rid) : NULL;
    bool left = false;

    if (client_disconnected(c)) return; /* RESUME will say what was delivered */
    if (!all && c->ack_rid && (!r || r->ack_held || send_ack(c, r) == 0)) c->ack_rid = 0;
    if (!all) return;
    for (uint32_t i = 0; i < c->n_requests; i++) {
        r = &c->requests[i];
        if (!r->ack_held && r->taken > r->acked) left |= send_ack(c, r) < 0;
    }
    c->ack_at = left ? clock_now() + CLIENT_ACK_AFTER : 0;
}

/* ---- loss */

void
client_lose(struct lagan *c, uint32_t code, const char *why)
{
    snprintf(c->lost_why, sizeof c->lost_why, "%s", why);
    snprintf(c->errmsg, sizeof c->errmsg, "%s", why);
    c->lost_code = code;
    c->reporting_loss = true;
    c->n_lost_calls = c->n_calls;
    c->ping_at = c->ack_at = 0;
    c->disconnected_since = clock_now();
    client_drop_out(c);
}

/* Closes the transport and schedules another one: at once if the connection had a WELCOME
 * (c->wait is 0), else after a delay that doubles each time. */
static void
schedule_transport(struct lagan *c)
{
    c->transport = transport_close(c->transport, 0);
    c->hello_sent = false;
    c->try_at = clock_now() + c->wait;
    c->wait = MIN(MAX(2 * c->wait, WAIT_LEAST), WAIT_MOST);
}

/* Makes another transport, or schedules the next try: missing descriptors or memory may become
 * free. The tries end with the reconnect timeout. */
static void
try_again(struct lagan *c)
{
    int r = client_open_transport(c);

    if (r == 0) return;
    snprintf(c->lost_why, sizeof c->lost_why, "cannot make a socket to reconnect: %s",
             strerror(-r));
    schedule_transport(c);
}

/* Handles the end of a connection: the next one will resume the open requests. */
static void
connection_lost(struct lagan *c, const char *why)
{
    snprintf(c->lost_why, sizeof c->lost_why, "%s", why);
    if (c->welcome) {
        c->welcome = false;
        c->disconnected_since = clock_now();
        c->ping_at = c->ack_at = 0;
        c->resume_rid = 0;
        c->n_breaks++;
        c->n_lost_calls = c->n_calls;
        client_drop_out(c);
    }
    schedule_transport(c);
}

static void
take_transport_event(struct lagan *c, enum transport_event event)
{
    char why[240];

    switch (event) {
    case TRANSPORT_CONNECTED:
        c->connected = true;
        return;
    case TRANSPORT_KEY_REFUSED:
        snprintf(why, sizeof why,
                 "lagand at %.100s does not accept the public key %s of this client", c->endpoint,
                 c->public_key);
        c->rejected = c->key_rejected = true;
        client_lose(c, LAGAN_E_UNAUTHORIZED, why);
        return;
    case TRANSPORT_HANDSHAKE_FAILED:
        snprintf(why, sizeof why,
                 "the CURVE handshake with %.80s failed: `server` of the key file is not the "
                 "key of that lagand, or another program listens there",
                 c->endpoint);
        c->handshake_failed = true;
        connection_lost(c, why);
        return;
    case TRANSPORT_NOT_CONNECTED:
        schedule_transport(c);
        return;
    default:
        snprintf(why, sizeof why, "lagand at %.180s closed the connection", c->endpoint);
        connection_lost(c, why);
    }
}

/* ---- receiving */

/* Stores the names of the list; those of a later lagand that do not fit are left out. */
static void
take_features(struct lagan *c, const msgpack_object *list)
{
    size_t n = 1;

    strcpy(c->features, " ");
    for (uint32_t i = 0; list && list->type == MSGPACK_OBJECT_ARRAY && i < list->via.array.size;
         i++) {
        const msgpack_object *o = &list->via.array.ptr[i];

        if (o->type != MSGPACK_OBJECT_STR || o->via.str.size + n + 2 > sizeof c->features) continue;
        n += (size_t)snprintf(c->features + n, sizeof c->features - n, "%.*s ",
                              (int)o->via.str.size, o->via.str.ptr);
    }
}

static void
take_welcome(struct lagan *c, const struct msg *m)
{
    struct msg_span s;
    uint64_t proto = LAGAN_WIRE_VERSION;
    char why[240];

    if (msg_u64(&m->map, "proto", &proto) == 0 && proto != LAGAN_WIRE_VERSION) {
        snprintf(why, sizeof why,
                 "lagand at %.120s uses protocol version %llu, this library version %d",
                 c->endpoint, (unsigned long long)proto, LAGAN_WIRE_VERSION);
        c->rejected = true;
        client_lose(c, LAGAN_E_UNSUPPORTED, why);
        return;
    }
    if (msg_str(&m->map, "state", &s) == 0)
        snprintf(c->state, sizeof c->state, "%.*s", (int)MIN(s.n, 31u), s.p);
    take_features(c, msg_get(&m->map, "features"));
    c->welcome = true;
    c->wait = 0;
    if (c->was_welcome) client_resume(c);
    c->was_welcome = true;
    flush_out(c);
}

static void
pong(struct lagan *c, const struct msg *m)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    msgpack_packer p = client_begin(&b, LAGAN_MSG_PONG, 0, 1);
    uint64_t t = 0;

    msg_u64(&m->map, "t", &t);
    msg_key(&p, "t"), msgpack_pack_uint64(&p, t);
    /* Queued if the pipe is full, because lagand sends no further messages before the PONG. */
    if (!send_now(c, b.data, b.size)) queue_out(c, &b, 0);
}

/* Stores the sentence of an ERROR about no request. The connection stays: lagand rejected one
 * frame, whose rid it could not read. */
static void
note_error(struct lagan *c, const struct msg *m)
{
    struct msg_span s = { "", 0 };

    msg_str(&m->map, "message", &s);
    client_fail(c, 0, "lagand at %.100s rejected a message: %.*s", c->endpoint, (int)MIN(s.n, 180u),
                s.p);
}

/* Handles BYE, or an ERROR without rid instead of WELCOME. */
static void
take_bye(struct lagan *c, const struct msg *m)
{
    struct msg_span s = { "", 0 };
    char why[240];
    uint64_t code = m->type == LAGAN_MSG_BYE ? LAGAN_E_DRAINING : LAGAN_E_INTERNAL;

    msg_u64(&m->map, "code", &code);
    if (msg_str(&m->map, "message", &s) < 0) msg_str(&m->map, "reason", &s);
    snprintf(why, sizeof why, "lagand at %.100s %s: %.*s", c->endpoint,
             m->type == LAGAN_MSG_BYE ? "closes the connection" : "rejects the connection",
             (int)MIN(s.n, 100u), s.p);
    if (m->type == LAGAN_MSG_BYE && msg_get(&m->map, "retry_after_ms")) {
        connection_lost(c, why); /* the next one resumes the requests */
        return;
    }
    if (!c->welcome) c->rejected = true;
    /* until there is a WELCOME on the next connection */
    if (m->type == LAGAN_MSG_BYE) c->welcome = false;
    client_lose(c, (uint32_t)code, why);
}

/* Stores the seed: with it another lagand continues with the same tokens. */
static void
take_accept(struct lagan *c, const struct msg *m)
{
    struct open_request *r = client_find(c, m->rid);

    if (!r) return;
    r->accepted = r->known_to_lagand = true;
    r->rejected_since = 0;
    if (!r->accepted_at) msg_u64(&m->map, "at", &r->accepted_at);
    if (r->gave_seed || r->has_seed) return;
    r->has_seed = msg_u64(&m->map, "seed", &r->seed) == 0;
}

/* Handles a frame. Returns true if it is an event for the caller, who then owns it. */
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
        take_bye(c, &f->m);
        return false;
    case LAGAN_MSG_ERROR:
        if (!f->m.rid && !c->welcome) return take_bye(c, &f->m), false;
        if (!f->m.rid) return note_error(c, &f->m), false;
        /* fallthrough */
    case LAGAN_MSG_REPLY:
        if (c->resume_rid && f->m.rid == c->resume_rid) return client_resumed(c, &f->m), false;
        if (c->call_rid && f->m.rid == c->call_rid) {
            c->call_frame = f;
            return true;
        }
        return client_is_call(c, f->m.rid) ||
               (f->m.type == LAGAN_MSG_ERROR && client_find(c, f->m.rid));
    case LAGAN_MSG_CHUNK:
    case LAGAN_MSG_DONE:
        return client_find(c, f->m.rid) != NULL;
    case LAGAN_MSG_ACCEPT:
        take_accept(c, &f->m);
        return false;
    default:
        return false; /* PONG, EVENT and types of later versions */
    }
}

/* Receives a frame or an event of the transport. Returns 1: *ret is for the caller; 0: handled
 * here; -EAGAIN: there is none; -ENOMEM. */
static int
receive(struct lagan *c, struct frame **ret)
{
    struct frame *f = NULL;
    const void *bytes;
    enum transport_event event;
    struct err e;
    size_t n;
    int r;

    event = c->transport ? transport_receive(c->transport, &bytes, &n) : TRANSPORT_NOTHING;
    if (event == TRANSPORT_NOTHING) return -EAGAIN;
    if (event != TRANSPORT_FRAME) return take_transport_event(c, event), 0;
    c->received = clock_now();
    c->ping_at = 0;
    r = frame_new(&f, bytes, n, &e);
    if (!f) return -ENOMEM;
    if (r < 0) {
        char why[240];

        snprintf(why, sizeof why, "lagand at %.50s sent an invalid message: %.140s", c->endpoint,
                 e.text);
        if (!c->welcome) c->rejected = true;
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

    if (!c->hello_sent) at = c->try_at;
    if (c->welcome) at = c->sent + PING_AFTER;
    if (c->welcome && c->ping_at) at = MIN(at, c->ping_at + LOST_AFTER - PING_AFTER);
    if (!c->welcome && c->n_requests + c->n_calls)
        at = MIN(at, clock_after(c->disconnected_since, c->reconnect_timeout));
    at = MIN(at, client_retry_at(c));
    if (c->ack_at) at = MIN(at, c->ack_at);
    return at;
}

/* Handles everything that is due by now. Call it when all received frames are handled: if the
 * program did not call the library for a minute, a received PONG must count before the timeout. */
static void
tick(struct lagan *c)
{
    nsec now = clock_now();
    char why[240];

    if (!c->hello_sent && now >= c->try_at) {
        if (c->transport)
            schedule_transport(c);
        else
            try_again(c);
    }
    if (c->ack_at && now >= c->ack_at) client_ack(c, /* all= */ true);
    if (c->welcome && c->ping_at && now >= c->ping_at + LOST_AFTER - PING_AFTER) {
        snprintf(why, sizeof why, "lagand at %.180s sent no message for %lld s", c->endpoint,
                 (long long)((now - c->received) / NSEC_S));
        connection_lost(c, why);
    }
    if (c->welcome && now >= c->sent + PING_AFTER) send_ping(c, now);
    client_retry(c, now);
    if (!c->welcome && c->n_requests + c->n_calls && !c->reporting_loss &&
        now >= clock_after(c->disconnected_since, c->reconnect_timeout)) {
        int n = *c->lost_why ? snprintf(why, sizeof why, "%.120s; ", c->lost_why) : 0;

        snprintf(why + n, sizeof why - (size_t)n, "no connection to lagand at %.80s for %lld s",
                 c->endpoint, (long long)((now - c->disconnected_since) / NSEC_S));
        client_lose(c, LAGAN_E_INTERNAL, why);
    }
}

/* Waits for the transport until the time `at`. Returns 0 or -EINTR. */
static int
wait_for_transport(struct lagan *c, nsec at, nsec now)
{
    bool writable = !c->hello_sent || (c->welcome && c->out_first);
    int ms = at == NSEC_NEVER ? -1 : (int)MIN(CEIL_DIV(MAX(at - now, 0), NSEC_MS), (nsec)INT32_MAX);

    if (c->transport) return transport_wait(c->transport, writable, ms);
    return poll(NULL, 0, ms) < 0 && errno == EINTR ? -EINTR : 0;
}

int
client_step(struct lagan *c, struct frame **ret, nsec until)
{
    uint32_t n_breaks = c->n_breaks;

    for (;;) {
        unsigned state;
        nsec now;
        int r;

        *ret = NULL;
        while ((r = receive(c, ret)) == 0 && !c->reporting_loss) continue;
        if (r == -ENOMEM) return client_fail(c, -ENOMEM, "out of memory for a received message");
        if (r == 1) {
            if (*ret == c->call_frame) *ret = NULL;
            return 1;
        }
        if ((c->call_rid || c->n_lost_calls) && c->n_breaks != n_breaks) return 1;
        if (c->own_frame_queued) return c->own_frame_queued = false, 1;
        state = state_of_transport(c);
        if (!c->reporting_loss && state & TRANSPORT_READABLE) continue;
        if (!c->reporting_loss && state & TRANSPORT_WRITABLE) {
            if (!c->hello_sent) send_hello(c);
            flush_out(c);
        }
        if (!c->reporting_loss) tick(c);
        if (c->reporting_loss) return 1;
        now = clock_now();
        if (now >= until) return 0;
        if (wait_for_transport(c, MIN(until, next_deadline(c)), now) == -EINTR)
            return client_fail(c, -EINTR, "interrupted by a signal");
    }
}

/* ---- the wake-up */

/* Makes the epoll descriptor of lagan_fd() readable if and only if lagan_next() has work. A
 * transport may have frames that its descriptors do not show: bytes that were read already, and
 * frames of libzmq, whose ZMQ_FD is edge-triggered: reading ZMQ_EVENTS or receiving resets it
 * although frames remain. Therefore every public call ends with client_rearm(): after its last
 * look at the transport it makes the eventfd c->more readable if work is left. Work that arrives
 * later makes a descriptor of the transport readable; c->timer covers pings and ACKs. */
void
client_rearm(struct lagan *c)
{
    uint64_t one = 1, was;
    unsigned state;
    bool more;
    nsec at, now;

    if (!c->watched) return;
    state = state_of_transport(c);
    if (state & TRANSPORT_WRITABLE && (!c->hello_sent || (c->welcome && c->out_first))) {
        if (!c->hello_sent) send_hello(c);
        flush_out(c);
        state = state_of_transport(c);
    }
    more = c->first || c->reporting_loss || c->n_lost_calls || c->next_output ||
           state & TRANSPORT_READABLE;
    if (more && !c->more_set) more = write(c->more, &one, sizeof one) == sizeof one;
    if (!more && c->more_set) more = read(c->more, &was, sizeof was) != sizeof was;
    c->more_set = more;
    at = next_deadline(c);
    /* Sets the timer only if it would expire too late, or has expired before `at`: an early expiry
     * costs less than timerfd_settime() in every call. A timer that has expired stays readable. */
    now = clock_now();
    if (at != NSEC_NEVER && (at < c->timer_at || (c->timer_at <= now && now < at))) {
        struct itimerspec t = { .it_value = { at / NSEC_S, at % NSEC_S } };

        if (timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &t, NULL) == 0) c->timer_at = at;
    } else if (at == NSEC_NEVER && c->timer_at != NSEC_NEVER) {
        struct itimerspec off = { 0 };

        if (timerfd_settime(c->timer, 0, &off, NULL) == 0) c->timer_at = NSEC_NEVER;
    }
}
