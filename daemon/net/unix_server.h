/* unix_server.h - serves clients of this host: lagand's own ZMTP ROUTER on AF_UNIX sockets
 * (wire/zmtp.h).
 *
 * libzmq would cost each token its thread: 3 system calls for a connection and loop iteration, and
 * 6 to wake the thread and to be woken. Here all messages of one iteration to a connection leave
 * with one send(). What a peer can make lagand keep is bounded:
 *
 *   - a connection is read 4 KiB at a time, 64 KiB inside a large frame;
 *   - partly received frames have UNIX_SERVER_PARTS bytes together; above that the connection with
 *     the oldest one is closed;
 *   - a connection is closed if its handshake takes, or if it is silent after a PING for,
 *     UNIX_SERVER_IDLE_TIMEOUT. A peer whose protocol version has no PING gets none.
 *
 * A peer is identified by a number that is never used again. One thread; no call blocks. */
#pragma once

#include "base/base.h"
#include "base/clock.h"
#include "base/err.h"

#include <sys/types.h>

#define UNIX_SERVER_PARTS (64u << 20)
#define UNIX_SERVER_UNSENT (16u << 20) /* unsent bytes of one connection */
#define UNIX_SERVER_IDLE_TIMEOUT (6 * NSEC_S)

struct unix_server;
enum { UNIX_SERVER_LISTENERS = 4 };

struct unix_server_event {
    enum unix_server_what {
        UNIX_SERVER_OPENED,  /* a peer has connected */
        UNIX_SERVER_FRAME,   /* a message: n bytes at p, valid until the next call */
        UNIX_SERVER_PARTIAL, /* n bytes that complete no message */
        UNIX_SERVER_CLOSED   /* last event of a peer; fd stays open until the next call */
    } what;
    uint32_t listener;
    int fd;
    uint64_t peer;
    uid_t uid; /* from the kernel */
    const void *p;
    size_t n;
    uint32_t n_frames; /* above 1: p and n are not set */
};

/* most: bytes of a message. NULL: no memory or no descriptor, see errno. */
struct unix_server *unix_server_open(uint32_t most) MUST_USE;
struct unix_server *unix_server_close(struct unix_server *l); /* tries once to send unsent bytes */
/* Listens at a path that does not exist, for its owner and group. most: limit of peers; a further
 * peer is disconnected at once. 0 or negative errno. */
int unix_server_listen(struct unix_server *l, uint32_t listener, const char *path, uint32_t most,
                       struct err *e) MUST_USE;
/* The same for a socket that listens already. Owns fd, also on failure. */
int unix_server_adopt(struct unix_server *l, uint32_t listener, int fd, uint32_t most,
                      struct err *e) MUST_USE;
int unix_server_listener(const struct unix_server *l, uint32_t listener); /* its fd; -1: none */
int unix_server_fd(const struct unix_server *l); /* when readable, call unix_server_look() */
void unix_server_look(struct unix_server *l);

/* The next event: 1; 0: none for now. */
int unix_server_take(struct unix_server *l, nsec now, struct unix_server_event *news) MUST_USE;
/* 0. -EAGAIN: UNIX_SERVER_UNSENT bytes are unsent. -EHOSTUNREACH: the peer is gone, or will be with
 * the next unix_server_take(). */
int unix_server_send(struct unix_server *l, int fd, uint64_t peer, const void *frame,
                     size_t n) MUST_USE;
void unix_server_flush(struct unix_server *l); /* at the end of a loop iteration */
/* Closes a connection and drops its unsent bytes. Returns false if fd is not one of l. */
bool unix_server_disconnect(struct unix_server *l, int fd);
/* A few times a second: sends PING to silent peers, closes those past the idle timeout. */
void unix_server_tick(struct unix_server *l, nsec now);
