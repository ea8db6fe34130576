/* failpoint.c - see failpoint.h. Linked only into the programs of tests/torture.
 *
 * failpoint() uses only atomics and one system call, and struct fp_board is mapped before main(),
 * because some failpoints are in signal handlers and between vfork() and exec. */
#include "base/failpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct fp_board *board;
static enum fp_side side;

static void __attribute__((constructor)) find_board(void)
{
    const char *path = getenv("LAGAN_FP");
    void *at;
    int fd;

    if (!path) return;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) _exit(127);
    at = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) _exit(127);
    side = getenv("LAGAN_EPOCH") ? FP_WORKER : FP_LAGAND;
    board = at;
}

/* Returns true if this pass is the one that the test chose; true in one process only. */
static bool
due(struct fp_slot *s)
{
    uint32_t left = atomic_load_explicit(&s->left, memory_order_acquire);

    while (left) {
        if (atomic_compare_exchange_weak(&s->left, &left, left - 1)) return left == 1;
    }
    return false;
}

static void
record_iteration(void)
{
    static int64_t before;
    struct timespec t;
    int64_t now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    now = t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
    if (before && now - before > atomic_load(&board->longest_iteration))
        atomic_store(&board->longest_iteration, now - before);
    before = now;
}

bool
failpoint_inject(enum failpoint p)
{
    const struct timespec delay = { .tv_nsec = 20000000 };
    struct fp_slot *s;

    if (!board) return false;
    if (p == FP_loop_done) record_iteration();
    s = &board->slot[side][p];
    atomic_fetch_add_explicit(&s->hits, 1, memory_order_relaxed);
    if (!due(s)) return false;
    atomic_fetch_add_explicit(&s->fired, 1, memory_order_release);
    switch ((enum fp_action)atomic_load_explicit(&s->action, memory_order_relaxed)) {
    case FP_KILL:
        /* Not getpid(), which may return the pid of the parent in a child of vfork(). */
        kill((pid_t)syscall(SYS_getpid), SIGKILL);
        for (;;) sigsuspend(&(sigset_t){ 0 });
    case FP_ABORT:
        abort();
    case FP_STOP:
        kill((pid_t)syscall(SYS_getpid), SIGSTOP);
        return false;
    case FP_EXIT:
        _exit(FP_EXIT_STATUS);
    case FP_DELAY:
        nanosleep(&delay, NULL);
        return false;
    case FP_HOLD:
        while (atomic_load_explicit(&s->action, memory_order_relaxed) == FP_HOLD)
            nanosleep(&delay, NULL);
        return false;
    case FP_ACTIONS:
        break;
    case FP_INJECT:
        return true;
    }
    return false;
}

void
failpoint(enum failpoint p)
{
    (void)failpoint_inject(p);
}

uint32_t
failpoint_ring(int w)
{
    return board ? atomic_load(&board->ring_log2[w]) : 0;
}
