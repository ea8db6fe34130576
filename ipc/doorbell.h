/* doorbell.h - wake the other process; no system call while it is awake.
 *
 * An AF_UNIX stream socketpair, one byte a ring, MSG_DONTWAIT always: each end has its own file
 * flags, so a peer cannot make us block. Its hang-up also tells of the peer's end.
 *
 *   publish tail -> fence(seq_cst) -> read peer.wait_seq -> asleep and not yet kicked: send a byte
 *   wait_seq: asleep -> fence(seq_cst) -> re-check ring(s) -> block in poll -> wait_seq: awake, next number
 *
 * The socket is emptied before the next announcement: not between waking and reading, where it would cost the
 * records time, and not after it, where it would take the byte that belongs to the sleep just announced.
 *
 * Both fences are needed; together they are enough (proof/wake.pml). No timer stands in. Who gives room
 * back wakes only a writer that said it waits for some: else each step would cost a second wake-up.
 */
#ifndef IPC_DOORBELL_H
#define IPC_DOORBELL_H

#include "base/base.h"
#include "ipc/shm.h"

/* wait_seq: counts sleeps in steps of four; the bits say what would wake this one. */
enum { DOORBELL_ASLEEP = 1, DOORBELL_FOR_ROOM = 2, DOORBELL_BITS = 3 };

struct doorbell {
    int fd;
    struct shm_ctl *mine, *peer;   /* wait_seq of each */
    uint64_t last_kick;            /* peer.wait_seq when we last rang */
    uint64_t n_partition, n_heard; /* for storms and statistics */
    bool heard;                    /* something is in the socket */
};

int doorbell_pair(int ret[2], struct err *e) MUST_USE; /* nonblocking, close-on-exec */
void doorbell_init(struct doorbell *b, int fd, const struct shm *mine, const struct shm *peer);

void doorbell_ring(struct doorbell *b);      /* after ring_publish() */
void doorbell_ring_room(struct doorbell *b); /* after ring_release() */

/* Empty the bell if it was heard, and announce sleep. 1; 0: something came meanwhile (ready() was true), do
 * not block; -EPIPE: the peer is gone. for_room: room in the ring we write would end it too. */
int doorbell_sleep(struct doorbell *b, bool for_room, bool (*ready)(void *), void *arg) MUST_USE;
void doorbell_wake(struct doorbell *b);  /* after blocking, or not */
void doorbell_heard(struct doorbell *b); /* poll() has found it readable, or hung up */
/* Empty the socket; not between doorbell_sleep() and doorbell_wake(). At most a few KiB a call, so that a peer in a
 * storm cannot hold us here. Bytes taken, 0 none, -EPIPE: the peer is gone. */
int doorbell_drain(struct doorbell *b);

#endif
