/* tcp_server.h - clients of other hosts: a ROUTER of libzmq's at api.tcp, with CURVE, for the keys of the keys file.
 *
 * ZMQ_FD is edge-triggered and says nothing about direction, and a send may take the edge away. So the socket
 * is looked at when its descriptor says so and after every send; each look asks the kernel.
 */
#ifndef DAEMON_NET_TCP_SERVER_H
#define DAEMON_NET_TCP_SERVER_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"

struct tcp_server;

/* Bind at api.tcp; the keys have been read. */
struct tcp_server *tcp_server_open(struct daemon *d, struct err *e) MUST_USE;
struct tcp_server *tcp_server_close(
    struct tcp_server *t, bool linger); /* linger: what was sent gets a fifth of a second */
/* One frame to the peer of that id. 0, -EAGAIN, -EHOSTUNREACH as frontend_send() says. */
int tcp_server_send(struct tcp_server *t, const void *id, size_t id_len, const void *frame,
                    size_t n) MUST_USE;
void tcp_server_look(struct tcp_server *t); /* something may have come; t may be NULL */
/* What has come, within a budget: how many frames. *more: some are left. Nothing where nothing is served. */
uint32_t tcp_server_pump(struct daemon *d, bool *more);

#endif
