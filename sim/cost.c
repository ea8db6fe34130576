/* cost.c - predicts the time of a simulated step: see cost.h. */
#include "sim/cost.h"

#include <math.h>

/* The shares that steps of two lanes get if both run at once on all units (one H200, two streams):
 * a bandwidth-bound step got 0.30 of the bandwidth, the other lane's matrix products 0.83 of the
 * FLOP rate. */
static const struct part_share BESIDE_WHOLE = { .read = 0.30, .compute = 0.83 };

/* A partition's prefill step of at least this number of tokens takes the whole extra time
 * sim_cost.ends; a shorter step takes a proportional part of it. */
static const double LONG_ROWS = 2000;

static double
interpolate(double x, double x0, double x1, double y0, double y1)
{
    return x1 > x0 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) : y0;
}

/* Returns the shares that co_run lines give for partition r, interpolated if necessary. */
static struct part_share
measured_share(const struct sim_cost *c, struct partition r)
{
    const struct co_run *p = c->co_run;
    uint32_t i = 1;

    if (r.prefill_units <= p[0].context) return (struct part_share){ p[0].read, p[0].compute };
    while (i < c->n_co_runs && p[i].context < r.prefill_units) i++;
    if (i == c->n_co_runs) return (struct part_share){ p[i - 1].read, p[i - 1].compute };
    return (struct part_share){
        interpolate(r.prefill_units, p[i - 1].context, p[i].context, p[i - 1].read, p[i].read),
        interpolate(r.prefill_units, p[i - 1].context, p[i].context, p[i - 1].compute, p[i].compute)
    };
}

/* Decode's FLOP rate is proportional to its units; prefill has the bandwidth that decode leaves. */
void
cost_parts(const struct sim_config *st, const struct partition_list *l, unsigned partition,
           double initial_read, struct part_share *context, struct part_share *generation)
{
    struct partition r = l->partition[partition];
    double units = l->units;
    struct part_share s = { r.decode_units / units, r.prefill_units / units };

    if (st->cost.n_co_runs) s = measured_share(&st->cost, r);
    s.read = MIN(s.read * initial_read, 1.);
    *context = (struct part_share){ MAX(1 - s.read, 0.1), s.compute };
    *generation = (struct part_share){ s.read, r.decode_units / units };
}

struct part_share
cost_share(const struct sim_config *st, const struct partition_list *l, const struct batch *b,
           bool beside_whole)
{
    struct part_share context, generation, s;

    if (b->partition == 0) return beside_whole ? BESIDE_WHOLE : (struct part_share){ 1, 1 };
    cost_parts(st, l, b->partition, 1, &context, &generation);
    s = b->work & WORK_DECODE ? generation : context;
    if (!beside_whole) return s;
    return (struct part_share){ MIN(s.read, BESIDE_WHOLE.read),
                                MIN(s.compute, BESIDE_WHOLE.compute) };
}

/* Maximum seconds of a step for any model file, because virtual time overflows after 292 years. */
static const double LONGEST_S = 3600;

/* Returns the factor (>= 1) by which matrix products and prefill attention of `rows` tokens take
 * longer than at the peak rate. part: the step's share of the device's FLOP rate. If it is below 1,
 * tiles are spread more evenly than on the whole device, so `rows` is not rounded up to tiles. */
static double
tile_unevenness(const struct sim_cost *c, double rows, double part)
{
    double done = rows, tile = part < 1 ? 0 : c->tile;

    if (rows <= 0) return 1;
    if (tile > 0 && rows > tile) done = ceil(rows / tile) * tile;
    if (c->burst <= 0) return done / rows;
    return done / rows * MAX(1, c->peak / c->burst * (done + part * c->few) / done);
}

/* Matrix products cover all tokens of the step. Attention of prefill (bound by FLOP) and of decode
 * (bound by bandwidth) run one after the other. */
nsec
cost_of(const struct sim_config *st, const struct batch *b, struct part_share has)
{
    static const unsigned phase[] = { WORK_PREFILL, WORK_DECODE };
    const struct sim_cost *c = &st->cost;
    const struct step_cost all = step_cost_of(&c->work, &st->kv, b,
                                              WORK_ENCODER | WORK_PREFILL | WORK_DECODE);
    double bandwidth = c->bandwidth * has.read, peak = c->peak * has.compute;
    double more = tile_unevenness(c, b->n_tokens, has.compute);
    double seconds = MAX(all.weights / bandwidth, more * all.matmul / peak);

    for (size_t i = 0; i < ARRAY_LEN(phase); i++) {
        struct step_cost w = step_cost_of(&c->work, &st->kv, b, phase[i]);

        if (phase[i] == WORK_PREFILL) w.attend *= more;
        seconds += MAX(w.kv / bandwidth, w.attend / peak);
    }
    if (b->partition && !(b->work & WORK_DECODE))
        seconds += (double)c->ends / 1e9 * MIN(1, b->n_tokens / LONG_ROWS);
    return c->launch + (nsec)(MIN(seconds, LONGEST_S) * 1e9);
}
