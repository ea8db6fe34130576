/* zmq_transport.c - a connection to lagand over tcp, by a socket of libzmq with CURVE; see
 * transport.h.
 *
 * A socket is used for one connection. If libzmq reconnected by itself, frames meant for the old
 * connection would be sent on the new one before HELLO, frames received on the old one would
 * arrive after the new WELCOME, and a HELLO sent to the closing connection would be lost. */
#include "client/transport.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <zmq.h>

struct zmq_transport {
    struct transport transport;
    int epoll;
    void *sock, *monitor;
    zmq_msg_t frame; /* of the last TRANSPORT_FRAME */
};

static struct zmq_transport *
of(struct transport *l)
{
    return (struct zmq_transport *)(void *)((char *)l - offsetof(struct zmq_transport, transport));
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
zmq_transport_send(struct transport *l, const void *frame, size_t n)
{
    return zmq_send(of(l)->sock, frame, n, ZMQ_DONTWAIT) < 0 ? -EAGAIN : 0;
}

/* Returns the next event of the monitor, whose messages begin with a frame that has the event. */
static enum transport_event
read_monitor(struct zmq_transport *z)
{
    uint16_t event = 0;
    zmq_msg_t m;

    zmq_msg_init(&m);
    if (zmq_msg_recv(&m, z->monitor, ZMQ_DONTWAIT) < 0) return zmq_msg_close(&m), TRANSPORT_NOTHING;
    if (zmq_msg_size(&m) >= sizeof event) memcpy(&event, zmq_msg_data(&m), sizeof event);
    while (zmq_msg_more(&m) && zmq_msg_recv(&m, z->monitor, 0) >= 0) continue;
    zmq_msg_close(&m);
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        return TRANSPORT_KEY_REFUSED;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return TRANSPORT_HANDSHAKE_FAILED;
    case ZMQ_EVENT_CONNECTED:
        return TRANSPORT_CONNECTED;
    case ZMQ_EVENT_CLOSED: /* libzmq may omit DISCONNECTED */
        return TRANSPORT_NOT_CONNECTED;
    default:
        return TRANSPORT_LOST;
    }
}

static enum transport_event
zmq_transport_receive(struct transport *l, const void **frame, size_t *n)
{
    struct zmq_transport *z = of(l);

    zmq_msg_close(&z->frame);
    zmq_msg_init(&z->frame);
    if (zmq_msg_recv(&z->frame, z->sock, ZMQ_DONTWAIT) < 0) return read_monitor(z);
    *frame = zmq_msg_data(&z->frame);
    *n = zmq_msg_size(&z->frame);
    return TRANSPORT_FRAME;
}

static unsigned
zmq_transport_state(struct transport *l)
{
    int of_sock = events(of(l)->sock), of_monitor = events(of(l)->monitor);

    return ((of_sock | of_monitor) & ZMQ_POLLIN ? TRANSPORT_READABLE : 0u) |
           (of_sock & ZMQ_POLLOUT ? TRANSPORT_WRITABLE : 0u);
}

static int
zmq_transport_wait(struct transport *l, bool writable, int timeout_ms)
{
    zmq_pollitem_t items[2] = {
        { .socket = of(l)->sock, .events = (short)(ZMQ_POLLIN | (writable ? ZMQ_POLLOUT : 0)) },
        { .socket = of(l)->monitor, .events = ZMQ_POLLIN },
    };

    return zmq_poll(items, 2, timeout_ms) < 0 && errno == EINTR ? -EINTR : 0;
}

/* Adds the descriptor of a socket to the epoll descriptor, or removes it. */
static int
watch(struct zmq_transport *z, void *sock, int op)
{
    struct epoll_event ev = { .events = EPOLLIN };
    size_t n = sizeof(int);

    if (zmq_getsockopt(sock, ZMQ_FD, &ev.data.fd, &n) < 0) return -errno;
    return epoll_ctl(z->epoll, op, ev.data.fd, &ev) < 0 ? -errno : 0;
}

static void
zmq_transport_close(struct transport *l, int linger_ms)
{
    struct zmq_transport *z = of(l);

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

static const struct transport_kind zmq_kind = {
    .close = zmq_transport_close,
    .send = zmq_transport_send,
    .receive = zmq_transport_receive,
    .state = zmq_transport_state,
    .wait = zmq_transport_wait,
};

static int
start(struct zmq_transport *z, const struct transport_tcp *to)
{
    enum {
        EVENTS = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL
    };
    int one = 1, never = -1, linger = 0, hwm = 0;
    int64_t max = TRANSPORT_MAX_FRAME;
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
zmq_transport_open(struct transport **ret, const struct transport_tcp *to, int epoll)
{
    struct zmq_transport *z = calloc(1, sizeof *z);
    int r;

    if (!z) return -ENOMEM;
    z->transport.kind = &zmq_kind;
    z->epoll = epoll;
    zmq_msg_init(&z->frame);
    r = start(z, to);
    if (r < 0) return zmq_transport_close(&z->transport, 0), r;
    *ret = &z->transport;
    return 0;
}
