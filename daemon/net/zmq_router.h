/* zmq_router.h - messages of a libzmq ROUTER, each a peer's id and one frame; options and events of
 * libzmq sockets.
 *
 * libzmq returns the frames of a message one by one, and there may be millions. The first frame is
 * returned, the others are dropped, a bounded number in each loop iteration. */
#pragma once

#include "base/base.h"
#include "daemon/net/session.h"

#include <zmq.h>

struct zmq_router {
    void *socket;
    bool several; /* frames of the last message are left to drop */
};

struct zmq_router_message {
    uint8_t id[MAX_ROUTING_ID + 1];
    size_t id_len; /* at most MAX_ROUTING_ID */
    zmq_msg_t frame;
    bool several; /* the message has more frames, which are dropped */
};

/* 1: a message, whose frame the caller closes. 0: a message that is ignored. -EAGAIN: no message.
 * -EBUSY: *passed, the number of frames dropped in this loop iteration (0 at its start), has
 * reached the limit. */
int zmq_router_take(struct zmq_router *r, struct zmq_router_message *m, uint32_t *passed) MUST_USE;
/* Sends one frame to the peer of that id. -EAGAIN: its queue is full. -EHOSTUNREACH: unknown id. */
int zmq_router_send(const struct zmq_router *r, const void *id, size_t id_len, const void *frame,
                    size_t n) MUST_USE;

int zmq_socket_set(void *socket, int option, int value); /* as zmq_setsockopt() */
/* Adds the descriptor of the socket to the loop. Its edge sets *look; the next loop iteration reads
 * the socket. look NULL: the edge only wakes the loop. */
int zmq_socket_watch(void *socket, sd_event *loop, sd_event_source **ret, bool *look) MUST_USE;
