/* cpu_lane.c - a lane of the CPU device: one queue, and the threads that work it off: cpu.h.
 *
 *     engine thread          leader (thread 0)                     helpers (threads 1 ..)
 *     cpu_queue() -> ring -> takes a job, hands parts out -------> run their part, count down
 *                            runs part 0, waits for the count
 *                            marks: done word, then the eventfd
 *
 * The ring has one writer and one reader. Whoever waits spins SPIN ns and then sleeps on a futex,
 * so an idle lane burns nothing. Everything is allocated by cpu_lane_open().
 */
#include "gpu/cpu/cpu_ops.h"

#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* SPIN: longer than the gap between two ops of one step, shorter than anybody pays for. */
enum { QUEUE = CPU_QUEUE, SPIN = 20000 };

/* A word that threads wait on. Setting and sleeping meet as in Dekker's algorithm: the setter
 * stores the word and then reads sleepers, the sleeper counts itself and then reads the word; all
 * four sequentially consistent, so one of them sees the other. */
struct gate {
    _Atomic uint32_t value, sleepers;
};

enum kind { JOB_RUN, JOB_MARK, JOB_AFTER, JOB_END };
struct job {
    enum kind kind;
    uint32_t parts;
    cpu_run segment;
    uint64_t step;                /* MARK, AFTER */
    const struct cpu_lane *other; /* AFTER */
    _Alignas(CACHE_LINE) unsigned char args[CPU_ARGS];
};

struct worker {
    _Alignas(CACHE_LINE) struct gate turn; /* helpers: counts the jobs it was given a part of */
    struct cpu_lane *lane;
    void *scratch;
    pthread_t thread;
    uint32_t index;
    bool started;
};

struct cpu_lane {
    struct lane lane;
    enum cpu_isa isa;
    uint32_t n_threads, part; /* part: so many of them work, the engine thread's word */
    int fd, channel;
    struct job *ring;
    struct worker *worker;
    const struct job *current; /* leader's word for the helpers: set before their turn */
    /* Written by the engine thread */
    _Alignas(CACHE_LINE) struct gate head;
    /* Written by the leader */
    _Alignas(CACHE_LINE) struct gate tail;
    struct gate marks;     /* goes up with done, for lanes that wait */
    _Atomic uint64_t done; /* stored with release, loaded with acquire by lane.done() */
    /* Written by the threads */
    _Alignas(CACHE_LINE) struct gate pending; /* helpers still at it */
    _Atomic int error;
};

static void
futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void
gate_set(struct gate *g, uint32_t value)
{
    atomic_store(&g->value, value);
    if (atomic_load(&g->sleepers)) futex(&g->value, FUTEX_WAKE, INT_MAX);
}

/* Until the value is another than old. */
static void
gate_wait(struct gate *g, uint32_t old)
{
    nsec until = 0;

    for (unsigned n = 0; atomic_load_explicit(&g->value, memory_order_acquire) == old; n++) {
#ifdef __x86_64__
        __builtin_ia32_pause();
#endif
        if (n % 64 != 63) continue;
        if (!until) until = clock_now() + SPIN;
        if (clock_now() < until) continue;
        atomic_fetch_add(&g->sleepers, 1);
        while (atomic_load(&g->value) == old) futex(&g->value, FUTEX_WAIT, old);
        atomic_fetch_sub(&g->sleepers, 1);
        return;
    }
}

static void
run_part(struct worker *w, const struct job *j)
{
    j->segment(j->args, w->index, j->parts, w->lane->isa, w->scratch);
}

static void *
helper(void *arg)
{
    struct worker *w = arg;
    struct cpu_lane *l = w->lane;

    for (uint32_t turn = 0;; turn++) {
        gate_wait(&w->turn, turn);
        if (l->current->kind == JOB_END) return NULL;
        run_part(w, l->current);
        /* Only the last one's word matters to the leader. */
        if (atomic_fetch_sub(&l->pending.value, 1) == 1 && atomic_load(&l->pending.sleepers))
            futex(&l->pending.value, FUTEX_WAKE, INT_MAX);
    }
}

static void
hand_out(struct cpu_lane *l, const struct job *j, uint32_t n_helpers)
{
    l->current = j;
    atomic_store(&l->pending.value, n_helpers);
    for (uint32_t i = 1; i <= n_helpers; i++) {
        struct gate *turn = &l->worker[i].turn;

        gate_set(turn, atomic_load_explicit(&turn->value, memory_order_relaxed) + 1);
    }
}

static void
run_all(struct cpu_lane *l, const struct job *j)
{
    uint32_t left;

    if (j->parts > 1) hand_out(l, j, j->parts - 1);
    run_part(&l->worker[0], j);
    if (j->parts == 1) return;
    while ((left = atomic_load(&l->pending.value)) != 0) gate_wait(&l->pending, left);
}

static void
mark(struct cpu_lane *l, uint64_t step)
{
    uint64_t one = 1;
    ssize_t n;

    /* Everything the threads wrote is ours by now: their count-down, our acquire. */
    atomic_store_explicit(&l->done, step, memory_order_release);
    gate_set(&l->marks, atomic_load_explicit(&l->marks.value, memory_order_relaxed) + 1);
    n = write(l->fd, &one, sizeof one);
    (void)n; /* -EAGAIN: nobody read 2^64 marks; it is readable */
}

static void
wait_for(const struct cpu_lane *other, uint64_t step)
{
    /* The gate counts its sleepers, which is the waiter's to write. */
    struct gate *marks = (struct gate *)(uintptr_t)&other->marks;

    for (;;) {
        uint32_t seen = atomic_load(&marks->value);

        if (atomic_load_explicit(&other->done, memory_order_acquire) >= step) return;
        gate_wait(marks, seen);
    }
}

static void *
leader(void *arg)
{
    struct cpu_lane *l = ((struct worker *)arg)->lane;

    for (uint32_t tail = 0;; tail++) {
        const struct job *j = &l->ring[tail % QUEUE];

        gate_wait(&l->head, tail);
        switch (j->kind) {
        case JOB_RUN:
            run_all(l, j);
            break;
        case JOB_MARK:
            mark(l, j->step);
            break;
        case JOB_AFTER:
            wait_for(j->other, j->step);
            break;
        case JOB_END:
            hand_out(l, j, l->n_threads - 1);
            return NULL;
        }
        gate_set(&l->tail, tail + 1);
    }
}

/* The next free place of the ring; waits while there is none. */
static struct job *
reserve(struct cpu_lane *l)
{
    uint32_t head = atomic_load_explicit(&l->head.value, memory_order_relaxed), tail;

    while (head - (tail = atomic_load_explicit(&l->tail.value, memory_order_acquire)) == QUEUE)
        gate_wait(&l->tail, tail);
    return &l->ring[head % QUEUE];
}

static void
commit(struct cpu_lane *l)
{
    gate_set(&l->head, atomic_load_explicit(&l->head.value, memory_order_relaxed) + 1);
}

int
cpu_queue(struct lane *lane, cpu_run segment, const void *args, size_t bytes, uint32_t max_parts)
{
    struct cpu_lane *l = (struct cpu_lane *)lane;
    struct job *j = reserve(l);

    check(bytes <= CPU_ARGS);
    j->kind = JOB_RUN;
    j->segment = segment;
    j->parts = MAX(MIN(max_parts, l->part), 1u);
    memcpy(j->args, args, bytes);
    commit(l);
    return 0;
}

int
cpu_lane_part(struct lane *lane, uint32_t first, uint32_t n)
{
    (void)first; /* threads are not pinned: the kernel finds cores for those that work */
    ((struct cpu_lane *)lane)->part = n;
    return 0;
}

int
cpu_lane_mark(struct lane *lane, uint64_t step)
{
    struct cpu_lane *l = (struct cpu_lane *)lane;
    struct job *j = reserve(l);

    j->kind = JOB_MARK;
    j->step = step;
    commit(l);
    return 0;
}

uint64_t
cpu_lane_done(const struct lane *lane)
{
    return atomic_load_explicit(&((const struct cpu_lane *)lane)->done, memory_order_acquire);
}

int
cpu_lane_after(struct lane *lane, const struct lane *other, uint64_t step)
{
    struct cpu_lane *l = (struct cpu_lane *)lane;
    struct job *j = reserve(l);

    j->kind = JOB_AFTER;
    j->step = step;
    j->other = (const struct cpu_lane *)other;
    commit(l);
    return 0;
}

int
cpu_lane_fd(const struct lane *lane)
{
    return ((const struct cpu_lane *)lane)->fd;
}

int
cpu_lane_error(const struct lane *lane)
{
    return atomic_load_explicit(&((const struct cpu_lane *)lane)->error, memory_order_relaxed);
}

int
cpu_lane_channel(const struct lane *lane)
{
    return ((const struct cpu_lane *)lane)->channel;
}

void
cpu_lane_fail(struct lane *lane)
{
    atomic_store_explicit(&((struct cpu_lane *)lane)->error, -EIO, memory_order_relaxed);
}

/* Signals are the engine thread's, but for those that a thread can only send itself. */
static int
start(struct worker *w, void *(*body)(void *))
{
    static const int own[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS };
    sigset_t set, before;
    int r;

    sigfillset(&set);
    for (size_t i = 0; i < ARRAY_LEN(own); i++) sigdelset(&set, own[i]);
    pthread_sigmask(SIG_SETMASK, &set, &before);
    r = pthread_create(&w->thread, NULL, body, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->started = r == 0;
    return -r;
}

static void
end(struct cpu_lane *l)
{
    if (l->worker && l->worker[0].started) {
        reserve(l)->kind = JOB_END;
        commit(l);
    } else if (l->worker) { /* half open: helpers, but nobody to lead them */
        l->ring[0].kind = JOB_END;
        hand_out(l, &l->ring[0], l->n_threads - 1);
    }
    for (uint32_t i = 0; l->worker && i < l->n_threads; i++) {
        if (l->worker[i].started) pthread_join(l->worker[i].thread, NULL);
        free(l->worker[i].scratch);
    }
    if (l->fd >= 0) close(l->fd);
    if (l->channel >= 0) cpu_collective_leave(((struct cpu *)l->lane.gpu)->group, l->channel);
    free(l->worker);
    free(l->ring);
    free(l);
}
CLEAN_FUNC(struct cpu_lane, end)

int
cpu_lane_open(struct gpu *g, uint32_t units, struct lane **ret, struct err *e)
{
    CLEAN(end_at) struct cpu_lane *l = aligned_alloc(CACHE_LINE, sizeof *l);
    int r;

    if (!l) return err_set(e, -ENOMEM, "a lane of %u threads: no memory", units);
    memset(l, 0, sizeof *l);
    l->lane.gpu = g;
    l->isa = ((struct cpu *)g)->isa;
    l->n_threads = l->part = units;
    l->fd = -1;
    l->channel = cpu_collective_join(((struct cpu *)g)->group);
    if (l->channel < 0) return err_set(e, l->channel, "a lane more than a group's ranks share");
    l->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->fd < 0) return err_set(e, -errno, "a lane's eventfd: %m");
    l->ring = aligned_alloc(CACHE_LINE, QUEUE * sizeof *l->ring);
    if (!l->ring) return err_set(e, -ENOMEM, "a lane's queue: no memory");
    l->worker = aligned_alloc(CACHE_LINE, units * sizeof *l->worker);
    if (!l->worker) return err_set(e, -ENOMEM, "a lane of %u threads: no memory", units);
    memset(l->worker, 0, units * sizeof *l->worker);
    for (uint32_t i = units; i-- > 0;) { /* the leader last */
        struct worker *w = &l->worker[i];

        w->lane = l;
        w->index = i;
        w->scratch = aligned_alloc(CACHE_LINE, CPU_SCRATCH);
        if (!w->scratch) return err_set(e, -ENOMEM, "a lane's work space: no memory");
        r = start(w, i ? helper : leader);
        if (r < 0) return err_set(e, r, "thread %u of a lane: %s", i, strerror(-r));
        pthread_setname_np(w->thread, i ? "lane-helper" : "lane");
    }
    *ret = &TAKE(l)->lane;
    return 0;
}

void
cpu_lane_close(struct lane *lane)
{
    if (lane) end((struct cpu_lane *)lane);
}
