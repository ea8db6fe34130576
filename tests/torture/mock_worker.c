/* mock_worker.c - a worker without a model, for kills: static, small, ready in 1 ms.
 *
 * It uses the rings like lagan-worker: one STEP per iteration for all its requests, one FINISH
 * each. A request's token at a position is a hash of its seed and the position (mock.h), so every
 * worker continues with the same tokens. Delivered tokens that lagand sends are checked against the
 * hash. It is built with failpoints: the test kills it from outside or at any point of the
 * protocol.
 */
#include "base/clock.h"
#include "base/rng.h"
#include "include/lagan_wire.h"
#include "ipc/fd_channel.h"
#include "ipc/stat.h"
#include "tests/plain_worker.h"
#include "tests/torture/mock.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

struct active {
    struct rec_submit s;
    uint32_t n; /* tokens generated, by previous workers too */
    bool used, poison, suspended;
};

static struct channel l;
static struct mock_board *board;
static struct stats stats;
static struct active active[MOCK_ROWS];
static char *whole; /* received part of a SUBMIT of several records */
static size_t n_whole;
static uint32_t own;                   /* index of this worker */
static uint32_t n_active, n_suspended; /* requests here */
static uint64_t n_steps, chance;
static const nsec IDLE = 200 * NSEC_MS;
static bool draining;

static void
finish(struct active *a, uint16_t reason)
{
    plain_finish(&l, &a->s, reason, a->n);
    a->used = false;
    n_active--;
    n_suspended -= a->suspended;
    atomic_store(&board->owner[a->s.seed % MOCK_OWNERS], 0);
}

static void
reject(const struct rec_submit *s, const char *why)
{
    size_t n = strlen(why);
    struct rec_reject *j = plain_text_buffer(&l, REC_REJECT,
                                             (uint32_t)(sizeof *j + ROUND_UP(n, (size_t)8)));

    *j = (struct rec_reject){ s->ledger_index, s->gen, LAGAN_E_INTERNAL, (uint16_t)n, 0 };
    memcpy(j + 1, why, n);
}

/* If the request was in a killed worker, records the time from the kill to its arrival here. */
static void
note_owner(const struct rec_submit *s)
{
    nsec now = clock_now(), killed;
    uint64_t before = atomic_exchange(&board->owner[s->seed % MOCK_OWNERS],
                                      (uint64_t)now * MOCK_WORKERS + own);

    if (s->n_done) atomic_fetch_add(&board->n_resumed, 1);
    killed = before ? atomic_load(&board->killed[before % MOCK_WORKERS]) : 0;
    if (!killed || killed < (nsec)(before / MOCK_WORKERS)) return;
    atomic_store(&board->wait_us[atomic_fetch_add(&board->n_waits, 1) % MOCK_WAITS],
                 (uint32_t)((now - killed) / NSEC_US));
}

/* Takes a complete SUBMIT with its tails. */
static void
take(const char *bytes)
{
    struct rec_submit s;
    const int32_t *prompt = (const int32_t *)(const void *)(bytes + sizeof s), *done;
    struct active *a = active;

    memcpy(&s, bytes, sizeof s);
    done = prompt + ROUND_UP(s.n_prompt, 2u) + ROUND_UP(s.n_decoder, 2u);
    for (uint32_t i = 0; i < s.n_done; i++) {
        if (done[i] == mock_token(s.seed, i)) continue;
        reject(&s, "delivered tokens differ from the generated ones");
        return;
    }
    if (s.done_text != s.n_done) {
        reject(&s, "delivered text does not match its tokens");
        return;
    }
    while (a < active + ARRAY_LEN(active) && a->used) a++;
    if (a == active + ARRAY_LEN(active)) {
        reject(&s, "no free slot");
        return;
    }
    *a = (struct active){ .s = s,
                          .n = s.n_done,
                          .used = true,
                          .poison = s.n_prompt && prompt[0] == MOCK_POISON,
                          .suspended = s.flags & SUBMIT_SUSPENDED };
    n_active++;
    n_suspended += a->suspended;
    note_owner(&s);
    stats.v[STAT_requests]++;
    if (a->n == s.max_tokens) finish(a, LAGAN_FINISH_LENGTH);
}

static void
submit(const struct ring_record *rec)
{
    char *more = realloc(whole, n_whole + rec->len);

    check(more);
    whole = more;
    memcpy(whole + n_whole, rec->data, rec->len);
    n_whole += rec->len;
    if (rec->flags & RING_MORE) return;
    n_whole = 0;
    take(whole);
}

static struct active *
active_of(const struct rec_notice *c)
{
    for (struct active *a = active; a < active + ARRAY_LEN(active); a++)
        if (a->used && a->s.ledger_index == c->ledger_index && a->s.gen == c->gen) return a;
    return NULL;
}

static void
cancel(const struct rec_notice *c)
{
    struct active *a = active_of(c);

    if (a) finish(a, c->flags ? (uint16_t)c->flags : LAGAN_FINISH_CANCELLED);
}

static void
set_suspended(const struct rec_notice *c)
{
    struct active *a = active_of(c);

    if (!a || a->suspended == c->flags) return;
    n_suspended += a->suspended ? UINT32_MAX : 1;
    a->suspended = c->flags;
}

static void
intake(void)
{
    struct ring_record rec;
    int n = 0, r;

    while ((r = ring_peek(&l.in, &rec)) > 0) {
        n++;
        if (rec.type == REC_SUBMIT) submit(&rec);
        if (rec.type == REC_CANCEL) cancel(rec.data);
        if (rec.type == REC_SUSPEND) set_suspended(rec.data);
        if (rec.type == REC_DRAIN) draining = true;
    }
    check(r == 0);
    if (!n) return;
    channel_release(&l);
}

/* Writes the requests of the step to the step trace before the step starts, for quarantine. */
static void
trace(void)
{
    struct step_trace *t = shm_trace(&l.w);
    uint64_t i = atomic_load(&t->n);
    struct step_entry *e = &t->entry[i % TRACE_ENTRIES];

    atomic_store(&t->n, i + 1);
    atomic_store(&e->seq, 2 * i + 1);
    e->step = ++n_steps;
    e->n_ids = 0;
    for (struct active *a = active; a < active + ARRAY_LEN(active); a++)
        if (a->used && !a->suspended && e->n_ids < TRACE_IDS) e->id[e->n_ids++] = a->s.id;
    atomic_store(&e->seq, 2 * i + 2);
}

/* Generates one token per request in one record, like the real worker. */
static void
step(void)
{
    uint32_t n = n_active - n_suspended;
    struct rec_step *s;
    struct rec_out *o;

    if (!n) return;
    trace();
    FP(step_planned);
    s = plain_text_buffer(&l, REC_STEP, (uint32_t)(sizeof *s + n * (sizeof *o + 8)));
    *s = (struct rec_step){ .step = n_steps, .n_ent = n };
    o = (struct rec_out *)(s + 1);
    for (struct active *a = active; a < active + ARRAY_LEN(active); a++) {
        int32_t t = mock_token(a->s.seed, a->n);
        char *tail = (char *)(o + 1);

        if (!a->used || a->suspended) continue;
        if (a->poison && a->n == MOCK_POISON_AT) abort();
        *o = (struct rec_out){ .ledger_index = a->s.ledger_index,
                               .gen = a->s.gen,
                               .n_tokens = 1,
                               .first = a->n,
                               .text_bytes = 1,
                               .text_first = a->n };
        memcpy(tail, &t, sizeof t);
        tail[sizeof t] = mock_letter(t);
        o = (struct rec_out *)(void *)(tail + 8);
        a->n++;
    }
    for (struct active *a = active; a < active + ARRAY_LEN(active); a++)
        if (a->used && a->n == a->s.max_tokens) finish(a, LAGAN_FINISH_LENGTH);
    atomic_store(&shm_trace(&l.w)->retired[0], n_steps);
    FP(step_emitted);
}

static void
map_board(void)
{
    int fd = open(getenv("LAGAN_FP"), O_RDWR | O_CLOEXEC);

    check(fd >= 0);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(board != MAP_FAILED);
    close(fd);
}

/* Closes the arenas of the previous worker. Returns true if "go" was received; *begin: "begin"
 * was. */
static bool
take_arenas(int fd_channel, bool *begin)
{
    struct fd_channel_note got;
    bool go = false;
    int old;

    while (fd_channel_take(fd_channel, &got, &old, NULL) == 1) {
        close(old);
        go |= !strcmp(got.name, "go");
        *begin |= !strcmp(got.name, "begin");
    }
    return go;
}

static void
stand_by(int fd_channel, bool begin)
{
    struct pollfd p[] = { { .fd = fd_channel, .events = POLLIN },
                          { .fd = l.doorbell.fd, .events = POLLIN } };
    struct shm_ctl *c = shm_ctl(&l.w);

    do {
        atomic_store(&c->phase, begin ? PHASE_STANDBY : PHASE_BEGUN);
        atomic_fetch_add(&c->hb_count, 1);
        poll(p, ARRAY_LEN(p), (int)(IDLE / NSEC_MS));
        if (doorbell_drain(&l.doorbell) == -EPIPE) exit(0);
    } while (!take_arenas(fd_channel, &begin));
}

/* Sends an arena of one page, so that descriptors travel and can be counted. */
static void
send_arena(int fd_channel, uint64_t epoch)
{
    struct fd_channel_note note = {
        .name = "weights", .bytes = 4096, .version = 1, .flags = FD_CHANNEL_COMPLETE
    };
    int fd = memfd_create("lagand:mock", MFD_CLOEXEC);

    check(fd >= 0 && ftruncate(fd, 4096) == 0);
    note.fingerprint[0] = epoch;
    check(fd_channel_give(fd_channel, &note, fd, NULL) == 0);
    close(fd);
}

int
main(int argc, char **argv)
{
    struct heritage h;
    struct shm_ctl *c;
    bool standby = false, begin = false;
    int fd_channel;

    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--inspect")) return 0; /* lagand --check accepts the model */
    FP(worker_main);
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "--worker=w%u", &own) == 1) check(own < MOCK_WORKERS);
        standby |= !strcmp(argv[i], "--as_standby");
    }
    map_board();
    c = plain_begin(&l, &h);
    FP(worker_attached);
    chance = h.epoch * 1000 + own;
    fd_channel = heritage_fd(&h, "fd_channel");
    if (!take_arenas(fd_channel, &begin) && standby) stand_by(fd_channel, begin);
    send_arena(fd_channel, h.epoch);
    FP(load_done);
    atomic_store(&board->pid[own], getpid());
    plain_ready(
        &l, "mock",
        (struct rec_ready){ .vocab = MOCK_VOCAB, .max_len = MOCK_MAX_LEN, .n_slots = MOCK_SLOTS });
    for (nsec due = 0; !draining || n_active;) {
        atomic_fetch_add(&c->hb_count, 1);
        intake();
        if (clock_now() >= due) {
            step();
            due = clock_now() + rng_below(&chance, 1 + atomic_load(&board->pace_us)) * NSEC_US;
        }
        stats.v[STAT_running] = n_active;
        stat_publish(c, &stats);
        channel_publish(&l);
        if (!plain_rest(&l, n_active > n_suspended ? MAX(due - clock_now(), (nsec)0) : IDLE))
            return 0;
    }
    return 0;
}
