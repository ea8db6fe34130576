/* doorbell.c - see doorbell.h. */
#include "ipc/doorbell.h"

#include "base/failpoint.h"

#include <sys/socket.h>

int
doorbell_pair(int ret[2], struct err *e)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ret) < 0) {
        return err_set(e, -errno, "doorbell: cannot create a socket pair: %s", strerror(errno));
    }
    return 0;
}

void
doorbell_init(struct doorbell *b, int fd, const struct shm *mine, const struct shm *peer)
{
    *b = (struct doorbell){ .fd = fd, .mine = shm_ctl(mine), .peer = shm_ctl(peer) };
}

/* Sends a byte if the peer sleeps and `bit` is set in its wait_seq, at most one per sleep. */
static void
ring_if(struct doorbell *b, uint64_t bit)
{
    uint64_t seq;

    /* We store tail or head before this load; the peer stores wait_seq before it checks the rings
     * again. With both fences at least one side sees the other's store. */
    atomic_thread_fence(memory_order_seq_cst); /* pair: doorbell_sleep() */
    seq = atomic_load_explicit(&b->peer->wait_seq, memory_order_relaxed);
    FP(doorbell_fenced);
    if (!(seq & bit) || seq == b->last_kick) return;
    b->last_kick = seq;
    b->n_sent++;
    /* If the socket is full, earlier bytes wake the peer. doorbell_drain() reports a closed one. */
    if (send(b->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
    FP(doorbell_sent);
}

void
doorbell_ring(struct doorbell *b)
{
    ring_if(b, DOORBELL_ASLEEP);
}

void
doorbell_ring_space(struct doorbell *b)
{
    ring_if(b, DOORBELL_FOR_SPACE);
}

int
doorbell_sleep(struct doorbell *b, bool for_space, bool (*ready)(void *), void *arg)
{
    uint64_t was = atomic_load_explicit(&b->mine->wait_seq, memory_order_relaxed);
    uint64_t seq = was | DOORBELL_ASLEEP | (for_space ? DOORBELL_FOR_SPACE : 0);

    if (b->readable && doorbell_drain(b) == -EPIPE) return -EPIPE;
    b->readable = false;
    /* No store if ASLEEP is still set: the last sleep ended without doorbell_wake(). */
    if (seq != was) atomic_store_explicit(&b->mine->wait_seq, seq, memory_order_relaxed);
    FP(sleep_announced);
    atomic_thread_fence(memory_order_seq_cst); /* pair: doorbell_ring() */
    if (ready(arg)) return 0;
    FP(sleep_entered);
    return 1;
}

void
doorbell_wake(struct doorbell *b)
{
    uint64_t seq = atomic_load_explicit(&b->mine->wait_seq, memory_order_relaxed);

    if (seq & DOORBELL_ASLEEP)
        atomic_store_explicit(&b->mine->wait_seq, (seq | DOORBELL_BITS) + 1, memory_order_relaxed);
    FP(sleep_left);
}

void
doorbell_set_readable(struct doorbell *b)
{
    b->readable = true;
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
        b->n_received += (uint64_t)n;
        if ((size_t)n < sizeof bytes) break;
    }
    return total;
}
