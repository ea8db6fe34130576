/* rungs.c - the parts of the device that lanes run on: made and measured before the first step, changed between two.
 *
 * What a part can read and multiply is measured with nobody on the other one, for a first guess; what they take from
 * each other shows in the steps.
 */
#include "base/clock.h"
#include "worker/exec/inside.h"

#include <string.h>

_Static_assert((int)MAX_RUNGS == GRAPHS_RUNGS_MOST && MAX_RUNGS - 1 <= (int)GPU_DIVISIONS,
               "a rung is a division of the device");

/* READ: more than a device's caches hold. */
enum { READ = 512 << 20, ROWS = 2048, TIMES = 3 };

static const struct exec_part whole = { 0, 0 };

int
take_part(struct exec *x, struct exec_lane *l, const struct exec_part *want)
{
    if (want->n == l->part.n && want->first == l->part.first) return 0;
    TRY(x->op->lane_part(l->lane, want->first, want->n ? want->n : l->units));
    l->part = *want;
    return 0;
}

/* Every lane on its part once: so it is made. Then on all again. */
static int
visit(struct exec *x, const struct exec_part part[MAX_LANES])
{
    int r = 0;

    for (unsigned i = 0; i < x->c.n_lanes && r == 0; i++) r = take_part(x, &x->lane[i], &part[i]);
    for (unsigned i = 0; i < x->c.n_lanes; i++) {
        int back = take_part(x, &x->lane[i], &whole);

        if (r == 0) r = back;
    }
    return r;
}

/* ---- what a part can do ---- */

struct trial {
    struct tensor to, from, w; /* to multiply; w.data NULL: nothing that fits */
    uint64_t bytes;            /* of weights, to read */
};

static struct trial
find_trial(const struct exec *x, const struct exec_lane *l)
{
    struct trial t = { .bytes = MIN(x->m->weights.bytes, (uint64_t)READ) };
    uint32_t rows = MIN(x->scratch_rows, (uint32_t)ROWS);
    struct matmul list[MAX_MATMULS];
    uint32_t n = model_matmuls(x->m, list);

    for (uint32_t i = 0; i < n; i++) {
        struct tensor from, to, w = list[i].w;

        if (list[i].head || (uint64_t)w.dim[0] * w.dim[1] <= (uint64_t)t.w.dim[0] * t.w.dim[1])
            continue;
        if (matmul_room(l, &list[i], rows, &from, &to)) t = (struct trial){ to, from, w, t.bytes };
    }
    return t;
}

static int
queue_read(struct exec *x, struct exec_lane *l, const struct trial *t)
{
    return x->op->checksum(l->lane, (uint64_t *)l->drawn, x->m->weights.base, t->bytes);
}

static int
queue_multiply(struct exec *x, struct exec_lane *l, const struct trial *t)
{
    return x->op->matmul(l->lane, t->to, t->from, t->w, NO_TENSOR, 0);
}

/* Seconds that it takes, once it was met. */
static int
measure(struct exec *x, struct exec_lane *l, const struct trial *t,
        int (*queue)(struct exec *x, struct exec_lane *l, const struct trial *t), double *ret)
{
    nsec since;

    TRY(queue(x, l, t));
    TRY(settle(x, l));
    since = clock_now();
    for (int i = 0; i < TIMES; i++) TRY(queue(x, l, t));
    TRY(settle(x, l));
    *ret = (double)(clock_now() - since) / NSEC_S / TIMES;
    return 0;
}

static int
measure_part(struct exec *x, unsigned rung, unsigned lane)
{
    struct exec_lane *l = &x->lane[lane];
    struct exec_rate *rate = &x->rate[rung][lane];
    const struct trial t = find_trial(x, l);
    double s;

    TRY(take_part(x, l, &x->part[rung][lane]));
    if (t.bytes) {
        TRY(measure(x, l, &t, queue_read, &s));
        rate->read = (double)t.bytes / s;
    }
    if (t.w.data) {
        TRY(x->op->fill_random(l->lane, t.from, /* seed= */ 1, 0, 0, 1));
        TRY(measure(x, l, &t, queue_multiply, &s));
        rate->compute = 2. * t.from.dim[0] * t.w.dim[0] * t.w.dim[1] / s;
    }
    return take_part(x, l, &whole);
}

static int
measure_all(struct exec *x)
{
    nsec since = clock_now();

    TRY(measure_part(x, 0, 0));
    for (unsigned r = 1; r < x->c.n_rungs; r++)
        for (unsigned i = 0; i < MIN(x->c.n_lanes, 2u); i++) TRY(measure_part(x, r, i));
    x->divided.measured = clock_now() - since;
    return 0;
}

int
rungs_open(struct exec *x)
{
    uint64_t before, after, own, total;
    nsec since = clock_now();
    bool known;

    if (x->c.n_rungs < 2) return 0;
    check(x->c.n_rungs <= MAX_RUNGS);
    memcpy(x->part, x->c.part, sizeof x->part);
    known = gpu_memory(x->gpu, &before, &own, &total) == 0;
    for (unsigned r = 1; r < x->c.n_rungs; r++) TRY(visit(x, x->part[r]));
    if (known && gpu_memory(x->gpu, &after, &own, &total) == 0 && before > after)
        x->divided.bytes = before - after;
    x->divided.made = clock_now() - since;
    return x->c.measure ? measure_all(x) : 0;
}

struct exec_divided
exec_divided(const struct exec *x)
{
    return x->divided;
}

struct exec_rate
exec_rate(const struct exec *x, unsigned rung, unsigned lane)
{
    check(rung < MAX_RUNGS && lane < MAX_LANES);
    return x->rate[rung][lane];
}

/* ---- another division in the place of one ---- */

/* Its graphs hold the old parts. What is out may be running them. */
static int
let_go(struct exec *x, struct exec_lane *l, unsigned rung)
{
    if (graphs_any(&l->graphs, rung) && l->finished < l->started)
        TRY(gpu_wait(l->lane, l->outcome[(l->started - 1) % OUTCOMES].r.step, UINT64_MAX));
    drop_graphs(x, l, rung);
    return take_part(x, l, &whole);
}

int
exec_rung(struct exec *x, unsigned rung, const struct exec_part part[MAX_LANES], struct err *e)
{
    int r = 0;

    check(rung > 0 && rung < MAX_RUNGS);
    if (memcmp(x->part[rung], part, sizeof x->part[rung]) == 0) return 1;
    for (unsigned i = 0; i < x->c.n_lanes && r == 0; i++) r = let_go(x, &x->lane[i], rung);
    memset(x->part[rung], 0, sizeof x->part[rung]);
    if (r == 0) r = visit(x, part);
    if (r < 0) return err_set(e, r, "%s", gpu_why(x->gpu));
    memcpy(x->part[rung], part, sizeof x->part[rung]);
    return 0;
}

const struct exec_part *
exec_parts(const struct exec *x, unsigned rung)
{
    check(rung < MAX_RUNGS);
    return x->part[rung];
}
