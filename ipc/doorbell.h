/* doorbell.h - wakes the other process; no system call while the other process is awake.
 *
 * An AF_UNIX stream socketpair; a ring is one byte, always with MSG_DONTWAIT. Each end has its own
 * file flags, so a peer cannot make our calls block. A hang-up reports that the peer has closed.
 *
 *   publish tail -> fence(seq_cst) -> read peer.wait_seq -> asleep, no byte sent: send a byte
 *   wait_seq: asleep -> fence(seq_cst) -> re-check rings -> block -> wait_seq: awake, next number
 *
 * The socket is drained before the next sleep is announced. Draining between waking and reading
 * would delay the records; draining after the announcement could remove the byte for the announced
 * sleep.
 *
 * Both fences are necessary, and together they suffice (proof/wake.pml); no timer is needed. The
 * reader wakes the writer for space only if the writer announced that it waits for space. Otherwise
 * each step would cost a second wake-up. */
#pragma once

#include "base/base.h"
#include "ipc/shm.h"

/* wait_seq counts sleeps in steps of 4; the low bits say which events end this sleep. */
enum { DOORBELL_ASLEEP = 1, DOORBELL_FOR_SPACE = 2, DOORBELL_BITS = 3 };

struct doorbell {
    int fd;
    struct shm_ctl *mine, *peer; /* each has its own wait_seq */
    uint64_t last_kick;          /* peer.wait_seq at our last ring */
    /* bytes sent and received, to detect storms and for statistics */
    uint64_t n_sent, n_received;
    bool readable; /* the socket has data or a hang-up */
};

int doorbell_pair(int ret[2], struct err *e) MUST_USE; /* nonblocking, close-on-exec */
void doorbell_init(struct doorbell *b, int fd, const struct shm *mine, const struct shm *peer);

void doorbell_ring(struct doorbell *b);       /* call after ring_publish() */
void doorbell_ring_space(struct doorbell *b); /* call after ring_release() */

/* Drains the socket if it is readable and announces the sleep. Returns 1: block; 0: do not block,
 * ready() returned true; -EPIPE: the peer is gone. for_space: space in the ring we write ends the
 * sleep too. */
int doorbell_sleep(struct doorbell *b, bool for_space, bool (*ready)(void *), void *arg) MUST_USE;
/* call after doorbell_sleep(), also without blocking */
void doorbell_wake(struct doorbell *b);
void doorbell_set_readable(struct doorbell *b); /* poll() reported data or a hang-up */
/* Empties the socket; not between doorbell_sleep() and doorbell_wake(). Reads at most a few KiB, so
 * a peer that sends many bytes cannot block us. Returns the bytes read, 0 if none, -EPIPE: the peer
 * is gone. */
int doorbell_drain(struct doorbell *b);
