/* bell.h - wake the other process; no system call while it is awake.
 *
 * An AF_UNIX stream socketpair, one byte a ring, MSG_DONTWAIT always: each end has its own file
 * flags, so a peer cannot make us block. Its hang-up also tells of the peer's end.
 *
 *   publish tail -> fence(seq_cst) -> read peer.wait_seq -> odd and not yet kicked: send a byte
 *   wait_seq odd -> fence(seq_cst) -> re-check ring(s)   -> block in poll       -> wait_seq even
 *
 * Both fences are needed; together they are enough (ipc.md 3.3's models). No timer stands in.
 */
#ifndef IPC_BELL_H
#define IPC_BELL_H

#include "base/base.h"
#include "ipc/shm.h"

struct bell {
    int fd;
    struct shm_ctl *mine, *peer; /* wait_seq of each */
    uint64_t last_kick;          /* peer.wait_seq when we last rang */
    uint64_t n_rung, n_heard;    /* for storms and statistics */
};

int bell_pair(int ret[2], struct err *e) MUST_USE; /* nonblocking, close-on-exec */
void bell_init(struct bell *b, int fd, const struct shm *mine, const struct shm *peer);

void bell_ring(struct bell *b); /* after ring_publish() and ring_release() */

/* Announce sleep; false: something came meanwhile (ready() was true), do not block. */
bool bell_sleep(struct bell *b, bool (*ready)(void *), void *arg);
void bell_wake(struct bell *b); /* after blocking, or not: wait_seq even again */
/* Empty the socket, after bell_wake() and before the next bell_sleep(): a byte may belong to the sleep
 * just announced. At most a few KiB a call, so that a peer in a storm cannot hold us here. Bytes taken,
 * 0 none, -EPIPE: the peer is gone. */
int bell_drain(struct bell *b);

#endif
