/* tcp_server.h - serves clients of other hosts: a libzmq ROUTER socket at api.tcp, encrypted with
 * CURVE for the keys of the file api.keys.
 *
 * libzmq reports that the socket is readable or writable by one edge-triggered descriptor (ZMQ_FD),
 * and a send may consume the edge. So the socket is polled after each event of the descriptor and
 * after each send ("look"); each poll is a system call. A "round" is one loop iteration. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"

struct curve_file;
struct tcp_server;

struct tcp_server_event {
    enum tcp_server_what {
        TCP_SERVER_OPENED, /* a connection was accepted: fd */
        TCP_SERVER_CLOSED, /* a connection has ended; fd may be in use again */
        TCP_SERVER_FRAME,  /* a message: n bytes at p, valid until the next tcp_server_take() */
    } what;
    int fd;         /* socket of the connection */
    const void *id; /* routing id of the peer, id_len bytes; valid as long as p */
    size_t id_len;
    const char *key; /* the authenticated public key; NULL: none */
    const void *p;
    size_t n;
    bool several; /* the message has further frames, which are dropped */
};

/* Opens a listening socket for tcp://HOST:PORT; HOST may be * and PORT * or 0 (any free one). Needs
 * no netlink socket, which libzmq would ask for the addresses of the host. -EADDRINUSE: the port is
 * in use. -EAFNOSUPPORT: the unit forbids TCP. */
int tcp_server_listen(const char *where, struct err *e) MUST_USE;
/* Serves api.tcp for the clients in keys, which must outlive the result. NULL: failed, see *e. */
struct tcp_server *tcp_server_open(struct daemon *d, const struct curve_file *keys,
                                   struct err *e) MUST_USE;
/* Closes t. linger: libzmq may send unsent messages for 0.2 s more. Accepts NULL; returns NULL. */
struct tcp_server *tcp_server_close(struct tcp_server *t, bool linger);
/* Sends a frame to the peer with routing id `id`. -EAGAIN: queue full. -EHOSTUNREACH: no peer. */
int tcp_server_send(struct tcp_server *t, const void *id, size_t id_len, const void *frame,
                    size_t n) MUST_USE;

/* Makes the next round poll for frames and connection events. t NULL: no effect. */
void tcp_server_look(struct tcp_server *t);
/* Starts a round with a new budget; replies to libzmq's authentication requests. */
void tcp_server_begin(struct tcp_server *t);
/* Returns 1 with the next event of the round; 0: none; -EBUSY: the budget is spent. */
int tcp_server_take(struct tcp_server *t, struct tcp_server_event *ev) MUST_USE;
/* Returns true if there may be more events, so that the loop must not sleep. */
bool tcp_server_more(const struct tcp_server *t);
