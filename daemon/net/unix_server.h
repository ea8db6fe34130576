/* unix_server.h - clients on this host: lagand's own ROUTER on sockets of the file system (wire/zmtp.h says the protocol).
 *
 * libzmq serves tcp, where it is needed for CURVE. Here each token would pay for its thread: three system calls a
 * connection and turn, and six to wake it and to be woken. So what goes to one connection in one turn leaves with
 * one send(), from the thread that made it, and what comes is judged before it is kept:
 *
 *   - one connection's bytes at a time, in pieces of 4 KiB (of 64 where a large frame is under way);
 *   - frames that have come in part: UNIX_SERVER_PARTS bytes together. Who has been longest about its frame is cut;
 *   - a connection that has not said READY within UNIX_SERVER_IDLE_TIMEOUT, or is silent so long though asked, is cut. Who does
 *     not know PING is not asked.
 *
 * A peer is known by its number, which is never used again. One thread. Nothing blocks.
 */
#ifndef DAEMON_NET_UNIX_SERVER_H
#define DAEMON_NET_UNIX_SERVER_H

#include "base/base.h"
#include "base/clock.h"
#include "base/err.h"

#include <sys/types.h>

#define UNIX_SERVER_PARTS (64u << 20)
#define UNIX_SERVER_UNSENT (16u << 20) /* bytes that wait for room in one connection's socket */
#define UNIX_SERVER_IDLE_TIMEOUT (6 * NSEC_S)

struct unix_server;
enum { UNIX_SERVER_LISTENERS = 4 };

struct unix_server_event {
    enum unix_server_what {
        UNIX_SERVER_OPENED, /* somebody has connected */
        UNIX_SERVER_FRAME, /* a message: n bytes, valid until the next call; of more than one frame they are not kept */
        UNIX_SERVER_PIECE, /* n bytes have come which end nothing */
        UNIX_SERVER_CLOSED /* it is gone: the last that is heard of it, its descriptor is still open until the next call */
    } what;
    uint32_t listener;
    int fd;
    uint64_t peer;
    uid_t uid; /* by the kernel's word */
    const void *p;
    size_t n;
    uint32_t n_frames;
};

/* most: bytes of a message. NULL: no memory or no descriptor, as errno says. */
struct unix_server *unix_server_open(uint32_t most) MUST_USE;
struct unix_server *unix_server_close(struct unix_server *l); /* what waits gets one more try */
/* Listen at a path where nothing is, its file for its owner and group. most: peers at once; whoever comes then is
 * sent away unheard. 0 or negative errno. */
int unix_server_listen(struct unix_server *l, uint32_t listener, const char *path, uint32_t most,
                       struct err *e) MUST_USE;
/* The same on a socket that listens already; it is closed with l, or when this fails. */
int unix_server_adopt(struct unix_server *l, uint32_t listener, int fd, uint32_t most,
                      struct err *e) MUST_USE;
int unix_server_listener(const struct unix_server *l,
                         uint32_t listener);     /* where it listens there; -1: nowhere */
int unix_server_fd(const struct unix_server *l); /* readable: unix_server_look() */
void unix_server_look(struct unix_server *l);

/* The next thing that has come: 1; 0 nothing more for now. */
int unix_server_take(struct unix_server *l, nsec now, struct unix_server_event *news) MUST_USE;
/* 0, -EAGAIN: UNIX_SERVER_UNSENT are waiting; -EHOSTUNREACH: it is gone, or will be with the next unix_server_take(). */
int unix_server_send(struct unix_server *l, int fd, uint64_t peer, const void *frame,
                     size_t n) MUST_USE;
void unix_server_flush(struct unix_server *l); /* at the end of a turn */
/* End a connection, whatever waits on it; false: that is none of ours. */
bool unix_server_cut(struct unix_server *l, int fd);
void unix_server_tick(struct unix_server *l,
                      nsec now); /* a few times a second: who is silent is asked, or cut */

#endif
