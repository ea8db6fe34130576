/* zmq_router.h - what comes over a ROUTER of libzmq's: who it is from, and one frame.
 *
 * libzmq hands out a message's frames one by one, of which there may be millions. The first is looked at; past
 * the others many turns may go, each so far.
 */
#ifndef DAEMON_NET_ZMQ_ROUTER_H
#define DAEMON_NET_ZMQ_ROUTER_H

#include "base/base.h"
#include "daemon/net/session.h"

#include <zmq.h>

struct zmq_router {
    void *socket;
    bool several; /* of the last message frames are left */
};

struct zmq_router_message {
    uint8_t id[MAX_ROUTING_ID + 1];
    size_t id_len; /* to MAX_ROUTING_ID */
    zmq_msg_t frame;
    bool several; /* it has more of them, which will not be looked at */
};

/* 1: a message, whose frame the caller closes. 0: nothing that counts. -EAGAIN: nothing has come. -EBUSY: frames of
 * the last are left, and *passed, of this turn and 0 at its beginning, is as many as may be. */
int zmq_router_take(struct zmq_router *r, struct zmq_router_message *m, uint32_t *passed) MUST_USE;

#endif
