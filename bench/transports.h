/* transports.h - ways to carry messages from one process to another, for bench_ring: ours and its peers.
 *
 * Made before a fork, joined on both sides of it; side 0 is the parent. A message is len bytes that begin
 * with its number. Every way copies it in and out and looks at the number.
 */
#ifndef BENCH_TRANSPORTS_H
#define BENCH_TRANSPORTS_H

#include "base/base.h"

enum { WAY_SLOTS = 1024, WAY_MAX_LEN = 1024, WAY_BATCH = 64 };

struct way {
    const char *name;
    void *(*make)(uint32_t len);
    void (*join)(void *t, int side);
    /* n messages numbered from seq on, at most WAY_BATCH, seen by the peer together where the way can do
     * that. Waits for room. */
    void (*send)(void *t, uint64_t seq, uint32_t n);
    /* At least one message, numbered from seq on; how many. Waits for it. */
    uint32_t (*take)(void *t, uint64_t seq);
    void (*leave)(void *t); /* when the peer has everything */
};

/* Ours: who waits looks again and again, or sleeps on the bell; and the ring without its checks. */
extern const struct way way_ring, way_bell, way_unchecked;
uint64_t way_bell_signals(const void *t); /* way_bell: system calls of the sender, so far */

extern const struct way way_pipe, way_socketpair, way_zmq;
extern const struct way way_ck, way_rte, way_rte_burst; /* name NULL: not built in */

void *way_shared(size_t bytes); /* memory of both processes, zeros */
void way_die(const char *what); /* errno's sentence, and out */

#endif
