/* tcp_server.c - see tcp_server.h. */
#include "daemon/net/tcp_server.h"

#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/net/zmq_auth.h"
#include "daemon/net/zmq_router.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* libzmq keeps RECEIVE_QUEUE + 1 unread frames for each connection: at most 37 MiB. */
enum { SEND_QUEUE = 4096, RECEIVE_QUEUE = 8, LINGER_MS = 200 };
enum { ROUND_FRAMES = 64, ROUND_BYTES = 4 << 20, ROUND_EVENTS = 64 };
static const nsec ROUND_TIME = 5 * NSEC_MS;

struct tcp_server {
    struct zmq_router in;
    void *monitor;
    sd_event_source *source, *on_monitor;
    bool look, news; /* frames, or connection events, may be waiting */
    struct zmq_auth *zap;
    /* of the present round */
    nsec until;
    uint32_t n_events, n_frames, n_passed;
    size_t n_bytes;
    struct zmq_router_message m; /* the frame of the last event */
    bool held;                   /* m.frame is open */
};

/* ---- open and close */

static int
configure(void *s)
{
    int64_t most = LAGAN_MAX_FRAME;
    int r = zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &most, sizeof most);

    /* MANDATORY: a send to a full or lost peer fails instead of dropping the message. */
    r |= zmq_socket_set(s, ZMQ_ROUTER_MANDATORY, 1);
    r |= zmq_socket_set(s, ZMQ_LINGER, 0);
    r |= zmq_socket_set(s, ZMQ_SNDHWM, SEND_QUEUE);
    r |= zmq_socket_set(s, ZMQ_RCVHWM, RECEIVE_QUEUE);
    r |= zmq_socket_set(s, ZMQ_BACKLOG, 512);
    r |= zmq_socket_set(s, ZMQ_HANDSHAKE_IVL, 5000);
    r |= zmq_socket_set(s, ZMQ_HEARTBEAT_IVL, 2000);
    r |= zmq_socket_set(s, ZMQ_HEARTBEAT_TIMEOUT, 6000);
    r |= zmq_socket_set(s, ZMQ_HEARTBEAT_TTL, 6000);
    r |= zmq_socket_set(s, ZMQ_IPV6, 1);
    return r;
}

/* CURVE, and only keys of the file. Without a ZAP handler libzmq accepts everybody: zmq_auth_open()
 * comes before the bind, and identify() requires a key of the file. */
static int
encrypt(void *s, const struct curve_file *keys)
{
    int r = zmq_socket_set(s, ZMQ_CURVE_SERVER, 1);

    r |= zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, keys->secret, CURVE_KEY + 1);
    r |= zmq_setsockopt(s, ZMQ_ZAP_DOMAIN, ZMQ_AUTH_DOMAIN, strlen(ZMQ_AUTH_DOMAIN));
    return r;
}

/* Connection events arrive on a socket of their own. */
static int
open_monitor(struct daemon *d, struct tcp_server *t)
{
    static const char at[] = "inproc://tcp";

    t->monitor = zmq_socket(d->zmq, ZMQ_PAIR);
    /* The queue has no limit: otherwise libzmq's thread, and all its connections, would wait for
     * lagand. */
    if (!t->monitor || zmq_socket_set(t->monitor, ZMQ_LINGER, 0) ||
        zmq_socket_set(t->monitor, ZMQ_RCVHWM, 0) ||
        zmq_socket_monitor(t->in.socket, at, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) < 0 ||
        zmq_connect(t->monitor, at) < 0)
        return -errno;
    return zmq_socket_watch(t->monitor, d->event, &t->on_monitor, &t->news);
}

static int
bind_it(struct daemon *d, struct tcp_server *t, const struct curve_file *keys, struct err *e)
{
    const char *where = d->config->o.tcp;
    char at[300] = "";
    size_t size = sizeof at;
    int r;

    t->in.socket = zmq_socket(d->zmq, ZMQ_ROUTER);
    if (!t->in.socket || configure(t->in.socket))
        return err_set(e, -EIO, "cannot create a socket for clients: %s", zmq_strerror(errno));
    r = open_monitor(d, t);
    if (r < 0)
        return err_set(e, r, "cannot monitor the connections of clients: %s", zmq_strerror(-r));
    t->zap = zmq_auth_open(d->zmq, d->event, keys, e);
    if (!t->zap) return -EIO;
    if (encrypt(t->in.socket, keys))
        return err_set(e, -EIO, "%s: this libzmq has no CURVE: %s", where, zmq_strerror(errno));
    if (zmq_bind(t->in.socket, where) < 0)
        return err_set(e, -errno, "api.tcp %s: cannot be bound: %s", where, zmq_strerror(errno));
    r = zmq_socket_watch(t->in.socket, d->event, &t->source, &t->look);
    if (r < 0) return err_set(e, r, "cannot create a socket for clients: %s", strerror(-r));
    zmq_getsockopt(t->in.socket, ZMQ_LAST_ENDPOINT, at, &size);
    log_info("serving at %s for %u keys", at, keys->n_peers);
    return 0;
}

static void
release_frame(struct tcp_server *t)
{
    if (t->held) zmq_msg_close(&t->m.frame);
    t->held = false;
}

struct tcp_server *
tcp_server_open(struct daemon *d, const struct curve_file *keys, struct err *e)
{
    struct tcp_server *t = calloc(1, sizeof *t);

    if (!t) {
        err_set(e, -ENOMEM, "no memory for clients over tcp");
        return NULL;
    }
    return bind_it(d, t, keys, e) < 0 ? tcp_server_close(t, false) : t;
}

struct tcp_server *
tcp_server_close(struct tcp_server *t, bool linger)
{
    if (!t) return NULL;
    release_frame(t);
    sd_event_source_disable_unref(t->source);
    sd_event_source_disable_unref(t->on_monitor);
    if (t->in.socket) zmq_socket_monitor(t->in.socket, NULL, 0);
    if (t->monitor) zmq_close(t->monitor);
    if (t->in.socket && linger) zmq_socket_set(t->in.socket, ZMQ_LINGER, LINGER_MS);
    if (t->in.socket) zmq_close(t->in.socket);
    zmq_auth_close(t->zap);
    free(t);
    return NULL;
}

/* ---- send */

int
tcp_server_send(struct tcp_server *t, const void *id, size_t id_len, const void *frame, size_t n)
{
    t->look = true;
    return zmq_router_send(&t->in, id, id_len, frame, n);
}

/* ---- receive */

void
tcp_server_look(struct tcp_server *t)
{
    t->look = true;
}

void
tcp_server_look_all(struct tcp_server *t)
{
    if (t) t->look = t->news = true;
}

void
tcp_server_begin(struct tcp_server *t)
{
    t->until = clock_now() + ROUND_TIME;
    t->n_events = t->n_frames = t->n_passed = 0;
    t->n_bytes = 0;
    zmq_auth_pump(t->zap);
}

/* Returns true with the monitor's next event; false: none, or the round has read ROUND_EVENTS. */
static bool
take_monitor(struct tcp_server *t, struct tcp_server_event *ev)
{
    uint8_t event[6];
    char spare[256];

    while (t->news && t->n_events++ < ROUND_EVENTS) {
        uint16_t what;
        uint32_t fd;

        if (zmq_recv(t->monitor, event, sizeof event, ZMQ_DONTWAIT) != sizeof event) {
            t->news = false;
            break;
        }
        memcpy(&what, event, sizeof what);
        memcpy(&fd, event + 2, sizeof fd);
        zmq_recv(t->monitor, spare, sizeof spare, ZMQ_DONTWAIT);
        if (what != ZMQ_EVENT_DISCONNECTED && what != ZMQ_EVENT_ACCEPTED) continue;
        *ev = (struct tcp_server_event){
            .what = what == ZMQ_EVENT_ACCEPTED ? TCP_SERVER_OPENED : TCP_SERVER_CLOSED,
            .fd = (int)fd,
        };
        return true;
    }
    return false;
}

static bool
budget_is_spent(const struct tcp_server *t)
{
    return t->n_frames >= ROUND_FRAMES || t->n_bytes >= ROUND_BYTES ||
           (t->n_frames && clock_now() >= t->until);
}

int
tcp_server_take(struct tcp_server *t, struct tcp_server_event *ev)
{
    int r = 0;

    release_frame(t);
    if (take_monitor(t, ev)) return 1;
    while (t->look && r == 0) {
        if (budget_is_spent(t)) return -EBUSY;
        r = zmq_router_take(&t->in, &t->m, &t->n_passed);
        if (r == -EAGAIN) t->look = false;
        if (r >= 0) t->n_frames++;
    }
    if (!t->look) return 0;
    if (r < 0) return r; /* -EBUSY */
    t->held = true;
    t->n_bytes += zmq_msg_size(&t->m.frame);
    *ev = (struct tcp_server_event){
        .what = TCP_SERVER_FRAME,
        .fd = zmq_msg_get(&t->m.frame, ZMQ_SRCFD),
        .id = t->m.id,
        .id_len = t->m.id_len,
        .key = zmq_msg_gets(&t->m.frame, "User-Id"),
        .p = zmq_msg_data(&t->m.frame),
        .n = zmq_msg_size(&t->m.frame),
        .several = t->m.several,
    };
    return 1;
}

bool
tcp_server_more(const struct tcp_server *t)
{
    return t->look || t->news;
}
