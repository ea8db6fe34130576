/* local.h - clients on this host: lagand's own ROUTER on sockets of the file system (wire/zmtp.h says the protocol).
 *
 * libzmq serves tcp, where it is needed for CURVE. Here each token would pay for its thread: three system calls a
 * connection and turn, and six to wake it and to be woken. So what goes to one connection in one turn leaves with
 * one send(), from the thread that made it, and what comes is judged before it is kept:
 *
 *   - one connection's bytes at a time, in pieces of 4 KiB (of 64 where a large frame is under way);
 *   - frames that have come in part: LOCAL_PARTS bytes together. Who has been longest about its frame is cut;
 *   - a connection that has not said READY within LOCAL_PATIENCE, or is silent so long though asked, is cut. Who does
 *     not know PING is not asked.
 *
 * A peer is known by its number, which is never used again. One thread. Nothing blocks.
 */
#ifndef DAEMON_LOCAL_H
#define DAEMON_LOCAL_H

#include "base/base.h"
#include "base/clock.h"
#include "base/err.h"

#include <sys/types.h>

#define LOCAL_PARTS (64u << 20)
#define LOCAL_UNSENT (16u << 20) /* bytes that wait for room in one connection's socket */
#define LOCAL_PATIENCE (6 * NSEC_S)

struct local;
enum { LOCAL_DOORS = 4 };

struct local_news {
    enum local_what {
        LOCAL_BEGUN, /* somebody has connected */
        LOCAL_FRAME, /* a message: n bytes, valid until the next call; of more than one frame they are not kept */
        LOCAL_PIECE, /* n bytes have come which end nothing */
        LOCAL_ENDED /* it is gone: the last that is heard of it, its descriptor is still open until the next call */
    } what;
    uint32_t door;
    int fd;
    uint64_t peer;
    uid_t uid; /* by the kernel's word */
    const void *p;
    size_t n;
    uint32_t n_frames;
};

/* most: bytes of a message. NULL: no memory or no descriptor, as errno says. */
struct local *local_open(uint32_t most) MUST_USE;
struct local *local_close(struct local *l); /* what waits gets one more try */
/* Listen at a path where nothing is, its file for its owner and group. most: peers at once; whoever comes then is
 * sent away unheard. 0 or negative errno. */
int local_listen(struct local *l, uint32_t door, const char *path, uint32_t most,
                 struct err *e) MUST_USE;
/* The same on a socket that listens already; it is closed with l, or when this fails. */
int local_adopt(struct local *l, uint32_t door, int fd, uint32_t most, struct err *e) MUST_USE;
int local_door(const struct local *l, uint32_t door); /* where it listens there; -1: nowhere */
int local_fd(const struct local *l);                  /* readable: local_look() */
void local_look(struct local *l);

/* The next thing that has come: 1; 0 nothing more for now. */
int local_take(struct local *l, nsec now, struct local_news *news) MUST_USE;
/* 0, -EAGAIN: LOCAL_UNSENT are waiting; -EHOSTUNREACH: it is gone, or will be with the next local_take(). */
int local_send(struct local *l, int fd, uint64_t peer, const void *frame, size_t n) MUST_USE;
void local_flush(struct local *l); /* at the end of a turn */
/* End a connection, whatever waits on it; false: that is none of ours. */
bool local_cut(struct local *l, int fd);
void local_tick(struct local *l,
                nsec now); /* a few times a second: who is silent is asked, or cut */

#endif
