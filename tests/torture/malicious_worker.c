/* malicious_worker.c - a worker that attacks lagand with everything a worker can access.
 *
 * It reports READY, serves a little or not at all, and then runs one random attack below for a
 * moment or until it is killed. No attack may crash or delay lagand or affect another worker's
 * requests. For a model whose folder is not named evil it executes mock_worker, which is
 * honest.
 */
#include "base/clock.h"
#include "base/rng.h"
#include "include/lagan_wire.h"
#include "ipc/channel.h"
#include "ipc/fd_channel.h"
#include "ipc/heritage.h"
#include "ipc/records.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_RECORD = 4000, FDS = 250, ROWS = 64 };
static const nsec MOMENT = 20 * NSEC_MS;

static struct channel l;
static struct shm_ctl *ctl;
static int fd_channel;
static uint64_t chance;
static struct rec_notice row[ROWS]; /* received requests; flags: tokens generated */
static uint32_t n_tokens;

static uint32_t
below(uint32_t n)
{
    return rng_below(&chance, n);
}

static uint64_t
any(void)
{
    return (uint64_t)below(1u << 31) << 33 ^ (uint64_t)below(1u << 31) << 8 ^ below(256);
}

/* Returns a small number, a limit or noise. */
static uint32_t
odd_number(void)
{
    static const uint32_t edge[] = {
        0, 1, 15, 31, 255, 4095, 65535, 1u << 20, INT32_MAX, UINT32_MAX
    };

    return below(3) ? edge[below(ARRAY_LEN(edge))] : below(2) ? below(64) : (uint32_t)any();
}

static void
scribble(void *at, size_t n)
{
    uint8_t *p = at;

    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)below(256);
}

/* ---- honest part */

static void *
reserve(uint16_t type, uint32_t len)
{
    void *p;

    while (ring_reserve(&l.out, type, 0, len, 0, &p) < 0) {
        channel_publish(&l);
        poll(NULL, 0, 1);
        if (doorbell_drain(&l.doorbell) == -EPIPE || *ring_why(&l.out)) _exit(0);
    }
    memset(p, 0, len);
    return p;
}

static void
say_ready(bool absurd)
{
    struct rec_ready *r = reserve(REC_READY, sizeof *r + 8);

    *r = (struct rec_ready){ .vocab = 32000,
                             .max_len = 1 << 16,
                             .n_slots = 64,
                             .tokens_per_block = 16,
                             .n_groups = 1,
                             .name_bytes = 4,
                             .max_tokens = 1 << 16 };
    memcpy(r + 1, "evil", 4);
    if (absurd) ((uint32_t *)r)[below(sizeof *r / 4)] = odd_number();
    channel_publish(&l);
}

static void
intake(void)
{
    struct ring_record rec;

    while (ring_peek(&l.in, &rec) > 0) {
        const struct rec_submit *s = rec.data;

        if (rec.type == REC_DRAIN) _exit(0);
        if (rec.type == REC_SUBMIT && !rec.flags && n_tokens < ROWS)
            row[n_tokens++] = (struct rec_notice){ s->ledger_index, s->gen, s->n_done, 0 };
    }
    channel_release(&l);
}

static uint32_t
put_step(char *to)
{
    struct rec_step *s = (struct rec_step *)(void *)to;
    struct rec_out *o = (struct rec_out *)(s + 1);
    struct rec_notice *r = &row[below(MAX(n_tokens, 1u))];

    *s = (struct rec_step){ .step = 1, .n_ent = 1 };
    *o = (struct rec_out){ .ledger_index = r->ledger_index,
                           .gen = r->gen,
                           .n_tokens = 1,
                           .first = r->flags,
                           .text_bytes = 1,
                           .text_first = r->flags };
    memset(o + 1, 0, 8);
    memcpy((char *)(o + 1) + 4, "x", 1);
    r->flags++;
    return sizeof *s + sizeof *o + 8;
}

static void
serve(uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++) {
        struct pollfd p = { .fd = l.doorbell.fd, .events = POLLIN };

        atomic_fetch_add(&ctl->hb_count, 1);
        intake();
        if (n_tokens)
            put_step(reserve(REC_STEP, sizeof(struct rec_step) + sizeof(struct rec_out) + 8));
        channel_publish(&l);
        poll(&p, 1, 2);
        if (doorbell_drain(&l.doorbell) == -EPIPE) _exit(0);
    }
}

/* ---- attacks */

static void
noise_in_the_ring(void)
{
    uint8_t *ring = shm_ring(&l.w);
    nsec until = clock_now() + MOMENT;

    do {
        scribble(ring + below(1 << 16), 1 + below(512));
        atomic_store(&ctl->tail, (l.out.pos + below(64) * 32) & ~UINT64_C(31));
        if (below(4) == 0) scribble(ctl, sizeof *ctl);
        send(l.doorbell.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (clock_now() < until);
}

static void
jumping_indices(void)
{
    for (int i = 0; i < 64; i++) {
        _Atomic uint64_t *at = below(2) ? &ctl->tail : &ctl->head;

        atomic_store(at, below(2) ? any() : atomic_load(at) + (uint64_t)odd_number() - below(64));
        send(l.doorbell.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        poll(NULL, 0, 1);
    }
}

/* Writes a record header with one wrong field, also padding records. */
static void
torn_records(void)
{
    struct ring_header h = { below(600), (uint16_t)below(10), 0, (uint32_t)l.epoch, l.out.seq };
    uint64_t at = l.out.pos & (l.out.cap - 1), left = l.out.cap - at;

    if (below(3) == 0) h = (struct ring_header){ (uint32_t)left - 16, 0, 0, (uint32_t)l.epoch, 0 };
    if (below(4)) ((uint16_t *)&h)[below(8)] = (uint16_t)odd_number();
    memcpy(l.out.data + at, &h, sizeof h);
    scribble(l.out.data + at + sizeof h, MIN(left - sizeof h, (uint64_t)h.len & 1023));
    atomic_store(&ctl->tail, l.out.pos + ROUND_UP((uint64_t)h.len + 16, 32));
    send(l.doorbell.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static uint32_t
put_finish(char *to)
{
    struct rec_notice *r = &row[below(MAX(n_tokens, 1u))];

    *(struct rec_finish *)(void *)to = (struct rec_finish){ .ledger_index = r->ledger_index,
                                                            .gen = r->gen,
                                                            .reason = LAGAN_FINISH_EOS,
                                                            .n_tokens = r->flags };
    return sizeof(struct rec_finish);
}

static uint32_t
put_kv_events(char *to)
{
    struct rec_kv_events h = { .n = below(8), .flags = below(2) * (1 + 2 * below(4)) };

    memcpy(to, &h, sizeof h);
    for (uint32_t i = 0; i < h.n; i++) {
        struct rec_kv_event v = { .name = { below(64), below(2) }, .group = (uint8_t)below(8) };

        v.op = (uint8_t)(h.flags ? 0 : below(3));
        v.n_tokens = 4;
        memcpy(to + sizeof h + i * sizeof v, &v, sizeof v);
    }
    return (uint32_t)(sizeof h + h.n * sizeof(struct rec_kv_event));
}

/* Writes records whose payload is nearly valid and changes while lagand reads it. */
static void
invalid_payloads(void)
{
    for (int i = 0; i < 200; i++) {
        char bytes[MAX_RECORD] = { 0 }, *to;
        uint16_t type = (uint16_t)(1 + below(8));
        uint32_t n = below(MAX_RECORD / 8) * 8;

        if (type == REC_STEP && below(4)) n = put_step(bytes);
        if (type == REC_FINISH) n = put_finish(bytes);
        if (type == REC_KV_EVENTS) n = put_kv_events(bytes);
        if (type == REC_READY) n = sizeof(struct rec_ready) + 8;
        if (type == REC_REJECT) n = sizeof(struct rec_reject) + 8 * below(4);
        if (type == REC_PHASE) n = sizeof(struct rec_phase);
        for (uint32_t k = below(4); k > 0 && n >= 4; k--) {
            uint32_t v = odd_number();

            memcpy(bytes + below(n / 4) * 4, &v, 4);
        }
        to = reserve(type, n);
        memcpy(to, bytes, n);
        channel_publish(&l);
        for (uint32_t k = below(200); k > 0 && n >= 4; k--) to[below(n)] = (char)below(256);
    }
}

static void
doorbell_misuse(void)
{
    nsec until = clock_now() + (below(8) ? MOMENT : 3 * NSEC_S);
    int mode = (int)below(4);

    if (mode == 0) shutdown(l.doorbell.fd, below(2) ? SHUT_RD : SHUT_WR);
    if (mode == 1) close(l.doorbell.fd);
    fcntl(l.doorbell.fd, F_SETFL, 0);
    do {
        char flood[4096] = { 0 };

        atomic_fetch_add(&ctl->hb_count, 1);
        atomic_store(&ctl->wait_seq, any());
        if (mode > 1)
            send(l.doorbell.fd, flood, 1 + below(sizeof flood), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (mode < 2 || below(64) == 0) poll(NULL, 0, 1);
    } while (clock_now() < until);
}

/* Sends descriptors of every kind, one or many, with wrong notes. */
static void
give_fds(void)
{
    const int kind[] = { open("/dev/zero", O_RDWR),
                         open("/", O_RDONLY | O_DIRECTORY),
                         epoll_create1(0),
                         memfd_create("evil", MFD_ALLOW_SEALING),
                         l.doorbell.fd,
                         dup(0) };
    static const char *const names[] = {
        "weights", "kv", "manifest", "host", "", "../../etc", "x"
    };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS * sizeof(int))];
    } control = { .bytes = { 0 } };

    for (int i = 0; i < 40; i++) {
        struct fd_channel_note note = { .bytes = any(),
                                        .version = odd_number(),
                                        .flags = odd_number() };
        struct iovec v = { &note, below(4) ? sizeof note : below(2 * sizeof note) };
        struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control };
        uint32_t n = below(3) ? 1 : below(FDS);
        struct cmsghdr *c = &control.align;

        snprintf(note.name, sizeof note.name, "%s", names[below(ARRAY_LEN(names))]);
        if (below(2)) note.bytes = below(8192);
        if (below(16) == 0) scribble(&note, sizeof note);
        v.iov_len = MIN(v.iov_len, sizeof note);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n * sizeof(int));
        for (uint32_t k = 0; k < n; k++)
            memcpy(CMSG_DATA(c) + k * sizeof(int), &kind[below(ARRAY_LEN(kind))], sizeof(int));
        m.msg_controllen = n ? CMSG_SPACE(n * sizeof(int)) : 0;
        sendmsg(fd_channel, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (below(8) == 0 && ftruncate(kind[3], below(8192)) < 0) continue;
    }
    if (below(4) == 0) close(fd_channel);
}

/* Calls that the kernel must refuse. */
static void
break_out(void)
{
    check(ftruncate(l.w.fd, 0) < 0 && ftruncate(l.d.fd, 0) < 0);
    check(fallocate(l.w.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0 ||
          errno == EPERM);
    check(mprotect(l.d.base, l.d.bytes, PROT_READ | PROT_WRITE) < 0);
    check(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, l.d.fd, 0) == MAP_FAILED);
    check(pwrite(l.d.fd, "x", 1, SHM_CTL_OFF) < 0);
}

static void
write_panic(void)
{
    struct panic_message *w = shm_panic_message(&l.w);

    scribble(shm_trace(&l.w), sizeof(struct step_trace));
    scribble(shm_steps(&l.w), sizeof(struct step_records));
    scribble(w, 8192);
    w->text_bytes = odd_number();
    w->n_frames = odd_number();
    atomic_store(&w->state, 1 + below(3));
    if (below(2)) abort();
}

static void
talk(void)
{
    char text[3000];

    for (int i = 0; i < 50; i++) {
        scribble(text, sizeof text);
        if (below(2)) memcpy(text, "<3>", 3);
        if (write(2, text, 1 + below(sizeof text)) < 0) return;
    }
}

static void
numbers(void)
{
    for (int i = 0; i < 50; i++) {
        atomic_store(&ctl->hb_count, any());
        atomic_store(&ctl->phase_deadline_ns, (int64_t)any());
        atomic_store(&ctl->phase, odd_number());
        atomic_store(&ctl->stat_seq, odd_number());
        for (uint32_t k = 0; k < SHM_MAX_STATS; k++) atomic_store(&ctl->stat[k], any());
        serve(1);
    }
}

static void
leave(void)
{
    static const int codes[] = { 0, 1, 2, 70, 74, 99 };

    if (below(8) == 0) raise(SIGSTOP);
    if (below(2)) _exit(codes[below(ARRAY_LEN(codes))]);
    kill(getpid(), below(2) ? SIGSEGV : SIGTERM);
}

int
main(int argc, char **argv)
{
    static void (*const attacks[])(void) = { noise_in_the_ring,
                                             jumping_indices,
                                             torn_records,
                                             invalid_payloads,
                                             doorbell_misuse,
                                             give_fds,
                                             break_out,
                                             write_panic,
                                             talk,
                                             numbers,
                                             leave };
    struct heritage h;

    for (int i = 1; i < argc; i++) {
        const char *name = strncmp(argv[i], "--path=", 7) ? NULL : strrchr(argv[i], '/');

        if (!name || !strcmp(name, "/evil")) continue;
        strcpy(strrchr(argv[0], '/') + 1, "mock_worker"); /* shorter than this program's name */
        execv(argv[0], argv);
        _exit(126);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check(heritage_take(&h, NULL) == 0);
    check(channel_attach(&l, heritage_fd(&h, "d"), heritage_fd(&h, "w"),
                         heritage_fd(&h, "doorbell"), h.epoch, NULL) == 0);
    fd_channel = heritage_fd(&h, "fd_channel");
    ctl = shm_ctl(&l.w);
    check(getrandom(&chance, sizeof chance, 0) == sizeof chance);
    if (below(8)) say_ready(below(8) == 0);
    serve(below(4) ? below(20) : 0);
    for (uint32_t i = 1 + below(2); i > 0; i--) attacks[below(ARRAY_LEN(attacks))]();
    serve(20);
    _exit((int)below(3));
}
