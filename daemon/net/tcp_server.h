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

struct curve_file;
struct tcp_server;

struct tcp_server_event {
    enum tcp_server_what {
        TCP_SERVER_OPENED, /* a connection was accepted: fd */
        TCP_SERVER_CLOSED, /* a connection has ended; fd may be another connection's by now */
        TCP_SERVER_FRAME,  /* a message: n bytes at p, valid until the next tcp_server_take() */
    } what;
    int fd;
    const void *id; /* of the peer, id_len bytes; valid as p is */
    size_t id_len;
    const char *key; /* the public key that the connection has proved; NULL: none */
    const void *p;
    size_t n;
    bool several; /* the message has more frames, which are dropped */
};

/* Binds at api.tcp and accepts the peers in keys, which stays the caller's and must live as long as
 * the result. NULL: *e says why. */
struct tcp_server *tcp_server_open(struct daemon *d, const struct curve_file *keys,
                                   struct err *e) MUST_USE;
/* linger: messages that were sent get 0.2 s to leave. NULL in, NULL out. */
struct tcp_server *tcp_server_close(struct tcp_server *t, bool linger);
/* One frame to the peer of that id. 0, -EAGAIN, -EHOSTUNREACH as frontend_send() says. */
int tcp_server_send(struct tcp_server *t, const void *id, size_t id_len, const void *frame,
                    size_t n) MUST_USE;

void tcp_server_look(struct tcp_server *t);     /* the next round asks the socket for frames */
void tcp_server_look_all(struct tcp_server *t); /* and for connections; NULL: no effect */
/* Starts a round: answers questions about keys and resets the budget of frames, bytes and time. */
void tcp_server_begin(struct tcp_server *t);
/* The next event of the round: 1. 0: there is none. -EBUSY: the budget is spent. */
int tcp_server_take(struct tcp_server *t, struct tcp_server_event *ev) MUST_USE;
bool tcp_server_more(
    const struct tcp_server *t); /* there may be more events: start another round */

#endif
