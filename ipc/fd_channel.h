/* fd_channel.h - passes descriptors of arenas between a worker and lagand.
 *
 * An AF_UNIX SOCK_SEQPACKET pair. A message is one struct fd_channel_note and exactly one
 * descriptor (SCM_RIGHTS), in both directions. A malformed message (size, no descriptor, several
 * descriptors, name without NUL) returns -EBADMSG, and its descriptors are closed. Calls never
 * block.
 *
 * A standby first receives "weights" and "begin": it may allocate device memory beside its worker.
 * When the worker has ended, the standby receives the arenas of the worker, then "go". The
 * descriptors of "begin" and "go" have no meaning.
 *
 * For a worker with a GPU, the end of the stream is the first sign of its death that lagand gets.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"

enum { FD_CHANNEL_NAME = 32, FD_CHANNEL_HOSTS = 10 };

struct fd_channel_note {
    char name
        /* NUL-terminated: "weights", "kv", "manifest", "host0" .. (fd_channel_host()), "begin",
         * "go" */
        [FD_CHANNEL_NAME];
    uint64_t bytes;
    uint64_t fingerprint[2];
    uint32_t version, flags; /* FD_CHANNEL_COMPLETE, FD_CHANNEL_VERIFY */
};
/* COMPLETE: the contents are complete. VERIFY, set by lagand: the previous worker ended by a fault
 * of its own, so the contents must be verified against their checksums. */
enum { FD_CHANNEL_COMPLETE = 1, FD_CHANNEL_VERIFY = 2 };
_Static_assert(sizeof(struct fd_channel_note) == 64, "fd_channel_note");

/* Name of part i of the host tier, 0 .. FD_CHANNEL_HOSTS - 1: "host0", "host1", ... */
void fd_channel_host(char ret[FD_CHANNEL_NAME], uint32_t i);

int fd_channel_pair(int ret[2], struct err *e) MUST_USE;
int fd_channel_give(int sock, const struct fd_channel_note *note, int fd,
                    struct err *e) MUST_USE; /* the caller keeps fd */
/* Returns 1 and sets *note and *fd (close-on-exec, owned by the caller); 0: no message; -EPIPE:
 * closed by the peer; -EBADMSG: malformed. */
int fd_channel_take(int sock, struct fd_channel_note *note, int *fd, struct err *e) MUST_USE;
