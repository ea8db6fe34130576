/* fd_channel.h - passes descriptors of arenas between a worker and lagand.
 *
 * The channel is an AF_UNIX SOCK_SEQPACKET pair. A message is one struct fd_channel_note and
 * exactly one descriptor (SCM_RIGHTS), in both directions. Calls never block.
 *
 * lagand sends a standby the arena "weights" and then "begin", after which the standby may allocate
 * device memory beside its worker. When the worker has ended, lagand sends the standby the arenas
 * of the worker and then "go". The descriptors of "begin" and "go" have no meaning.
 *
 * If a worker with a GPU exits, the end of the stream is the first sign of it that lagand gets. */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum { FD_CHANNEL_NAME = 32, FD_CHANNEL_HOSTS = 10 };

struct fd_channel_note {
    /* NUL-terminated: "weights", "kv", "manifest", "host0" .. (fd_channel_host()), "begin", "go" */
    char name[FD_CHANNEL_NAME];
    uint64_t bytes;
    uint64_t fingerprint[2];
    uint32_t version, flags; /* FD_CHANNEL_COMPLETE, FD_CHANNEL_VERIFY */
};
/* COMPLETE: the arena has all its contents. VERIFY, set by lagand: the previous worker ended by a
 * fault of its own, so the receiver must verify the contents against their checksums. */
enum { FD_CHANNEL_COMPLETE = 1, FD_CHANNEL_VERIFY = 2 };
_Static_assert(sizeof(struct fd_channel_note) == 64, "fd_channel_note");

/* Writes the name of arena i of the host tier, "host0", "host1", ...; i < FD_CHANNEL_HOSTS. */
void fd_channel_host(char ret[FD_CHANNEL_NAME], uint32_t i);

int fd_channel_pair(int ret[2], struct err *e) MUST_USE;
/* Sends note and a duplicate of fd; the caller keeps fd. */
int fd_channel_give(int sock, const struct fd_channel_note *note, int fd, struct err *e) MUST_USE;
/* Receives a message. Returns 1 and sets *note and *fd (close-on-exec, owned by the caller); 0: no
 * message; -EPIPE: the peer has closed its end; -EBADMSG: malformed (size, name, or not exactly one
 * descriptor), all its descriptors are closed. */
int fd_channel_take(int sock, struct fd_channel_note *note, int *fd, struct err *e) MUST_USE;
