/* transports_ring.c - see transports.h: ipc/ring.h with a doorbell, with spinning, and without
 * checks. */
#include "bench/transports.h"
#include "ipc/channel.h"
#include "ipc/records.h"

#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { AT_ONCE = 32 };

void
way_die(const char *what)
{
    perror(what);
    exit(1);
}

void *
way_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) way_die("mmap");
    return p;
}

/* Copies a message into a slot. Not memcpy(): with a variable length it is a call, whose wide
 * stores take twice as long if the cache line is in the core of the reader. */
static void
fill(void *slot, const char *bytes, uint32_t len, uint64_t number)
{
    for (uint32_t i = 0; i < len; i += 32) memcpy((char *)slot + i, bytes + i, 32);
    memcpy(slot, &number, sizeof number);
}

/* ---- the ring that lagand and its workers use */

struct ours {
    struct channel l;
    uint32_t len;
    uint16_t type; /* of the sent records */
    int worker_doorbell;
    char bytes[WAY_MAX_LEN];
};

/* Size of the smallest ring with WAY_SLOTS records. */
static uint32_t
ring_log2(uint32_t len)
{
    uint32_t log2 = 0;

    while ((1u << log2) < WAY_SLOTS * ROUND_UP(len + RING_HEADER, (uint32_t)RING_ALIGN)) log2++;
    return log2;
}

static void *
ring_make(uint32_t len)
{
    static const uint8_t id[16] = { 1 };
    struct ours *t = calloc(1, sizeof *t);
    struct err e;

    if (!t) way_die("memory");
    t->len = len;
    if (channel_make(&t->l, 0, 1, id, ring_log2(len), ring_log2(len), &t->worker_doorbell, &e) < 0)
        way_die(e.text);
    return t;
}

static void
ring_join(void *arg, int side)
{
    struct ours *t = arg;
    struct err e;

    t->type = side ? REC_STEP : REC_SUBMIT;
    if (side) {
        int d = dup(t->l.d.fd), w = dup(t->l.w.fd);

        close(t->l.doorbell.fd);
        if (channel_attach(&t->l, d, w, t->worker_doorbell, 1, &e) < 0) way_die(e.text);
    } else {
        close(t->worker_doorbell);
    }
}

static void
sleep_on_doorbell(struct channel *l)
{
    struct pollfd p = { .fd = l->doorbell.fd, .events = POLLIN };

    if (channel_sleep(l) > 0 && poll(&p, 1, -1) < 0 && errno != EINTR) way_die("poll");
    if (p.revents) doorbell_set_readable(&l->doorbell);
    doorbell_wake(&l->doorbell);
}

static void
reserve_all(struct ours *t, uint64_t seq, uint32_t n, bool sleeps)
{
    for (uint32_t i = 0; i < n;) {
        void *p;
        int r = ring_reserve(&t->l.out, t->type, 0, t->len, 0, &p);

        if (r == 0) {
            fill(p, t->bytes, t->len, seq + i);
            i++;
            continue;
        }
        if (r != -EAGAIN) way_die("ring_reserve");
        ring_publish(&t->l.out);
        if (!sleeps) continue;
        doorbell_ring(&t->l.doorbell);
        sleep_on_doorbell(&t->l);
    }
    ring_publish(&t->l.out);
}

static uint32_t
take_all(struct ours *t, uint64_t seq)
{
    struct ring_record rec;
    uint32_t n = 0;
    int r;

    while ((r = ring_peek(&t->l.in, &rec)) == 1) {
        if (memcmp(rec.data, &seq, sizeof seq)) way_die("a message is missing");
        seq++;
        if (++n == AT_ONCE) break; /* releases space before all is read */
    }
    if (r < 0) way_die(ring_why(&t->l.in));
    if (n) ring_release(&t->l.in);
    return n;
}

static void
ring_send(void *arg, uint64_t seq, uint32_t n)
{
    reserve_all(arg, seq, n, false);
}

static uint32_t
ring_take(void *arg, uint64_t seq)
{
    uint32_t n;

    while (!(n = take_all(arg, seq))) {
    }
    return n;
}

static void
doorbell_send(void *arg, uint64_t seq, uint32_t n)
{
    struct ours *t = arg;

    reserve_all(t, seq, n, true);
    doorbell_ring(&t->l.doorbell);
}

static uint32_t
doorbell_take(void *arg, uint64_t seq)
{
    struct ours *t = arg;
    uint32_t n;

    while (!(n = take_all(t, seq))) sleep_on_doorbell(&t->l);
    doorbell_ring_space(&t->l.doorbell);
    return n;
}

static void
ring_leave(void *arg)
{
    struct ours *t = arg;

    channel_close(&t->l);
    free(t);
}

uint64_t
way_doorbell_signals(const void *arg)
{
    const struct ours *t = arg;

    return t->l.doorbell.n_sent;
}

const struct way way_ring = { "ring", ring_make, ring_join, ring_send, ring_take, ring_leave };
const struct way way_doorbell = { "doorbell",    ring_make,     ring_join,
                                  doorbell_send, doorbell_take, ring_leave };

/* ---- the same without checks of the peer */

struct half {
    _Alignas(128) _Atomic uint64_t tail;
    _Alignas(128) _Atomic uint64_t head;
    _Alignas(128) char data[];
};

struct end {
    struct half *h;
    uint64_t pos, peer; /* own position; last read position of the peer */
    uint64_t from;      /* start of the data in bytes[] */
    uint64_t upto;      /* reader: end of the data; writer: published */
    _Alignas(16) char bytes[RING_CHUNK + WAY_MAX_LEN + RING_HEADER];
};

struct unchecked {
    uint64_t cap;
    uint32_t len;
    struct half *half[2];
    struct end out, in;
    char message[WAY_MAX_LEN];
};

static void *
unchecked_make(uint32_t len)
{
    struct unchecked *t = calloc(1, sizeof *t);

    if (!t) way_die("memory");
    t->len = len;
    t->cap = UINT64_C(1) << ring_log2(len);
    for (int i = 0; i < 2; i++) t->half[i] = way_shared(sizeof(struct half) + t->cap);
    return t;
}

static void
unchecked_join(void *arg, int side)
{
    struct unchecked *t = arg;

    t->out.h = t->half[side];
    t->in.h = t->half[!side];
}

static uint64_t
record_bytes(const struct unchecked *t)
{
    return ROUND_UP(t->len + (uint64_t)RING_HEADER, (uint64_t)RING_ALIGN);
}

static void
put_staged(struct unchecked *t)
{
    struct end *e = &t->out;

    shm_copy_out(e->h->data + (e->from & (t->cap - 1)), e->bytes, e->pos - e->from);
    e->from = e->pos;
}

static void
unchecked_publish(struct unchecked *t)
{
    struct end *e = &t->out;

    if (e->pos == e->upto) return;
    put_staged(t);
    if (e->pos - e->upto >= SHM_MANY) shm_fence_out();
    atomic_store_explicit(&e->h->tail, e->pos, memory_order_release);
    e->upto = e->pos;
}

/* Reserves space for a message and writes its header; NULL: full. A call, like ring_reserve(). */
static char *__attribute__((noinline)) unchecked_reserve(struct unchecked *t, uint64_t seq)
{
    struct end *e = &t->out;
    uint64_t bytes = record_bytes(t), left = t->cap - (e->pos & (t->cap - 1));
    uint64_t pad = bytes > left ? left : 0;
    struct ring_header h = { t->len, REC_STEP, 0, 1, (uint32_t)seq };
    bool small = bytes <= RING_SMALL;
    char *at;

    if (t->cap - (e->pos - e->peer) < pad + bytes) {
        e->peer = atomic_load_explicit(&e->h->head, memory_order_acquire);
        if (t->cap - (e->pos - e->peer) < pad + bytes) return NULL;
    }
    if (pad || left == t->cap || e->pos - e->from + bytes > RING_STAGE) put_staged(t);
    e->pos += pad;
    if (pad) e->from = e->pos;
    at = small ? e->bytes + (e->pos - e->from) : e->h->data + (e->pos & (t->cap - 1));
    memcpy(at, &h, sizeof h);
    e->pos += bytes;
    if (!small) e->from = e->pos;
    return at + sizeof h;
}

static void
unchecked_send(void *arg, uint64_t seq, uint32_t n)
{
    struct unchecked *t = arg;

    for (uint32_t i = 0; i < n;) {
        char *p = unchecked_reserve(t, seq + i);

        if (p) {
            fill(p, t->message, t->len, seq + i);
            i++;
            continue;
        }
        unchecked_publish(t);
    }
    unchecked_publish(t);
}

static const char *
fetch(struct unchecked *t, uint64_t n)
{
    struct end *e = &t->in;
    uint64_t have = e->upto - e->pos, at = e->upto & (t->cap - 1), some;

    if (have < n) {
        some = MIN(e->peer - e->upto, MIN(t->cap - at, MAX(n - have, (uint64_t)RING_CHUNK)));
        if (have) memmove(e->bytes, e->bytes + (e->pos - e->from), have);
        shm_copy_in(e->bytes + have, e->h->data + at, some);
        e->from = e->pos;
        e->upto += some;
    }
    return e->bytes + (e->pos - e->from);
}

/* The next message, or NULL. */
static const char *__attribute__((noinline)) unchecked_peek(struct unchecked *t)
{
    struct end *e = &t->in;
    uint64_t bytes = record_bytes(t);
    const char *at;

    if (e->pos == e->peer) {
        e->peer = atomic_load_explicit(&e->h->tail, memory_order_acquire);
        if (e->pos == e->peer) return NULL;
    }
    if (t->cap - (e->pos & (t->cap - 1)) < bytes)
        e->pos = e->upto = e->from = ROUND_UP(e->pos, t->cap);
    at = fetch(t, bytes) + RING_HEADER;
    e->pos += bytes;
    return at;
}

static uint32_t
unchecked_take(void *arg, uint64_t seq)
{
    struct unchecked *t = arg;
    const char *at;
    uint32_t n = 0;

    do {
        while (n < AT_ONCE && (at = unchecked_peek(t))) {
            if (memcmp(at, &seq, sizeof seq)) way_die("a message is missing");
            n++;
            seq++;
        }
    } while (n == 0);
    atomic_store_explicit(&t->in.h->head, t->in.pos, memory_order_release);
    return n;
}

static void
unchecked_leave(void *arg)
{
    struct unchecked *t = arg;

    for (int i = 0; i < 2; i++) munmap(t->half[i], sizeof(struct half) + t->cap);
    free(t);
}

const struct way way_unchecked = { "unchecked",    unchecked_make, unchecked_join,
                                   unchecked_send, unchecked_take, unchecked_leave };
