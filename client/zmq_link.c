/* zmq_link.c - a connection to lagand over tcp, by a socket of libzmq with CURVE; see link.h.
 *
 * A socket is used for one connection. If libzmq reconnected by itself, frames meant for the old
 * connection would be sent on the new one before HELLO, frames received on the old one would arrive
 * after the new WELCOME, and a HELLO sent to the closing connection would be lost. */
#include "client/link.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <zmq.h>

struct zmq_link {
    struct link link;
    int epoll;
    void *sock, *monitor;
    zmq_msg_t frame; /* of the last LINK_FRAME */
};

static struct zmq_link *
of(struct link *l)
{
    return (struct zmq_link *)(void *)((char *)l - offsetof(struct zmq_link, link));
}

static int
events(void *sock)
{
    int v = 0;
    size_t n = sizeof v;

    /* Reading ZMQ_EVENTS also makes libzmq process new and lost connections, unlike most sends. */
    return zmq_getsockopt(sock, ZMQ_EVENTS, &v, &n) < 0 ? 0 : v;
}

static int
zmq_link_send(struct link *l, const void *frame, size_t n)
{
    return zmq_send(of(l)->sock, frame, n, ZMQ_DONTWAIT) < 0 ? -EAGAIN : 0;
}

/* Returns the next event of the monitor, whose messages begin with a frame that has the event. */
static enum link_event
read_monitor(struct zmq_link *z)
{
    uint16_t event = 0;
    zmq_msg_t m;

    zmq_msg_init(&m);
    if (zmq_msg_recv(&m, z->monitor, ZMQ_DONTWAIT) < 0) return zmq_msg_close(&m), LINK_NOTHING;
    if (zmq_msg_size(&m) >= sizeof event) memcpy(&event, zmq_msg_data(&m), sizeof event);
    while (zmq_msg_more(&m) && zmq_msg_recv(&m, z->monitor, 0) >= 0) continue;
    zmq_msg_close(&m);
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        return LINK_KEY_REFUSED;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return LINK_HANDSHAKE_FAILED;
    case ZMQ_EVENT_CONNECTED:
        return LINK_CONNECTED;
    case ZMQ_EVENT_CLOSED: /* libzmq may omit DISCONNECTED */
        return LINK_NOT_CONNECTED;
    default:
        return LINK_LOST;
    }
}

static enum link_event
zmq_link_receive(struct link *l, const void **frame, size_t *n)
{
    struct zmq_link *z = of(l);

    zmq_msg_close(&z->frame);
    zmq_msg_init(&z->frame);
    if (zmq_msg_recv(&z->frame, z->sock, ZMQ_DONTWAIT) < 0) return read_monitor(z);
    *frame = zmq_msg_data(&z->frame);
    *n = zmq_msg_size(&z->frame);
    return LINK_FRAME;
}

static unsigned
zmq_link_state(struct link *l)
{
    int of_sock = events(of(l)->sock), of_monitor = events(of(l)->monitor);

    return ((of_sock | of_monitor) & ZMQ_POLLIN ? LINK_READABLE : 0u) |
           (of_sock & ZMQ_POLLOUT ? LINK_WRITABLE : 0u);
}

static int
zmq_link_wait(struct link *l, bool writable, int timeout_ms)
{
    zmq_pollitem_t items[2] = {
        { .socket = of(l)->sock, .events = (short)(ZMQ_POLLIN | (writable ? ZMQ_POLLOUT : 0)) },
        { .socket = of(l)->monitor, .events = ZMQ_POLLIN },
    };

    return zmq_poll(items, 2, timeout_ms) < 0 && errno == EINTR ? -EINTR : 0;
}

/* Adds the descriptor of a socket to the epoll descriptor, or removes it. */
static int
watch(struct zmq_link *z, void *sock, int op)
{
    struct epoll_event ev = { .events = EPOLLIN };
    size_t n = sizeof(int);

    if (zmq_getsockopt(sock, ZMQ_FD, &ev.data.fd, &n) < 0) return -errno;
    return epoll_ctl(z->epoll, op, ev.data.fd, &ev) < 0 ? -errno : 0;
}

static void
zmq_link_close(struct link *l, int linger_ms)
{
    struct zmq_link *z = of(l);

    if (z->sock) {
        watch(z, z->sock, EPOLL_CTL_DEL);
        zmq_setsockopt(z->sock, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        zmq_socket_monitor(z->sock, NULL, 0);
    }
    if (z->monitor) {
        watch(z, z->monitor, EPOLL_CTL_DEL);
        zmq_close(z->monitor);
    }
    if (z->sock) zmq_close(z->sock);
    zmq_msg_close(&z->frame);
    free(z);
}

static const struct link_kind zmq_kind = {
    .close = zmq_link_close,
    .send = zmq_link_send,
    .receive = zmq_link_receive,
    .state = zmq_link_state,
    .wait = zmq_link_wait,
};

static int
start(struct zmq_link *z, const struct link_tcp *to)
{
    enum {
        EVENTS = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL
    };
    int one = 1, never = -1, linger = 0, hwm = 0;
    int64_t max = LINK_MAX_FRAME;
    char name[64];

    z->sock = zmq_socket(to->context, ZMQ_DEALER);
    z->monitor = zmq_socket(to->context, ZMQ_PAIR);
    if (!z->sock || !z->monitor) return -errno;
    zmq_setsockopt(z->sock, ZMQ_IMMEDIATE, &one, sizeof one); /* writable: connected */
    zmq_setsockopt(z->sock, ZMQ_RECONNECT_IVL, &never, sizeof never);
    zmq_setsockopt(z->sock, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(z->monitor, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(z->sock, ZMQ_RCVHWM, &hwm, sizeof hwm); /* limited by the ack windows */
    zmq_setsockopt(z->sock, ZMQ_MAXMSGSIZE, &max, sizeof max);
    zmq_setsockopt(z->sock, ZMQ_CURVE_SERVERKEY, to->server_key, strlen(to->server_key) + 1);
    zmq_setsockopt(z->sock, ZMQ_CURVE_PUBLICKEY, to->public_key, strlen(to->public_key) + 1);
    zmq_setsockopt(z->sock, ZMQ_CURVE_SECRETKEY, to->secret_key, strlen(to->secret_key) + 1);
    snprintf(name, sizeof name, "inproc://monitor-%u", to->number);
    if (zmq_socket_monitor(z->sock, name, EVENTS) < 0 || zmq_connect(z->monitor, name) < 0)
        return -errno;
    TRY(watch(z, z->sock, EPOLL_CTL_ADD));
    TRY(watch(z, z->monitor, EPOLL_CTL_ADD));
    return zmq_connect(z->sock, to->endpoint) < 0 ? -errno : 0;
}

int
zmq_link_open(struct link **ret, const struct link_tcp *to, int epoll)
{
    struct zmq_link *z = calloc(1, sizeof *z);
    int r;

    if (!z) return -ENOMEM;
    z->link.kind = &zmq_kind;
    z->epoll = epoll;
    zmq_msg_init(&z->frame);
    r = start(z, to);
    if (r < 0) return zmq_link_close(&z->link, 0), r;
    *ret = &z->link;
    return 0;
}
