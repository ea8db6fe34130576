/* tcp_server.h - serves clients of other hosts: a libzmq ROUTER at api.tcp, with CURVE and a keys
 * file.
 *
 * ZMQ_FD is edge-triggered, does not tell the direction, and a send may consume the edge. So the
 * socket is polled after each event and after each send; each poll is a system call. */
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
    int fd;
    const void *id; /* of the peer, id_len bytes; valid as p is */
    size_t id_len;
    const char *key; /* the authenticated public key; NULL: none */
    const void *p;
    size_t n;
    bool several; /* the message has more frames, which are dropped */
};

/* Binds api.tcp for the peers in keys, which stays the caller's and must outlive the result. NULL:
 * see *e. */
struct tcp_server *tcp_server_open(struct daemon *d, const struct curve_file *keys,
                                   struct err *e) MUST_USE;
/* linger: unsent messages get 0.2 s. Accepts NULL; returns NULL. */
struct tcp_server *tcp_server_close(struct tcp_server *t, bool linger);
/* Sends one frame to the peer of that id. Returns as frontend_send(). */
int tcp_server_send(struct tcp_server *t, const void *id, size_t id_len, const void *frame,
                    size_t n) MUST_USE;

/* The next round asks for frames and connections. NULL: no effect. */
void tcp_server_look(struct tcp_server *t);
/* Starts a round: replies to authentication requests, resets the budget of frames, bytes and time.
 */
void tcp_server_begin(struct tcp_server *t);
/* 1: the next event of the round. 0: none. -EBUSY: the budget is spent. */
int tcp_server_take(struct tcp_server *t, struct tcp_server_event *ev) MUST_USE;
/* Returns true if there may be more events: start another round. */
bool tcp_server_more(const struct tcp_server *t);
