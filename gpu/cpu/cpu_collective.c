/* cpu_collective.c - see cpu_collective.h. */
#include "gpu/cpu/cpu_collective.h"

#include "gpu/cpu/cpu_ops.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* CHANNELS: most lanes that a process may have open: one of the loader and those of the executor.
 * SLOT: floats of one slot, which are the most that a rank sends in one exchange. */
enum { CHANNELS = 8, SLOT = 32 << 10 };

/* The memory of one rank in a channel. */
struct place {
    _Alignas(CACHE_LINE) _Atomic uint32_t round;
    _Alignas(CACHE_LINE) float slot[2][SLOT];
};
struct shared {
    struct place place[CHANNELS][GPU_MAX_RANKS];
};
_Static_assert(sizeof(struct shared) <= GPU_GROUP_BYTES, "GPU_GROUP_BYTES is too small");

struct cpu_collective {
    uint32_t rank, ranks;
    struct shared *shared;
    /* round number of this rank; only the lane of the channel writes it */
    uint32_t round[CHANNELS];
    bool taken[CHANNELS];
};

struct cpu_exchange {
    struct cpu_collective *g;
    int channel;
    struct tensor x, out; /* tensors of all_reduce and all_gather */
    struct sample s;      /* argument of cpu_all_same() */
};
_Static_assert(sizeof(struct cpu_exchange) <= CPU_ARGS, "an exchange's arguments fit a job");

int
cpu_collective_open(struct cpu_collective **ret, uint32_t rank, uint32_t ranks, int fd,
                    struct err *e)
{
    struct cpu_collective *g;
    void *p;

    *ret = NULL;
    if (ranks == 1) return 0;
    TRY(rank_memory_map(&p, sizeof(struct shared), ranks, fd, e));
    g = calloc(1, sizeof *g);
    if (!g) {
        munmap(p, sizeof(struct shared));
        return err_set(e, -ENOMEM, "cannot allocate the collectives of %u ranks: no memory", ranks);
    }
    *g = (struct cpu_collective){ .rank = rank, .ranks = ranks, .shared = p };
    *ret = g;
    return 0;
}

struct cpu_collective *
cpu_collective_close(struct cpu_collective *g)
{
    if (!g) return NULL;
    munmap(g->shared, sizeof *g->shared);
    free(g);
    return NULL;
}

int
cpu_collective_join(struct cpu_collective *g)
{
    for (int i = 0; g && i < CHANNELS; i++) {
        if (g->taken[i]) continue;
        g->taken[i] = true;
        return i;
    }
    return g ? -EAGAIN : 0;
}

void
cpu_collective_leave(struct cpu_collective *g, int channel)
{
    if (g) g->taken[channel] = false;
}

static void
futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    syscall(SYS_futex, word, op, value, NULL, NULL, 0);
}

/* Waits until the round number of another rank has reached `ours` (compared modulo 2^32). */
static void
wait_for(_Atomic uint32_t *round, uint32_t ours)
{
    struct cpu_spin spin = { 0 };
    uint32_t seen;

    while ((seen = atomic_load_explicit(round, memory_order_acquire)) - ours > INT_MAX)
        if (cpu_spin_over(&spin)) futex(round, FUTEX_WAIT, seen);
}

static float *
slot_of(const struct cpu_collective *g, int channel, uint32_t rank)
{
    return g->shared->place[channel][rank].slot[g->round[channel] % 2];
}

/* Publishes the slot of this rank and waits until all ranks have published theirs. */
static void
post_and_wait(const struct cpu_collective *g, int channel)
{
    struct place *place = g->shared->place[channel];
    uint32_t round = g->round[channel] + 1;

    atomic_store_explicit(&place[g->rank].round, round, memory_order_release);
    futex(&place[g->rank].round, FUTEX_WAKE, INT_MAX);
    for (uint32_t r = 0; r < g->ranks; r++)
        if (r != g->rank) wait_for(&place[r].round, round);
}

static void
copy_rows(float *to, size_t to_stride, const float *from, size_t from_stride, uint32_t rows,
          uint32_t cols)
{
    for (uint32_t i = 0; i < rows; i++)
        memcpy(to + i * to_stride, from + i * from_stride, cols * sizeof *to);
}

static void
exchange_and_add(struct cpu_collective *g, int channel, float *x, size_t stride, uint32_t rows,
                 uint32_t cols)
{
    copy_rows(slot_of(g, channel, g->rank), cols, x, stride, rows, cols);
    post_and_wait(g, channel);
    copy_rows(x, stride, slot_of(g, channel, 0), cols, rows, cols);
    for (uint32_t r = 1; r < g->ranks; r++) {
        const float *part = slot_of(g, channel, r);

        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < cols; j++) x[i * stride + j] += part[(size_t)i * cols + j];
    }
    g->round[channel]++;
}

CPU_JOB(run_reduce)
{
    const struct cpu_exchange *a = args;
    uint32_t cols = MIN(a->x.dim[1], (uint32_t)SLOT), rows = SLOT / cols;
    float *x = a->x.data;

    for (uint32_t i = 0; i < a->x.dim[0]; i += rows)
        for (uint32_t j = 0; j < a->x.dim[1]; j += cols)
            exchange_and_add(a->g, a->channel, x + (size_t)i * a->x.stride + j, a->x.stride,
                             MIN(rows, a->x.dim[0] - i), MIN(cols, a->x.dim[1] - j));
}

/* One exchange of all_gather: sends rows [row, row + rows), columns [col, col + cols) of this
 * rank's x and stores the same part of every rank's x in out. A narrower x sends fewer columns. */
static void
exchange_and_gather(const struct cpu_exchange *a, uint32_t row, uint32_t rows, uint32_t col,
                    uint32_t cols)
{
    struct cpu_collective *g = a->g;
    const float *x = (const float *)a->x.data + (size_t)row * a->x.stride;
    float *out = (float *)a->out.data + (size_t)row * a->out.stride;

    if (col < a->x.dim[1])
        copy_rows(slot_of(g, a->channel, g->rank), cols, x + col, a->x.stride, rows,
                  MIN(cols, a->x.dim[1] - col));
    post_and_wait(g, a->channel);
    for (uint32_t r = 0; r < g->ranks; r++) {
        uint32_t first = cpu_first(a->out.dim[1], r, g->ranks);
        uint32_t end = cpu_first(a->out.dim[1], r + 1, g->ranks);

        if (first + col < end)
            copy_rows(out + first + col, a->out.stride, slot_of(g, a->channel, r), cols, rows,
                      MIN(cols, end - first - col));
    }
    g->round[a->channel]++;
}

CPU_JOB(run_gather)
{
    const struct cpu_exchange *a = args;
    uint32_t widest = CEIL_DIV(a->out.dim[1], a->g->ranks);
    uint32_t cols = MIN(widest, (uint32_t)SLOT), rows = SLOT / cols;

    for (uint32_t i = 0; i < a->out.dim[0]; i += rows)
        for (uint32_t j = 0; j < widest; j += cols)
            exchange_and_gather(a, i, MIN(rows, a->out.dim[0] - i), j, cols);
}

CPU_JOB(run_same)
{
    const struct cpu_exchange *a = args;
    float *mine;

    for (uint32_t i = 0, n; i < a->s.n; i += n, a->g->round[a->channel]++) {
        n = MIN(a->s.n - i, (uint32_t)SLOT);
        mine = slot_of(a->g, a->channel, a->g->rank);
        memcpy(mine, a->s.token + i, n * sizeof *mine);
        for (uint32_t j = 0; j < n; j++)
            if (a->s.row[i + j].beam) mine[j] = 0;
        post_and_wait(a->g, a->channel);
        for (uint32_t r = 0; r < a->g->ranks; r++)
            check(!memcmp(mine, slot_of(a->g, a->channel, r), n * sizeof *mine));
    }
}

static int
queue(struct lane *l, cpu_run run, struct cpu_exchange a)
{
    a.g = ((struct cpu *)l->gpu)->group;
    a.channel = cpu_lane_channel(l);
    return cpu_queue(l, run, &a, sizeof a, 1);
}

int
cpu_all_reduce(struct lane *l, struct tensor x)
{
    return queue(l, run_reduce, (struct cpu_exchange){ .x = x });
}

int
cpu_all_gather(struct lane *l, struct tensor out, struct tensor x)
{
    return queue(l, run_gather, (struct cpu_exchange){ .x = x, .out = out });
}

int
cpu_all_same(struct lane *l, const struct sample *s)
{
    return queue(l, run_same, (struct cpu_exchange){ .s = *s });
}
