/* doorbell.c - see doorbell.h. */
#include "ipc/doorbell.h"

#include "base/failpoint.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

int
doorbell_pair(int ret[2], struct err *e)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ret) < 0) {
        return err_set(e, -errno, "doorbell: %s", strerror(errno));
    }
    return 0;
}

void
doorbell_init(struct doorbell *b, int fd, const struct shm *mine, const struct shm *peer)
{
    *b = (struct doorbell){ .fd = fd, .mine = shm_ctl(mine), .peer = shm_ctl(peer) };
}

/* Ring a peer whose sleep that would end. */
static void
ring_if(struct doorbell *b, uint64_t bit)
{
    uint64_t seq;

    /* Our publish before this load, their wait_seq before their re-check: with both fences one of the
     * two sides sees the other. */
    atomic_thread_fence(memory_order_seq_cst); /* pair: doorbell_sleep() */
    seq = atomic_load_explicit(&b->peer->wait_seq, memory_order_relaxed);
    FP(bell_fenced);
    if (!(seq & bit) || seq == b->last_kick) return;
    b->last_kick = seq;
    b->n_partition++;
    /* A full socket already wakes the peer, and a closed one is told by doorbell_drain(). */
    if (send(b->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
    FP(bell_partition);
}

void
doorbell_ring(struct doorbell *b)
{
    ring_if(b, DOORBELL_ASLEEP);
}

void
doorbell_ring_room(struct doorbell *b)
{
    ring_if(b, DOORBELL_FOR_ROOM);
}

int
doorbell_sleep(struct doorbell *b, bool for_room, bool (*ready)(void *), void *arg)
{
    uint64_t was = atomic_load_explicit(&b->mine->wait_seq, memory_order_relaxed);
    uint64_t seq = was | DOORBELL_ASLEEP | (for_room ? DOORBELL_FOR_ROOM : 0);

    if (b->heard && doorbell_drain(b) == -EPIPE) return -EPIPE;
    b->heard = false;
    /* The same: a loop that was woken by something else and goes to sleep again. */
    if (seq != was) atomic_store_explicit(&b->mine->wait_seq, seq, memory_order_relaxed);
    FP(bell_announced);
    atomic_thread_fence(memory_order_seq_cst); /* pair: doorbell_ring() */
    if (ready(arg)) return 0;
    FP(bell_asleep);
    return 1;
}

void
doorbell_wake(struct doorbell *b)
{
    uint64_t seq = atomic_load_explicit(&b->mine->wait_seq, memory_order_relaxed);

    if (seq & DOORBELL_ASLEEP)
        atomic_store_explicit(&b->mine->wait_seq, (seq | DOORBELL_BITS) + 1, memory_order_relaxed);
    FP(bell_woken);
}

void
doorbell_heard(struct doorbell *b)
{
    b->heard = true;
}

int
doorbell_drain(struct doorbell *b)
{
    char bytes[256];
    int total = 0;

    for (int i = 0; i < 16; i++) {
        ssize_t n = recv(b->fd, bytes, sizeof bytes, MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return total ? total : -EPIPE;
        if (n < 0) break;
        total += (int)n;
        b->n_heard += (uint64_t)n;
        if ((size_t)n < sizeof bytes) break;
    }
    return total;
}
