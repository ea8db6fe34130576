/* open.c - opens and closes connections: sockets, keys, wake-up descriptors; see client.h. */
#include "client/client.h"

#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define RECONNECT_TIMEOUT (30 * NSEC_S) /* lagan_set_reconnect_timeout() */
#define DEFAULT_ENDPOINT "ipc:///run/lagan/api.sock"

/* The sentence of the last failure of a function without a connection. */
static _Thread_local char thread_errmsg[320];

int
client_fail_unconnected(int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(thread_errmsg, sizeof thread_errmsg, fmt, ap);
    va_end(ap);
    return code;
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

/* Adds the descriptor of a socket to the epoll descriptor, or removes it. */
static int
watch(struct lagan *c, void *sock, int op)
{
    struct epoll_event ev = { .events = EPOLLIN };
    size_t n = sizeof(int);

    if (zmq_getsockopt(sock, ZMQ_FD, &ev.data.fd, &n) < 0) return -errno;
    return epoll_ctl(c->epoll, op, ev.data.fd, &ev) < 0 ? -errno : 0;
}

int
client_open_socket(struct lagan *c)
{
    int one = 1, never = -1, linger = 0, hwm = 0;
    int64_t max = 64 << 20; /* replies may exceed LAGAN_MAX_FRAME: encoder output, long lists */
    char mon[64];

    c->try_at = clock_now() + CLIENT_CONNECT_TIMEOUT;
    c->sock = zmq_socket(c->ctx, ZMQ_DEALER);
    c->mon = zmq_socket(c->ctx, ZMQ_PAIR);
    if (!c->sock || !c->mon) return -errno;
    zmq_setsockopt(c->sock, ZMQ_IMMEDIATE, &one, sizeof one);
    zmq_setsockopt(c->sock, ZMQ_RECONNECT_IVL, &never, sizeof never);
    zmq_setsockopt(c->sock, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(c->mon, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(c->sock, ZMQ_RCVHWM, &hwm, sizeof hwm); /* limited by the ack windows */
    zmq_setsockopt(c->sock, ZMQ_MAXMSGSIZE, &max, sizeof max);
    if (*c->secret_key) {
        zmq_setsockopt(c->sock, ZMQ_CURVE_SERVERKEY, c->server_key, CURVE_KEY + 1);
        zmq_setsockopt(c->sock, ZMQ_CURVE_PUBLICKEY, c->public_key, CURVE_KEY + 1);
        zmq_setsockopt(c->sock, ZMQ_CURVE_SECRETKEY, c->secret_key, CURVE_KEY + 1);
    }
    snprintf(mon, sizeof mon, "inproc://monitor-%u", ++c->n_sockets);
    if (zmq_socket_monitor(c->sock, mon,
                           ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                               ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) < 0)
        return -errno;
    if (zmq_connect(c->mon, mon) < 0) return -errno;
    TRY(watch(c, c->sock, EPOLL_CTL_ADD));
    TRY(watch(c, c->mon, EPOLL_CTL_ADD));
    return zmq_connect(c->sock, c->endpoint) < 0 ? -errno : 0;
}

void
client_close_socket(struct lagan *c)
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
    return client_open_socket(c);
}

/* ---- open */

static int
take_keys(struct lagan *c, const char *path)
{
    struct curve_file *f = malloc(sizeof *f);
    struct err e = { .text = "out of memory for the key file" };
    int r = f ? curve_read(f, path, &e) : -ENOMEM;

    if (r == 0 && (!*f->secret || !*f->server))
        r = err_set(&e, -EINVAL,
                    "%s: the key file of a client needs the lines `secret KEY` and `server KEY`",
                    path);
    if (r == 0 && zmq_curve_public(c->public_key, f->secret) < 0)
        r = err_set(&e, -ENOTSUP,
                    "libzmq was built without CURVE, so tcp endpoints cannot be used");
    if (r == 0) {
        memcpy(c->secret_key, f->secret, sizeof c->secret_key);
        memcpy(c->server_key, f->server, sizeof c->server_key);
    }
    if (f) explicit_bzero(f, sizeof *f);
    free(f);
    return r < 0 ? client_fail(c, r, "%s", e.text) : 0;
}

static int
open_endpoint(struct lagan *c, const char *endpoint, const char *keys)
{
    bool tcp = !strncmp(endpoint, "tcp://", 6);
    struct err e;
    int r;

    if (client_check_endpoint(endpoint, &e) < 0) return client_fail(c, e.code, "%s", e.text);
    snprintf(c->endpoint, sizeof c->endpoint, "%s", endpoint);
    if (tcp && !keys)
        return client_fail(c, -EINVAL, "%s: a tcp endpoint needs keys; use lagan_open_keys()",
                           endpoint);
    if (tcp) TRY(take_keys(c, keys));
    r = open_all(c);
    return r < 0 ? client_fail(c, r, "cannot connect to %s: %s", endpoint, zmq_strerror(-r)) : 0;
}

/* Says why there was no WELCOME within timeout_ms. */
static int
explain_silence(struct lagan *c, int timeout_ms)
{
    bool tcp = !strncmp(c->endpoint, "tcp://", 6);
    struct err e;

    if (c->handshake_failed) return client_fail(c, -EACCES, "%s", c->lost_why);
    if (tcp && !c->connected && client_explain_tcp(c->endpoint, &e) < 0)
        return client_fail(c, e.code, "%s", e.text);
    return client_fail(c, -ETIMEDOUT, "lagand at %s sent no WELCOME within %d ms%s", c->endpoint,
                       timeout_ms,
                       tcp && c->connected ? "; the connection was accepted: is api.tcp of lagand "
                                             "at that port?"
                                           : "");
}

static int
wait_welcome(struct lagan *c, int timeout_ms)
{
    nsec until = client_until(timeout_ms);
    struct frame *f;
    int r = 0;

    while (!c->welcome && !c->rejected && clock_now() < until && r >= 0) {
        r = client_step(c, &f, MIN(until, clock_now() + NSEC_MS));
        if (f) frame_free(f);
        if (!c->rejected) c->reporting_loss = false;
    }
    if (r < 0 || c->welcome) return MIN(r, 0);
    if (c->rejected) return c->key_rejected ? -EACCES : -EPROTO;
    return explain_silence(c, timeout_ms);
}

int
lagan_open_keys(struct lagan **ret, const char *endpoint, const char *keys, int timeout_ms)
{
    struct lagan *c = calloc(1, sizeof *c);
    nsec now = clock_now();
    int r;

    *thread_errmsg = '\0';
    if (!c) return client_fail_unconnected(-ENOMEM, "out of memory for a connection");
    c->self = c;
    c->last = &c->first;
    c->out_last = &c->out_first;
    c->epoll = c->more = c->timer = -1;
    c->disconnected_since = c->received = c->sent = now;
    c->reconnect_timeout = RECONNECT_TIMEOUT;
    r = open_endpoint(c, endpoint ? endpoint : DEFAULT_ENDPOINT, keys);
    if (r == 0 && timeout_ms) r = wait_welcome(c, timeout_ms);
    if (r < 0) {
        client_fail_unconnected(r, "%s", c->errmsg);
        lagan_close(c);
        return r;
    }
    *ret = c;
    return 0;
}

int
lagan_open(struct lagan **ret, const char *endpoint, int timeout_ms)
{
    return lagan_open_keys(ret, endpoint, NULL, timeout_ms);
}

/* ---- close */

/* Cancels the open requests and sends BYE, so that lagand does not wait for a timeout. */
static void
send_bye(struct lagan *c)
{
    int linger = 200; /* ms that closing may take while lagand does not read */
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer cancel = { 0 }, bye = { 0 };
    msgpack_packer p;

    if (c->n_requests) {
        p = client_begin(&cancel, LAGAN_MSG_CANCEL, c->requests[0].rid, 1);
        msg_key(&p, "rids"), msgpack_pack_array(&p, c->n_requests);
        for (uint32_t i = 0; i < c->n_requests; i++) msgpack_pack_uint64(&p, c->requests[i].rid);
        zmq_send(c->sock, cancel.data, cancel.size, ZMQ_DONTWAIT);
    }
    p = client_begin(&bye, LAGAN_MSG_BYE, 0, 1);
    msg_key(&p, "reason"), msg_text(&p, "closed");
    zmq_send(c->sock, bye.data, bye.size, ZMQ_DONTWAIT);
    zmq_setsockopt(c->sock, ZMQ_LINGER, &linger, sizeof linger);
}

void
lagan_close(struct lagan *c)
{
    if (!c) return;
    if (c->sock && c->welcome) send_bye(c);
    if (c->current) frame_free(c->current);
    client_drop_received(c);
    client_drop_out(c);
    client_close_socket(c);
    if (c->epoll >= 0) close(c->epoll);
    if (c->more >= 0) close(c->more);
    if (c->timer >= 0) close(c->timer);
    if (c->ctx) zmq_ctx_term(c->ctx);
    while (c->n_requests) client_close_request(c, c->requests[0].rid);
    free(c->requests);
    free(c->calls);
    free(c->reply);
    free(c->ids);
    free(c->logprob);
    free(c->top);
    free(c->values);
    explicit_bzero(c->secret_key, sizeof c->secret_key);
    free(c);
}

void
lagan_set_reconnect_timeout(struct lagan *c, int ms)
{
    c->reconnect_timeout = ms < 0 ? NSEC_NEVER : ms * (nsec)NSEC_MS;
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
lagan_errmsg(const struct lagan *c)
{
    return c ? c->errmsg : thread_errmsg;
}

int
lagan_has_feature(const struct lagan *c, const char *name)
{
    char word[LAGAN_MAX_KEY + 3];

    if (!*c->features) return -ENOTCONN;
    snprintf(word, sizeof word, " %.*s ", LAGAN_MAX_KEY, name);
    return strstr(c->features, word) != NULL;
}

int
lagan_connected(const struct lagan *c)
{
    return c->welcome;
}

const char *
lagan_version(void)
{
    return PACKAGE_VERSION;
}
