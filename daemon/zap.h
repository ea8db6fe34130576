/* zap.h - who may connect over tcp: ZeroMQ asks, the keys file answers (RFC 27, mechanism CURVE).
 *
 * libzmq's own thread puts the question of one connection into an inproc socket and lets that connection
 * wait; we answer in the next turn. While nobody answers nobody is let in.
 */
#ifndef DAEMON_ZAP_H
#define DAEMON_ZAP_H

#include "base/base.h"
#include "base/err.h"
#include "wire/curve.h"

#include <systemd/sd-event.h>

#define ZAP_DOMAIN "lagan"

struct zap;

/* Before the socket that it is for is bound. keys stay the caller's and may change. */
struct zap *zap_open(void *zmq, sd_event *event, const struct curve_file *keys, struct err *e);
struct zap *zap_close(struct zap *z);
void zap_pump(struct zap *z); /* answer what has been asked; NULL: nothing */

#endif
