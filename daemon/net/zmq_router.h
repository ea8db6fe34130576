/* zmq_router.h - receives and sends messages of a libzmq ROUTER socket: routing id of a peer and
 * one frame. Also sets options of libzmq sockets and watches their events.
 *
 * libzmq returns the frames of a message one by one, and a message may have millions of frames.
 * zmq_router_take() returns the first frame and drops the others, a bounded number in each loop
 * iteration. */
#pragma once
#include "base/base.h"
#include "daemon/net/session.h"

#include <zmq.h>

struct zmq_router {
    void *socket;
    bool several; /* frames of the last message are still to be dropped */
};

struct zmq_router_message {
    uint8_t id[MAX_ROUTING_ID + 1];
    size_t id_len; /* at most MAX_ROUTING_ID */
    zmq_msg_t frame;
    bool several; /* the message has further frames, which are dropped */
};

/* Receives a message. Returns 1: *m is a message, whose frame the caller closes; 0: call again,
 * because a signal came or the message was dropped: it had no frame or too long an id; -EAGAIN: no
 * message is waiting; -EBUSY: the limit of dropped frames is reached. *passed counts the dropped
 * frames; the caller sets it to 0 at the start of each loop iteration. */
int zmq_router_take(struct zmq_router *r, struct zmq_router_message *m, uint32_t *passed) MUST_USE;
/* Sends a frame to the peer with routing id `id`. -EAGAIN: queue full. -EHOSTUNREACH: no peer. */
int zmq_router_send(const struct zmq_router *r, const void *id, size_t id_len, const void *frame,
                    size_t n) MUST_USE;

int zmq_socket_set(void *socket, int option, int value); /* as zmq_setsockopt() */
/* Adds the edge-triggered descriptor of the socket (ZMQ_FD) to the event loop. An edge sets *look;
 * the caller then reads the socket until it is empty. look NULL: an edge only wakes the loop. */
int zmq_socket_watch(void *socket, sd_event *loop, sd_event_source **ret, bool *look) MUST_USE;
