/* zmq_router.h - reads messages of a libzmq ROUTER: the sender's id and one frame.
 *
 * libzmq returns the frames of a message one by one, and there may be millions. The first frame is
 * returned, the others are dropped, a bounded number in each loop iteration.
 */
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
