/* exec_partition.c - makes, measures and changes the partitions: the device units that each lane
 * runs on. A "part" is the range of units of one lane in a partition.
 *
 * The measurement before the first step runs one lane while the other is idle and gives a first
 * estimate. The partition controller learns from real steps how lanes slow each other down.
 */
#include "base/clock.h"
#include "worker/exec/exec_internal.h"

#include <time.h>

_Static_assert((int)MAX_PARTITIONS == GRAPHS_MAX_PARTITIONS &&
                   MAX_PARTITIONS - 1 <= (int)GPU_PARTITIONS,
               "graphs and the device have a place for each partition");

/* READ: bytes of weights that a measurement of bandwidth reads, in at most PASSES passes: much more
 * than the caches of the device hold, and long compared with the latency of detecting the end.
 * ROWS: rows of the measurement of compute. TRIALS: runs; the fastest one is used, because the
 * previous worker may still be running. */
enum { READ = 1 << 30, PASSES = 8, ROWS = 2048, TRIALS = 3 };

static const struct exec_part whole = { 0, 0 };

int
exec_partition_take(struct exec *x, struct exec_lane *l, const struct exec_part *want)
{
    if (want->n == l->part.n && want->first == l->part.first) return 0;
    TRY(x->op->lane.part(l->lane, want->first, want->n ? want->n : l->units));
    l->part = *want;
    return 0;
}

/* Moves every lane to its part, which makes the driver create it, then back to all units. */
static int
create_parts(struct exec *x, const struct exec_part part[MAX_LANES])
{
    int r = 0;

    for (unsigned i = 0; i < x->c.n_lanes && r == 0; i++)
        r = exec_partition_take(x, &x->lane[i], &part[i]);
    for (unsigned i = 0; i < x->c.n_lanes; i++) {
        int back = exec_partition_take(x, &x->lane[i], &whole);

        if (r == 0) r = back;
    }
    return r;
}

/* ---- measurement ---- */

/* Matmuls that a measurement runs: all with 1 row (bandwidth), the largest with many (compute). */
struct trial {
    struct matmul list[MAX_MATMULS];
    uint32_t n, largest, rows;
    uint64_t bytes; /* bytes of all weights in list */
    uint32_t passes;
};

static uint64_t
elements(const struct tensor *w)
{
    return (uint64_t)w->dim[0] * w->dim[1];
}

static struct trial
find_trial(const struct exec *x, const struct exec_lane *l)
{
    struct trial t = { .rows = MIN(x->scratch_rows, (uint32_t)ROWS) };
    struct matmul list[MAX_MATMULS];
    uint32_t n = model_matmuls(x->m, list);

    for (uint32_t i = 0; i < n; i++) {
        struct tensor from, to;

        if (!matmul_scratch(l, &list[i], 1, &from, &to)) continue;
        t.list[t.n] = list[i];
        t.bytes += dtype_bytes(list[i].w.dtype, elements(&list[i].w));
        if (t.list[t.largest].head ||
            (!list[i].head && elements(&list[i].w) > elements(&t.list[t.largest].w)))
            t.largest = t.n;
        t.n++;
    }
    t.passes = (uint32_t)MIN(CEIL_DIV((uint64_t)READ, MAX(t.bytes, (uint64_t)1)), (uint64_t)PASSES);
    return t;
}

static int
queue_one(struct exec *x, struct exec_lane *l, const struct matmul *m, uint32_t rows)
{
    struct tensor from, to;

    check(matmul_scratch(l, m, rows, &from, &to));
    return x->op->matmul(l->lane, to, from, m->w, NO_TENSOR, 0);
}

/* Measures in seconds the best time of the largest matmul with t->rows rows (compute), or of all
 * matmuls with 1 row (bandwidth), after one run that is not counted. */
static int
measure(struct exec *x, struct exec_lane *l, const struct trial *t, bool compute, double *ret)
{
    uint32_t n = compute ? 1 : t->n * t->passes;
    nsec best = INT64_MAX;

    for (int i = 0; i <= TRIALS; i++) {
        nsec since = clock_now();

        for (uint32_t k = 0; k < n; k++)
            TRY(queue_one(x, l, &t->list[compute ? t->largest : k % t->n], compute ? t->rows : 1));
        TRY(x->op->lane.mark(l->lane, 1));
        TRY(gpu_wait(l->lane, 1, 1));
        if (i) best = MIN(best, clock_now() - since);
        TRY(wait_until_idle(x, l));
    }
    *ret = (double)best / NSEC_S;
    return 0;
}

static int
measure_part(struct exec *x, unsigned partition, unsigned lane)
{
    struct exec_lane *l = &x->lane[lane];
    struct exec_rate *rate = &x->rate[partition][lane];
    const struct trial t = find_trial(x, l);
    const struct matmul *m = &t.list[t.largest];
    struct tensor from, to;
    double s;

    if (t.bytes == 0 || m->head || !matmul_scratch(l, m, t.rows, &from, &to)) return 0;
    TRY(exec_partition_take(x, l, &x->part[partition][lane]));
    TRY(x->op->mem.fill_random(l->lane, from, /* seed= */ 1, 0, 0, 1));
    TRY(measure(x, l, &t, /* compute= */ false, &s));
    rate->read = t.passes * (double)t.bytes / s;
    TRY(measure(x, l, &t, /* compute= */ true, &s));
    rate->compute = 2. * t.rows * (double)elements(&m->w) / s;
    return exec_partition_take(x, l, &whole);
}

int
exec_partition_open(struct exec *x)
{
    uint64_t before, after, own, total;
    nsec since = clock_now();
    bool known;

    if (x->c.n_partitions < 2) return 0;
    check(x->c.n_partitions <= MAX_PARTITIONS);
    memcpy(x->part, x->c.part, sizeof x->part);
    known = gpu_memory(x->gpu, &before, &own, &total) == 0;
    for (unsigned r = 1; r < x->c.n_partitions; r++) TRY(create_parts(x, x->part[r]));
    if (known && gpu_memory(x->gpu, &after, &own, &total) == 0 && before > after)
        x->divided.bytes = before - after;
    x->divided.made = clock_now() - since;
    if (!x->c.measure) return 0;
    since = clock_now();
    TRY(measure_part(x, 0, 0));
    for (unsigned r = 1; r < x->c.n_partitions; r++)
        for (unsigned i = 0; i < MIN(x->c.n_lanes, 2u); i++) TRY(measure_part(x, r, i));
    x->divided.measured = clock_now() - since;
    return 0;
}

struct exec_partition_times
exec_partition_times(const struct exec *x)
{
    return x->divided;
}

struct exec_rate
exec_rate(const struct exec *x, unsigned partition, unsigned lane)
{
    check(partition < MAX_PARTITIONS && lane < MAX_LANES);
    return x->rate[partition][lane];
}

/* ---- change of a partition ---- */

/* Waits until the lane has no step in flight, calling the heartbeat. These are at most 2 prefill
 * steps, which take seconds for a large model. */
static int
wait_for_steps(const struct exec *x, const struct exec_lane *l)
{
    const struct timespec nap = { .tv_nsec = NSEC_MS };
    uint64_t last = l->outcome[(l->started - 1) % OUTCOMES].r.step;

    while (l->finished < l->started && x->op->lane.done(l->lane) < last) {
        TRY(x->op->lane.error(l->lane));
        if (x->c.heartbeat) x->c.heartbeat(x->c.heartbeat_arg);
        nanosleep(&nap, NULL);
    }
    return 0;
}

/* Prepares a lane for a change of a partition: waits for its steps, because the driver destroys the
 * streams of a part with their queued work, and drops its graphs, which keep the old parts. */
static int
leave_partition(struct exec *x, struct exec_lane *l, unsigned partition)
{
    TRY(wait_for_steps(x, l));
    drop_graphs(x, l, partition);
    return exec_partition_take(x, l, &whole);
}

int
exec_set_partition(struct exec *x, unsigned partition, const struct exec_part part[MAX_LANES],
                   struct err *e)
{
    int r = 0;

    check(partition > 0 && partition < MAX_PARTITIONS);
    if (memcmp(x->part[partition], part, sizeof x->part[partition]) == 0) return 1;
    for (unsigned i = 0; i < x->c.n_lanes && r == 0; i++)
        r = leave_partition(x, &x->lane[i], partition);
    memset(x->part[partition], 0, sizeof x->part[partition]);
    if (r == 0) r = create_parts(x, part);
    if (r < 0) return err_set(e, r, "%s", gpu_why(x->gpu));
    memcpy(x->part[partition], part, sizeof x->part[partition]);
    return 0;
}

const struct exec_part *
exec_parts(const struct exec *x, unsigned partition)
{
    check(partition < MAX_PARTITIONS);
    return x->part[partition];
}
