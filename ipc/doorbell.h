/* doorbell.h - wakes the peer process if it sleeps; no system call while the peer is awake.
 *
 * A doorbell is an AF_UNIX stream socketpair; a wake-up is one byte, sent with MSG_DONTWAIT. Each
 * end has its own file flags, so a peer cannot make our calls block. A hang-up means that the peer
 * has closed its end. Each side announces its sleep in its own shm_ctl.wait_seq, which holds the
 * number of the sleep and a bit ASLEEP; the peer sends at most one byte per number.
 *
 *   waker:   store tail -> fence(seq_cst) -> load peer.wait_seq -> if ASLEEP and no byte was sent
 *            for this number: send a byte
 *   sleeper: set ASLEEP -> fence(seq_cst) -> check the rings again -> block -> clear ASLEEP and
 *            increment the number
 *
 * The sleeper drains the socket before it sets ASLEEP. Draining between waking and reading records
 * would delay the records; draining after ASLEEP is set could remove the byte of this sleep.
 *
 * Both fences are necessary, and together they suffice (proof/wake.pml); no timer is needed. The
 * reader of a ring wakes the writer only if the writer announced that it waits for space. Otherwise
 * each step would cost a second wake-up. */
#pragma once
#include "base/base.h"
#include "ipc/shm.h"

/* Bits of shm_ctl.wait_seq; the number of the sleep is in the bits above them (steps of 4). ASLEEP:
 * new records end this sleep. FOR_SPACE: free space in the ring that the sleeper writes ends it. */
enum { DOORBELL_ASLEEP = 1, DOORBELL_FOR_SPACE = 2, DOORBELL_BITS = 3 };

struct doorbell {
    int fd;
    struct shm_ctl *mine, *peer; /* each has its own wait_seq */
    uint64_t last_kick;          /* peer.wait_seq for which we last sent a byte */
    uint64_t n_sent, n_received; /* bytes; lagand ends a worker that sends too many */
    bool readable;               /* the socket has data or a hang-up */
};

int doorbell_pair(int ret[2], struct err *e) MUST_USE; /* nonblocking, close-on-exec */
void doorbell_init(struct doorbell *b, int fd, const struct shm *mine, const struct shm *peer);

void doorbell_ring(struct doorbell *b);       /* wakes the reader; call after ring_publish() */
void doorbell_ring_space(struct doorbell *b); /* wakes a waiting writer; after ring_release() */

/* Drains the socket if it is readable, announces the sleep and calls ready(arg), which checks the
 * rings again. Returns 1: the caller may block in poll(); 0: ready() returned true, so the caller
 * must not block; -EPIPE: the peer has closed its end. for_space: sets FOR_SPACE as well. */
int doorbell_sleep(struct doorbell *b, bool for_space, bool (*ready)(void *), void *arg) MUST_USE;
/* Clears ASLEEP. Call after each doorbell_sleep(), also if the caller did not block. */
void doorbell_wake(struct doorbell *b);
void doorbell_set_readable(struct doorbell *b); /* call if poll() reported data or a hang-up */
/* Reads the bytes in the socket, at most a few KiB, so a peer that sends many bytes cannot hold us
 * up. Do not call it between doorbell_sleep() and doorbell_wake(). Returns the number of bytes
 * read; -EPIPE: the peer has closed its end. */
int doorbell_drain(struct doorbell *b);
