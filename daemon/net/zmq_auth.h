/* zmq_auth.h - who may connect over tcp: ZeroMQ asks, the keys file answers (RFC 27, mechanism CURVE).
 *
 * libzmq's own thread puts the question of one connection into an inproc socket and lets that connection
 * wait; we answer in the next turn. While nobody answers nobody is let in.
 */
#ifndef DAEMON_NET_ZMQ_AUTH_H
#define DAEMON_NET_ZMQ_AUTH_H

#include "base/base.h"
#include "base/err.h"
#include "wire/curve.h"

#include <systemd/sd-event.h>

#define ZMQ_AUTH_DOMAIN "lagan"

struct zmq_auth;

/* Before the socket that it is for is bound. keys stay the caller's and may change. */
struct zmq_auth *zmq_auth_open(void *zmq, sd_event *event, const struct curve_file *keys,
                               struct err *e);
struct zmq_auth *zmq_auth_close(struct zmq_auth *z);
void zmq_auth_pump(struct zmq_auth *z); /* answer what has been asked; NULL: nothing */

#endif
