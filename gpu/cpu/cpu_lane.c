/* cpu_lane.c - a lane of the CPU device: one queue of jobs (a ring) and the threads that execute
 * them; see cpu.h.
 *
 *     queueing thread        leader (thread 0)                     helpers (threads 1 ..)
 *     cpu_queue() -> ring -> takes a job, starts the parts ------> run their part, count down
 *                            runs part 0, waits for the count
 *                            lane.mark() job: stores done, then writes the eventfd
 *
 * The ring has one writer and one reader. A waiting thread polls for CPU_SPIN ns and then sleeps,
 * so that an idle lane uses no CPU time. cpu_lane_open() makes all allocations.
 */
#include "gpu/cpu/cpu_ops.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A number that threads wait on until it changes. Setting and sleeping are ordered as in Dekker's
 * algorithm: the setter stores the number and then reads sleepers; the waiter increments sleepers
 * and then reads the number. All four accesses are sequentially consistent, so that at least one of
 * the two threads sees the store of the other. */
struct gate {
    _Atomic uint32_t value, sleepers;
};

struct job {
    cpu_run run; /* NULL: the threads exit */
    uint32_t parts;
    _Alignas(CACHE_LINE) unsigned char args[CPU_ARGS];
};

struct worker {
    _Alignas(CACHE_LINE) struct gate n_jobs; /* counts the jobs in which this helper has a part */
    struct cpu_lane *lane;
    void *scratch;
    pthread_t thread;
    uint32_t index;
    bool started;
};

struct cpu_lane {
    struct lane lane;
    enum cpu_isa isa;
    /* n_threads: all threads; part: the threads that run jobs; the queueing thread sets it */
    uint32_t n_threads, part;
    int fd, channel;
    struct job *ring;
    struct worker *worker;
    const struct job *current; /* the running job; set by the leader before it wakes the helpers */
    /* Written by the queueing thread */
    _Alignas(CACHE_LINE) struct gate head;
    /* Written by the leader */
    _Alignas(CACHE_LINE) struct gate tail;
    struct gate marks;     /* incremented when done changes; other lanes wait on it */
    _Atomic uint64_t done; /* last mark; stored with release, loaded with acquire by lane.done() */
    /* Written by the threads */
    _Alignas(CACHE_LINE) struct gate pending; /* number of helpers that have not finished the job */
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

/* Waits until the value of the gate differs from old. */
static void
gate_wait(struct gate *g, uint32_t old)
{
    struct cpu_spin spin = { 0 };

    while (atomic_load_explicit(&g->value, memory_order_acquire) == old) {
        if (!cpu_spin_over(&spin)) continue;
        atomic_fetch_add(&g->sleepers, 1);
        while (atomic_load(&g->value) == old) futex(&g->value, FUTEX_WAIT, old);
        atomic_fetch_sub(&g->sleepers, 1);
        return;
    }
}

static void
run_part(struct worker *w, const struct job *j)
{
    j->run(j->args, w->index, j->parts, w->lane->isa, w->scratch);
}

static void *
helper(void *arg)
{
    struct worker *w = arg;
    struct cpu_lane *l = w->lane;

    for (uint32_t n = 0;; n++) {
        gate_wait(&w->n_jobs, n);
        if (!l->current->run) return NULL;
        run_part(w, l->current);
        /* Only the last helper wakes the leader, because the leader waits for all helpers. */
        if (atomic_fetch_sub(&l->pending.value, 1) == 1 && atomic_load(&l->pending.sleepers))
            futex(&l->pending.value, FUTEX_WAKE, INT_MAX);
    }
}

static void
wake_helpers(struct cpu_lane *l, const struct job *j, uint32_t n_helpers)
{
    l->current = j;
    atomic_store(&l->pending.value, n_helpers);
    for (uint32_t i = 1; i <= n_helpers; i++) {
        struct gate *gate = &l->worker[i].n_jobs;

        gate_set(gate, atomic_load_explicit(&gate->value, memory_order_relaxed) + 1);
    }
}

static void
run_all(struct cpu_lane *l, const struct job *j)
{
    uint32_t left;

    if (j->parts > 1) wake_helpers(l, j, j->parts - 1);
    run_part(&l->worker[0], j);
    if (j->parts == 1) return;
    while ((left = atomic_load(&l->pending.value)) != 0) gate_wait(&l->pending, left);
}

struct step_args {
    struct cpu_lane *lane;
    uint64_t step;
};

CPU_JOB(mark)
{
    const struct step_args *a = args;
    struct cpu_lane *l = a->lane;
    uint64_t one = 1;
    ssize_t n;

    /* The leader loaded `pending` with acquire: this store also publishes the helpers' writes. */
    atomic_store_explicit(&l->done, a->step, memory_order_release);
    gate_set(&l->marks, atomic_load_explicit(&l->marks.value, memory_order_relaxed) + 1);
    n = write(l->fd, &one, sizeof one);
    (void)n; /* -EAGAIN is no error: with its counter at the maximum the eventfd is readable */
}

/* Job of lane.after(): waits until the other lane, a->lane, has reached the mark. */
CPU_JOB(wait_for)
{
    const struct step_args *a = args;

    for (;;) {
        uint32_t seen = atomic_load(&a->lane->marks.value);

        if (cpu_lane_done(&a->lane->lane) >= a->step) return;
        gate_wait(&a->lane->marks, seen);
    }
}

static void *
leader(void *arg)
{
    struct cpu_lane *l = ((struct worker *)arg)->lane;

    for (uint32_t tail = 0;; tail++) {
        const struct job *j = &l->ring[tail % CPU_QUEUE];

        gate_wait(&l->head, tail);
        if (!j->run) {
            wake_helpers(l, j, l->n_threads - 1);
            return NULL;
        }
        run_all(l, j);
        gate_set(&l->tail, tail + 1);
    }
}

/* Returns the next free entry of the ring; blocks while the ring is full. */
static struct job *
reserve(struct cpu_lane *l)
{
    uint32_t head = atomic_load_explicit(&l->head.value, memory_order_relaxed), tail;

    while (head - (tail = atomic_load_explicit(&l->tail.value, memory_order_acquire)) == CPU_QUEUE)
        gate_wait(&l->tail, tail);
    return &l->ring[head % CPU_QUEUE];
}

static void
commit(struct cpu_lane *l)
{
    gate_set(&l->head, atomic_load_explicit(&l->head.value, memory_order_relaxed) + 1);
}

int
cpu_queue(struct lane *lane, cpu_run run, const void *args, size_t bytes, uint32_t max_parts)
{
    struct cpu_lane *l = (struct cpu_lane *)lane;
    struct job *j = reserve(l);

    check(bytes <= CPU_ARGS);
    j->run = run;
    j->parts = MAX(MIN(max_parts, l->part), 1u);
    memcpy(j->args, args, bytes);
    commit(l);
    return 0;
}

int
cpu_lane_part(struct lane *lane, uint32_t first, uint32_t n)
{
    (void)first; /* unused, because threads are not pinned to cores: the kernel places them */
    ((struct cpu_lane *)lane)->part = n;
    return 0;
}

int
cpu_lane_mark(struct lane *lane, uint64_t step)
{
    struct step_args a = { (struct cpu_lane *)lane, step };

    return cpu_queue(lane, mark, &a, sizeof a, 1);
}

uint64_t
cpu_lane_done(const struct lane *lane)
{
    return atomic_load_explicit(&((const struct cpu_lane *)lane)->done, memory_order_acquire);
}

int
cpu_lane_after(struct lane *lane, const struct lane *other, uint64_t step)
{
    /* The cast drops const because the waiter writes the gate's sleeper count. */
    struct step_args a = { (struct cpu_lane *)(uintptr_t)other, step };

    return cpu_queue(lane, wait_for, &a, sizeof a, 1);
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

/* Starts a thread that handles only the signals that it raises itself (SIGSEGV and so on); all
 * other signals are blocked, because the main thread handles them. */
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
        reserve(l)->run = NULL;
        commit(l);
    } else if (l->worker) { /* cpu_lane_open() failed: there are helpers, but no leader */
        l->ring[0].run = NULL;
        wake_helpers(l, &l->ring[0], l->n_threads - 1);
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

    if (!l) return err_set(e, -ENOMEM, "cannot open a lane of %u threads: no memory", units);
    memset(l, 0, sizeof *l);
    l->lane.gpu = g;
    l->isa = ((struct cpu *)g)->isa;
    l->n_threads = l->part = units;
    l->fd = -1;
    l->channel = cpu_collective_join(((struct cpu *)g)->group);
    if (l->channel < 0)
        return err_set(e, l->channel,
                       "cannot open another lane: the rank group has no free place for its "
                       "collectives");
    l->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->fd < 0) return err_set(e, -errno, "cannot open the eventfd of a lane: %m");
    l->ring = aligned_alloc(CACHE_LINE, CPU_QUEUE * sizeof *l->ring);
    if (!l->ring) return err_set(e, -ENOMEM, "cannot allocate the job queue of a lane: no memory");
    l->worker = aligned_alloc(CACHE_LINE, units * sizeof *l->worker);
    if (!l->worker)
        return err_set(e, -ENOMEM, "cannot open a lane of %u threads: no memory", units);
    memset(l->worker, 0, units * sizeof *l->worker);
    for (uint32_t i = units; i-- > 0;) { /* the leader last, after all of its helpers exist */
        struct worker *w = &l->worker[i];

        w->lane = l;
        w->index = i;
        w->scratch = aligned_alloc(CACHE_LINE, CPU_SCRATCH);
        if (!w->scratch)
            return err_set(e, -ENOMEM, "cannot allocate the scratch memory of a lane: no memory");
        r = start(w, i ? helper : leader);
        if (r < 0) return err_set(e, r, "cannot start thread %u of a lane: %s", i, strerror(-r));
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
