/* tcp_server.c - see tcp_server.h. */
#include "daemon/net/tcp_server.h"

#include "base/log.h"
#include "daemon/net/frontend.h"
#include "daemon/net/zmq_auth.h"
#include "daemon/net/zmq_router.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* Of frames that wait to be taken ZeroMQ keeps one more than that for a connection: of the largest 37 MiB. */
enum { SEND_QUEUE = 4096, RECEIVE_QUEUE = 8, LINGER_MS = 200 };
enum { TURN_FRAMES = 64, TURN_BYTES = 4 << 20, TURN_EVENTS = 64 };
static const nsec TURN_TIME = 5 * NSEC_MS;

struct tcp_server {
    struct zmq_router in;
    void *monitor;
    sd_event_source *source, *on_monitor;
    bool look, news; /* something may have come; a connection may have begun or ended */
    struct zmq_auth *zap;
};

/* ---- up and down */

static int
set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

static int
configure(void *s)
{
    int64_t most = LAGAN_MAX_FRAME;
    int r = zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &most, sizeof most);

    /* MANDATORY: a full or gone peer is an error of the send, not a message that vanishes. */
    r |= set(s, ZMQ_ROUTER_MANDATORY, 1);
    r |= set(s, ZMQ_LINGER, 0);
    r |= set(s, ZMQ_SNDHWM, SEND_QUEUE);
    r |= set(s, ZMQ_RCVHWM, RECEIVE_QUEUE);
    r |= set(s, ZMQ_BACKLOG, 512);
    r |= set(s, ZMQ_HANDSHAKE_IVL, 5000);
    r |= set(s, ZMQ_HEARTBEAT_IVL, 2000);
    r |= set(s, ZMQ_HEARTBEAT_TIMEOUT, 6000);
    r |= set(s, ZMQ_HEARTBEAT_TTL, 6000);
    r |= set(s, ZMQ_IPV6, 1);
    return r;
}

/* Encrypted, and only for keys of the file. Where nobody answers ZAP's questions this libzmq would let
 * everybody in: so zmq_auth_open() comes before the socket is bound, and identify() wants a name of the file. */
static int
encrypt(void *s, const struct curve_file *keys)
{
    int r = set(s, ZMQ_CURVE_SERVER, 1);

    r |= zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, keys->secret, CURVE_KEY + 1);
    r |= zmq_setsockopt(s, ZMQ_ZAP_DOMAIN, ZMQ_AUTH_DOMAIN, strlen(ZMQ_AUTH_DOMAIN));
    return r;
}

/* The descriptor only wakes the loop; what there is to do the pump finds. */
static int
on_ready(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    (void)s;
    (void)fd;
    (void)revents;
    *(bool *)arg = true;
    return 0;
}

/* A socket's descriptor into the loop; *look says that it had something. */
static int
watch(struct daemon *d, void *s, sd_event_source **ret, bool *look)
{
    size_t size = sizeof(int);
    int fd;

    *look = true; /* there is no edge before it has been found empty */
    if (zmq_getsockopt(s, ZMQ_FD, &fd, &size) < 0) return -errno;
    return sd_event_add_io(d->event, ret, fd, EPOLLIN, on_ready, look);
}

/* What ZeroMQ knows of connections, in a socket of its own. */
static int
open_monitor(struct daemon *d, struct tcp_server *t)
{
    static const char at[] = "inproc://tcp";

    t->monitor = zmq_socket(d->zmq, ZMQ_PAIR);
    /* Without a bound: ZeroMQ's thread would wait for us, and everyone for it. */
    if (!t->monitor || set(t->monitor, ZMQ_LINGER, 0) || set(t->monitor, ZMQ_RCVHWM, 0) ||
        zmq_socket_monitor(t->in.socket, at, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) < 0 ||
        zmq_connect(t->monitor, at) < 0)
        return -errno;
    return watch(d, t->monitor, &t->on_monitor, &t->news);
}

static int
bind_it(struct daemon *d, struct tcp_server *t, struct err *e)
{
    const char *where = d->config->o.tcp;
    const struct curve_file *keys = &d->frontend->keys;
    char at[300] = "";
    size_t size = sizeof at;
    int r;

    t->in.socket = zmq_socket(d->zmq, ZMQ_ROUTER);
    if (!t->in.socket || configure(t->in.socket))
        return err_set(e, -EIO, "a socket for clients: %s", zmq_strerror(errno));
    r = open_monitor(d, t);
    if (r < 0) return err_set(e, r, "a monitor for clients: %s", zmq_strerror(-r));
    t->zap = zmq_auth_open(d->zmq, d->event, keys, e);
    if (!t->zap) return -EIO;
    if (encrypt(t->in.socket, keys))
        return err_set(e, -EIO, "%s: this libzmq has no CURVE: %s", where, zmq_strerror(errno));
    if (zmq_bind(t->in.socket, where) < 0)
        return err_set(e, -errno, "api.tcp %s: cannot be bound: %s", where, zmq_strerror(errno));
    r = watch(d, t->in.socket, &t->source, &t->look);
    if (r < 0) return err_set(e, r, "a socket for clients: %s", strerror(-r));
    zmq_getsockopt(t->in.socket, ZMQ_LAST_ENDPOINT, at, &size);
    log_info("serving at %s for %u keys", at, keys->n_peers);
    return 0;
}

struct tcp_server *
tcp_server_open(struct daemon *d, struct err *e)
{
    struct tcp_server *t = calloc(1, sizeof *t);

    if (!t) {
        err_set(e, -ENOMEM, "no memory for clients over tcp");
        return NULL;
    }
    return bind_it(d, t, e) < 0 ? tcp_server_close(t, false) : t;
}

struct tcp_server *
tcp_server_close(struct tcp_server *t, bool linger)
{
    if (!t) return NULL;
    sd_event_source_disable_unref(t->source);
    sd_event_source_disable_unref(t->on_monitor);
    if (t->in.socket) zmq_socket_monitor(t->in.socket, NULL, 0);
    if (t->monitor) zmq_close(t->monitor);
    if (t->in.socket && linger) set(t->in.socket, ZMQ_LINGER, LINGER_MS);
    if (t->in.socket) zmq_close(t->in.socket);
    zmq_auth_close(t->zap);
    free(t);
    return NULL;
}

/* ---- out */

int
tcp_server_send(struct tcp_server *t, const void *id, size_t id_len, const void *frame, size_t n)
{
    int r;

    t->look = true;
    do r = zmq_send(t->in.socket, id, id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (r < 0 && errno == EINTR);
    if (r < 0) return errno == EAGAIN ? -EAGAIN : -EHOSTUNREACH;
    /* With the id accepted the rest is: ZeroMQ queues messages whole. */
    do r = zmq_send(t->in.socket, frame, n, ZMQ_DONTWAIT);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -EHOSTUNREACH : 0;
}

/* ---- in */

/* One message. How many bytes, -EAGAIN and -EBUSY as zmq_router_take() says. */
static int
receive(struct daemon *d, struct tcp_server *t, uint32_t *passed)
{
    struct zmq_router_message m;
    int bytes = zmq_router_take(&t->in, &m, passed);

    if (bytes <= 0) return bytes;
    bytes = (int)zmq_msg_size(&m.frame);
    frontend_take(d,
                  &(struct caller){
                      .listener = LISTENER_TCP,
                      .id = m.id,
                      .id_len = m.id_len,
                      .fd = zmq_msg_get(&m.frame, ZMQ_SRCFD),
                      .key = zmq_msg_gets(&m.frame, "User-Id"),
                  },
                  zmq_msg_data(&m.frame), zmq_msg_size(&m.frame), m.several);
    zmq_msg_close(&m.frame);
    return bytes;
}

/* true: there may be more. */
static bool
hear_monitor(struct daemon *d, void *monitor)
{
    uint8_t event[6];
    char spare[256];
    uint32_t n = 0;

    while (n++ < TURN_EVENTS &&
           zmq_recv(monitor, event, sizeof event, ZMQ_DONTWAIT) == sizeof event) {
        uint16_t what;
        uint32_t fd;

        memcpy(&what, event, sizeof what);
        memcpy(&fd, event + 2, sizeof fd);
        zmq_recv(monitor, spare, sizeof spare, ZMQ_DONTWAIT);
        if (what == ZMQ_EVENT_DISCONNECTED) frontend_connection_closed(d, (int)fd);
        if (what == ZMQ_EVENT_ACCEPTED) frontend_connection_opened(d, (int)fd);
    }
    return n > TURN_EVENTS;
}

void
tcp_server_look(struct tcp_server *t)
{
    if (t) t->look = t->news = true;
}

uint32_t
tcp_server_pump(struct daemon *d, bool *more)
{
    struct tcp_server *t = d->frontend->tcp;
    nsec until = clock_now() + TURN_TIME;
    uint32_t n = 0, passed = 0;
    int bytes = 0, r = 0;

    if (!t) return 0;
    zmq_auth_pump(t->zap);
    if (t->news) t->news = hear_monitor(d, t->monitor);
    *more |= t->news;
    t->look |= d->frontend->some_over;
    if (!t->look) return 0;
    while (n < TURN_FRAMES && bytes < TURN_BYTES && (r = receive(d, t, &passed)) >= 0) {
        n++;
        bytes += r;
        if (clock_now() >= until) break;
    }
    t->look = r != -EAGAIN; /* the budget is spent */
    if (!t->look) frontend_drop_closed(d);
    *more |= t->look;
    return n;
}
