/* fd_channel.h - arenas' descriptors between worker and lagand, on a socket of its own.
 *
 * An AF_UNIX SOCK_SEQPACKET pair; one message is one struct fd_channel_note and exactly one fd
 * (SCM_RIGHTS), both ways. A malformed message (wrong size, no fd, several fds, name not ended) is
 * -EBADMSG and its fds are closed. Never blocks.
 *
 * A standby gets "weights" and "begin", whose fd means nothing: it may take what it needs of the device beside its worker. When the
 * worker is gone it gets what that has left, then "go", whose fd means nothing either: all of it was sent.
 *
 * The end of the stream is also the first that lagand hears of the death of a worker that has a GPU.
 */
#ifndef IPC_FD_CHANNEL_H
#define IPC_FD_CHANNEL_H

#include "base/base.h"
#include "base/err.h"

enum { FD_CHANNEL_NAME = 32, FD_CHANNEL_HOSTS = 10 };

struct fd_channel_note {
    char name
        [FD_CHANNEL_NAME]; /* "weights", "kv", "manifest", fd_channel_host()'s, "begin", "go": NUL-ended */
    uint64_t bytes;
    uint64_t fingerprint[2];
    uint32_t version, flags; /* HAND_ */
};
/* VERIFY, from lagand: its last writer died of a fault of its own; check it against its checksums. */
enum { FD_CHANNEL_COMPLETE = 1, FD_CHANNEL_VERIFY = 2 };
_Static_assert(sizeof(struct fd_channel_note) == 64, "fd_channel_note");

/* Of the host tier's i-th piece, 0 .. FD_CHANNEL_HOSTS - 1: "host0" and so on. */
void fd_channel_host(char ret[FD_CHANNEL_NAME], uint32_t i);

int fd_channel_pair(int ret[2], struct err *e) MUST_USE;
int fd_channel_give(int sock, const struct fd_channel_note *note, int fd,
                    struct err *e) MUST_USE; /* fd stays ours */
/* 1: *note and *fd (ours now, close-on-exec). 0: nothing there. -EPIPE: closed. -EBADMSG. */
int fd_channel_take(int sock, struct fd_channel_note *note, int *fd, struct err *e) MUST_USE;

#endif
