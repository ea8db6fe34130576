/* zmq_router.c - see zmq_router.h. */
#include "daemon/net/zmq_router.h"

#include <errno.h>

enum { ROUND_DROPPED = 4096 };

static void
pass(struct zmq_router *r)
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
        pass(r);
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
