/* unix_server.h - serves clients of this host on AF_UNIX sockets: lagand's own implementation of a
 * ZeroMQ ROUTER (protocol ZMTP, wire/zmtp.h).
 *
 * libzmq would need its own thread: 3 system calls for each connection in each loop iteration, and
 * 6 to wake the thread and lagand. Here all messages of one iteration to one connection leave with
 * one send(). The memory that peers can make lagand use is bounded:
 *
 *   - a connection is read 4 KiB at a time, 64 KiB inside a large frame;
 *   - all partly received frames together have at most UNIX_SERVER_PARTS bytes; above that the
 *     connection whose partly received frame is the oldest is closed;
 *   - a connection is closed if its handshake takes UNIX_SERVER_IDLE_TIMEOUT, or if it is silent
 *     for that long after a ZMTP PING. A peer whose version of ZMTP has no PING gets none.
 *
 * A peer is one connection, identified by a number that is never used again. No call blocks. */
#pragma once
#include "base/base.h"
#include "base/clock.h"
#include "base/err.h"

#include <sys/types.h>

#define UNIX_SERVER_PARTS (64u << 20)
#define UNIX_SERVER_UNSENT (16u << 20) /* limit of the unsent bytes of one connection */
#define UNIX_SERVER_IDLE_TIMEOUT (6 * NSEC_S)

struct unix_server;
enum { UNIX_SERVER_LISTENERS = 4 };

struct unix_server_event {
    enum unix_server_what {
        UNIX_SERVER_OPENED,  /* a peer has connected */
        UNIX_SERVER_FRAME,   /* a whole message: n bytes at p, valid until the next call */
        UNIX_SERVER_PARTIAL, /* n bytes were received that complete no message */
        UNIX_SERVER_CLOSED   /* last event of a peer; fd stays open until the next call */
    } what;
    uint32_t listener;
    int fd;        /* socket of the peer */
    uint64_t peer; /* number of the peer */
    uid_t uid;     /* uid of the peer's process, from the kernel */
    const void *p;
    size_t n;
    uint32_t n_frames; /* of the message; above 1: p and n are not set, the caller must refuse it */
};

/* Creates a server for messages of at most `most` bytes, without listeners. NULL: see errno. */
struct unix_server *unix_server_open(uint32_t most) MUST_USE;
struct unix_server *unix_server_close(struct unix_server *l); /* tries once to send unsent bytes */
/* Creates a socket file at path, which must not exist, with mode 0660, and listens on it. most:
 * limit of peers; a further peer is disconnected at once. Returns 0 or a negative errno. */
int unix_server_listen(struct unix_server *l, uint32_t listener, const char *path, uint32_t most,
                       struct err *e) MUST_USE;
/* Serves the socket fd, which listens already. Owns fd, also on failure. */
int unix_server_adopt(struct unix_server *l, uint32_t listener, int fd, uint32_t most,
                      struct err *e) MUST_USE;
/* Returns the descriptor of a listening socket; -1: the listener is not open. */
int unix_server_listener(const struct unix_server *l, uint32_t listener);
/* Returns a descriptor that is readable if a socket of l has an event: call unix_server_look(). */
int unix_server_fd(const struct unix_server *l);
void unix_server_look(struct unix_server *l); /* lets unix_server_take() poll the sockets */

/* Returns 1 with the next event; 0: there is none at present. */
int unix_server_take(struct unix_server *l, nsec now, struct unix_server_event *news) MUST_USE;
/* Queues one frame for a peer. -EAGAIN: more than UNIX_SERVER_UNSENT bytes would be unsent.
 * -EHOSTUNREACH: the peer has been closed, or the next unix_server_take() reports that. */
int unix_server_send(struct unix_server *l, int fd, uint64_t peer, const void *frame,
                     size_t n) MUST_USE;
/* Sends the queued bytes of all peers; call it at the end of each loop iteration. */
void unix_server_flush(struct unix_server *l);
/* Closes connection fd and drops its unsent bytes. Returns false if l has no such connection. */
bool unix_server_disconnect(struct unix_server *l, int fd);
/* Sends PING to silent peers and closes peers past the idle timeout; call it every 0.25 s. */
void unix_server_tick(struct unix_server *l, nsec now);
