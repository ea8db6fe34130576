/* transports_peers.c - see transports.h: pipe, socketpair, ZeroMQ, ck_ring, rte_ring. */
#include "bench/transports.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

static void
look(const void *message, uint64_t seq)
{
    if (memcmp(message, &seq, sizeof seq)) way_die("a message is missing");
}

/* ---- descriptors: one write() and one read() per message */

struct pair {
    int fd[4]; /* side 0 reads 0 and writes 3, side 1 reads 2 and writes 1 */
    int in, out;
    uint32_t len;
    char bytes[WAY_MAX_LEN];
};

static struct pair *
pair_new(uint32_t len)
{
    struct pair *t = calloc(1, sizeof *t);

    if (!t) way_die("memory");
    t->len = len;
    return t;
}

static void *
pipe_make(uint32_t len)
{
    struct pair *t = pair_new(len);

    if (pipe(t->fd) < 0 || pipe(t->fd + 2) < 0) way_die("pipe");
    return t;
}

static void *
socketpair_make(uint32_t len)
{
    struct pair *t = pair_new(len);

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, t->fd) < 0) way_die("socketpair");
    t->fd[3] = dup(t->fd[0]);
    t->fd[2] = dup(t->fd[1]);
    return t;
}

static void
pair_join(void *arg, int side)
{
    struct pair *t = arg;

    t->in = t->fd[side ? 2 : 0];
    t->out = t->fd[side ? 1 : 3];
    close(t->fd[side ? 0 : 2]);
    close(t->fd[side ? 3 : 1]);
}

static void
pair_send(void *arg, uint64_t seq, uint32_t n)
{
    struct pair *t = arg;

    for (uint32_t i = 0; i < n; i++, seq++) {
        memcpy(t->bytes, &seq, sizeof seq);
        if (write(t->out, t->bytes, t->len) != (ssize_t)t->len) way_die("write");
    }
}

static uint32_t
pair_take(void *arg, uint64_t seq)
{
    struct pair *t = arg;

    for (uint32_t got = 0; got < t->len;) {
        ssize_t r = read(t->in, t->bytes + got, t->len - got);

        if (r <= 0) way_die("read");
        got += (uint32_t)r;
    }
    look(t->bytes, seq);
    return 1;
}

static void
pair_leave(void *arg)
{
    struct pair *t = arg;

    close(t->in);
    close(t->out);
    free(t);
}

const struct way way_pipe = { "pipe", pipe_make, pair_join, pair_send, pair_take, pair_leave };
const struct way way_socketpair = { "socketpair", socketpair_make, pair_join,
                                    pair_send,    pair_take,       pair_leave };

/* ---- ZeroMQ: PAIR over ipc, its thread on the processor of its user */

struct zpair {
    void *context, *socket;
    uint32_t len;
    char name[64], bytes[WAY_MAX_LEN];
};

static void *
zmq_make(uint32_t len)
{
    static unsigned n;
    struct zpair *t = calloc(1, sizeof *t);

    if (!t) way_die("memory");
    t->len = len;
    snprintf(t->name, sizeof t->name, "ipc://@lagan-bench-ring-%d-%u", (int)getpid(), n++);
    return t;
}

static void
zmq_join(void *arg, int side)
{
    struct zpair *t = arg;

    t->context = zmq_ctx_new();
    t->socket = zmq_socket(t->context, ZMQ_PAIR);
    if (!t->socket || (side ? zmq_connect : zmq_bind)(t->socket, t->name) < 0) way_die("zmq");
}

static void
zmq_push(void *arg, uint64_t seq, uint32_t n)
{
    struct zpair *t = arg;

    for (uint32_t i = 0; i < n; i++, seq++) {
        memcpy(t->bytes, &seq, sizeof seq);
        if (zmq_send(t->socket, t->bytes, t->len, 0) < 0) way_die("zmq_send");
    }
}

static uint32_t
zmq_pull(void *arg, uint64_t seq)
{
    struct zpair *t = arg;

    if (zmq_recv(t->socket, t->bytes, t->len, 0) != (int)t->len) way_die("zmq_recv");
    look(t->bytes, seq);
    return 1;
}

static void
zmq_leave(void *arg)
{
    struct zpair *t = arg;

    zmq_close(t->socket);
    zmq_ctx_term(t->context);
    free(t);
}

const struct way way_zmq = { "zmq_ipc", zmq_make, zmq_join, zmq_push, zmq_pull, zmq_leave };

/* ---- Concurrency Kit: elements of one size, one at a time */

#ifdef HAVE_CK
#include <ck_ring.h>

struct ck_64 {
    char bytes[64];
};
struct ck_1024 {
    char bytes[1024];
};
CK_RING_PROTOTYPE(small, ck_64)
CK_RING_PROTOTYPE(large, ck_1024)

struct ck_half {
    struct ck_ring ring;
    struct ck_1024 slot[WAY_SLOTS];
};

struct ck {
    struct ck_half *half[2], *in, *out;
    uint32_t len;
    struct ck_1024 bytes;
};

static void *
ck_make(uint32_t len)
{
    struct ck *t = calloc(1, sizeof *t);

    if (!t || (len != 64 && len != 1024)) way_die("ck");
    t->len = len;
    for (int i = 0; i < 2; i++) {
        t->half[i] = way_shared(sizeof *t->half[i]);
        ck_ring_init(&t->half[i]->ring, WAY_SLOTS);
    }
    return t;
}

static void
ck_join(void *arg, int side)
{
    struct ck *t = arg;

    t->out = t->half[side];
    t->in = t->half[!side];
}

static void
ck_send(void *arg, uint64_t seq, uint32_t n)
{
    struct ck *t = arg;
    struct ck_ring *r = &t->out->ring;

    for (uint32_t i = 0; i < n; i++, seq++) {
        memcpy(&t->bytes, &seq, sizeof seq);
        if (t->len == 64)
            while (!CK_RING_ENQUEUE_SPSC(small, r, (void *)t->out->slot, (void *)&t->bytes)) {
            }
        else
            while (!CK_RING_ENQUEUE_SPSC(large, r, t->out->slot, &t->bytes)) {
            }
    }
}

static uint32_t
ck_take(void *arg, uint64_t seq)
{
    struct ck *t = arg;
    struct ck_ring *r = &t->in->ring;

    if (t->len == 64)
        while (!CK_RING_DEQUEUE_SPSC(small, r, (void *)t->in->slot, (void *)&t->bytes)) {
        }
    else
        while (!CK_RING_DEQUEUE_SPSC(large, r, t->in->slot, &t->bytes)) {
        }
    look(&t->bytes, seq);
    return 1;
}

static void
ck_leave(void *arg)
{
    struct ck *t = arg;

    for (int i = 0; i < 2; i++) munmap(t->half[i], sizeof *t->half[i]);
    free(t);
}

const struct way way_ck = { "ck_ring", ck_make, ck_join, ck_send, ck_take, ck_leave };
#else
const struct way way_ck;
#endif

/* ---- DPDK: one at a time, or in bursts, from and to an array of the caller */

#ifdef HAVE_DPDK
#include <rte_ring.h>
#include <rte_ring_elem.h>

enum { BURST = 32 };

struct rte {
    struct rte_ring *half[2], *in, *out;
    size_t bytes_each;
    uint32_t len, burst;
    char bytes[BURST][WAY_MAX_LEN];
};

static void *
rte_new(uint32_t len, uint32_t burst)
{
    struct rte *t = calloc(1, sizeof *t);

    if (!t) way_die("memory");
    t->len = len;
    t->burst = burst;
    t->bytes_each = (size_t)rte_ring_get_memsize_elem(len, WAY_SLOTS);
    for (int i = 0; i < 2; i++) {
        t->half[i] = way_shared(t->bytes_each);
        if (rte_ring_init(t->half[i], "bench", WAY_SLOTS, RING_F_SP_ENQ | RING_F_SC_DEQ))
            way_die("rte_ring_init");
    }
    return t;
}

static void *
rte_make(uint32_t len)
{
    return rte_new(len, 1);
}

static void *
rte_burst_make(uint32_t len)
{
    return rte_new(len, BURST);
}

static void
rte_join(void *arg, int side)
{
    struct rte *t = arg;

    t->out = t->half[side];
    t->in = t->half[!side];
}

static void
rte_send(void *arg, uint64_t seq, uint32_t n)
{
    struct rte *t = arg;
    char *flat = &t->bytes[0][0]; /* messages are contiguous */

    while (n) {
        uint32_t some = MIN(n, t->burst), done = 0;

        for (uint32_t i = 0; i < some; i++, seq++)
            memcpy(flat + (size_t)i * t->len, &seq, sizeof seq);
        while (done < some)
            done += rte_ring_sp_enqueue_burst_elem(t->out, flat + (size_t)done * t->len, t->len,
                                                   some - done, NULL);
        n -= some;
    }
}

static uint32_t
rte_take(void *arg, uint64_t seq)
{
    struct rte *t = arg;
    char *flat = &t->bytes[0][0];
    uint32_t n;

    while (!(n = rte_ring_sc_dequeue_burst_elem(t->in, flat, t->len, t->burst, NULL))) {
    }
    for (uint32_t i = 0; i < n; i++) look(flat + (size_t)i * t->len, seq + i);
    return n;
}

static void
rte_leave(void *arg)
{
    struct rte *t = arg;

    for (int i = 0; i < 2; i++) munmap(t->half[i], t->bytes_each);
    free(t);
}

const struct way way_rte = { "rte_ring", rte_make, rte_join, rte_send, rte_take, rte_leave };
const struct way way_rte_burst = { "rte_ring_burst", rte_burst_make, rte_join,
                                   rte_send,         rte_take,       rte_leave };
#else
const struct way way_rte, way_rte_burst;
#endif
