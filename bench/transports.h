/* transports.h - ways to pass messages between two processes, for bench_ring: lagan's and others.
 *
 * make() before a fork, join() on both sides; side 0 is the parent. A message has len bytes and
 * begins with its number. Every way copies the bytes in and out and checks the number.
 */
#pragma once
#include "base/base.h"

enum { WAY_SLOTS = 1024, WAY_MAX_LEN = 1024, WAY_BATCH = 64 };

struct way {
    const char *name;
    void *(*make)(uint32_t len);
    void (*join)(void *t, int side);
    /* Sends n messages with numbers from seq on, at most WAY_BATCH, in one batch if the way can.
     * Waits for free space. */
    void (*send)(void *t, uint64_t seq, uint32_t n);
    /* Receives messages with numbers from seq on; waits for one. Returns their number. */
    uint32_t (*take)(void *t, uint64_t seq);
    void (*leave)(void *t); /* after the peer has received everything */
};

/* lagan: a ring with a spinning reader, a ring with a doorbell, a ring without checks. */
extern const struct way way_ring, way_doorbell, way_unchecked;
uint64_t way_doorbell_signals(const void *t); /* system calls of the sender */

extern const struct way way_pipe, way_socketpair, way_zmq;
extern const struct way way_ck, way_rte, way_rte_burst; /* name NULL: not built in */

void *way_shared(size_t bytes); /* shared memory, zeroed */
void way_die(const char *what); /* prints errno and exits */
