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
#include <zmq.h>

#define RECONNECT_TIMEOUT (30 * NSEC_S) /* lagan_set_reconnect_timeout() */
enum { LINGER_MS = 200 };               /* that closing may take while lagand does not read */
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

int
client_open_transport(struct lagan *c)
{
    const struct transport_tcp to = {
        .context = c->ctx,
        .number = ++c->n_transports,
        .endpoint = c->endpoint,
        .server_key = c->server_key,
        .public_key = c->public_key,
        .secret_key = c->secret_key,
    };

    c->try_at = clock_now() + CLIENT_CONNECT_TIMEOUT;
    return c->ctx ? zmq_transport_open(&c->transport, &to, c->epoll)
                  : unix_transport_open(&c->transport, c->endpoint + strlen("ipc://"), c->epoll);
}

static int
open_all(struct lagan *c)
{
    if (getrandom(c->session, sizeof c->session, 0) != sizeof c->session) return -EIO;
    if (!strncmp(c->endpoint, "tcp://", 6)) {
        c->ctx = zmq_ctx_new();
        if (!c->ctx) return -errno;
    }
    TRY(open_wakeup(c));
    return client_open_transport(c);
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
    c->retry_at = NSEC_NEVER;
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
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer cancel = { 0 }, bye = { 0 };
    msgpack_packer p;

    if (c->n_requests) {
        p = client_begin(&cancel, LAGAN_MSG_CANCEL, c->requests[0].rid, 1);
        msg_key(&p, "rids"), msgpack_pack_array(&p, c->n_requests);
        for (uint32_t i = 0; i < c->n_requests; i++) msgpack_pack_uint64(&p, c->requests[i].rid);
        if (transport_send(c->transport, cancel.data, cancel.size) < 0) return;
    }
    p = client_begin(&bye, LAGAN_MSG_BYE, 0, 1);
    msg_key(&p, "reason"), msg_text(&p, "closed");
    if (transport_send(c->transport, bye.data, bye.size) < 0)
        return; /* lagand sees the end of input */
}

void
lagan_close(struct lagan *c)
{
    bool bye = c && c->transport && c->welcome;

    if (!c) return;
    if (bye) send_bye(c);
    if (c->current) frame_free(c->current);
    client_drop_received(c);
    client_drop_out(c);
    transport_close(c->transport, bye ? LINGER_MS : 0);
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
