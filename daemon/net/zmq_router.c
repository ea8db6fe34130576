/* zmq_router.c - see zmq_router.h. */
#include "daemon/net/zmq_router.h"

enum { ROUND_DROPPED = 4096 }; /* limit of dropped frames in one loop iteration */

static void
drop_frame(struct zmq_router *r)
{
    zmq_msg_t frame;

    zmq_msg_init(&frame);
    r->several = zmq_msg_recv(&frame, r->socket, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&frame);
    zmq_msg_close(&frame);
}

static bool
has_more(const struct zmq_router *r)
{
    int more = 0;
    size_t size = sizeof more;

    return zmq_getsockopt(r->socket, ZMQ_RCVMORE, &more, &size) == 0 && more;
}

int
zmq_router_take(struct zmq_router *r, struct zmq_router_message *m, uint32_t *passed)
{
    int id_len;

    for (; r->several; ++*passed) {
        if (*passed == ROUND_DROPPED) return -EBUSY;
        drop_frame(r);
    }
    id_len = zmq_recv(r->socket, m->id, sizeof m->id, ZMQ_DONTWAIT);
    if (id_len < 0) return errno == EINTR ? 0 : -EAGAIN;
    if (!has_more(r)) return 0; /* a message without a frame */
    m->id_len = (size_t)id_len;
    zmq_msg_init(&m->frame);
    if (zmq_msg_recv(&m->frame, r->socket, ZMQ_DONTWAIT) >= 0) {
        m->several = r->several = zmq_msg_more(&m->frame);
        if (m->id_len <= MAX_ROUTING_ID) return 1;
    }
    zmq_msg_close(&m->frame);
    return 0;
}

int
zmq_router_send(const struct zmq_router *r, const void *id, size_t id_len, const void *frame,
                size_t n)
{
    int k;

    do k = zmq_send(r->socket, id, id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (k < 0 && errno == EINTR);
    if (k < 0) return errno == EAGAIN ? -EAGAIN : -EHOSTUNREACH;
    /* libzmq queues whole messages: having accepted the id, it accepts the frame too. */
    do k = zmq_send(r->socket, frame, n, ZMQ_DONTWAIT);
    while (k < 0 && errno == EINTR);
    return k < 0 ? -EHOSTUNREACH : 0;
}

int
zmq_socket_set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

static int
on_edge(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    (void)s;
    (void)fd;
    (void)revents;
    if (arg) *(bool *)arg = true;
    return 0;
}

int
zmq_socket_watch(void *socket, sd_event *loop, sd_event_source **ret, bool *look)
{
    size_t size = sizeof(int);
    int fd;

    if (look) *look = true; /* no edge comes before the socket was read once until it was empty */
    if (zmq_getsockopt(socket, ZMQ_FD, &fd, &size) < 0) return -errno;
    return sd_event_add_io(loop, ret, fd, EPOLLIN, on_edge, look);
}
