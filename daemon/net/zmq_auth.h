/* zmq_auth.h - decides which keys may connect over tcp, from the keys file (RFC 27, CURVE).
 *
 * For each connection libzmq's thread sends a request over an inproc socket and holds the
 * connection until lagand replies in a later loop iteration. Without a reply no connection is
 * accepted.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "wire/curve.h"

#include <systemd/sd-event.h>

#define ZMQ_AUTH_DOMAIN "lagan"

struct zmq_auth;

/* Call before binding the socket that it protects. keys stays the caller's and may change. */
struct zmq_auth *zmq_auth_open(void *zmq, sd_event *event, const struct curve_file *keys,
                               struct err *e);
struct zmq_auth *zmq_auth_close(struct zmq_auth *z);
void zmq_auth_pump(struct zmq_auth *z); /* replies to all waiting requests; NULL: no effect */
