/* step_time.c - fits the coefficients of step times by least squares: see step_time.h.
 *
 * All terms are relative to the step's initial estimate: z[i] = base[i] x[i] / estimate and y = ns
 * / estimate, so that numbers are near 1. The fitted factors m minimize the sum over all steps of
 * the squared errors of sum m[i] z[i] - y. On partition 0 an additional weight of PULL steps draws
 * each factor to 1. Errors relative to the measured time would be wrong: a late observation makes
 * one step long and the next short, and the short one would outweigh thousands of steps.
 *
 * On another partition, one common factor for all factors of partition 0 is fitted first, drawn to
 * 1 by PULL. Then each term gets its own factor, drawn to the common one by the weight of APART
 * steps, because equal steps do not separate the terms: when nearly all steps had 7 or 8 decoding
 * sequences, a few other ones were taken for the cost of longer contexts, and the prediction for 30
 * sequences was 10 % too high.
 */
#include "worker/partition/step_time.h"

/* PULL, APART: weights in steps, as above; one measured step outweighs PULL. KEEP: decay per step
 * of the same partition, so about 50 steps count. FADE: decay per step of another partition, half
 * after about 2,300 steps. LEAST: lower bound of a factor, so that no term becomes free. */
static const double PULL = 0.02, APART = 0.2, KEEP = 0.98, FADE = 0.9997, LEAST = 1e-3;
enum { SWEEPS = 60 };
/* Once FEW steps are known, a measured time is limited to LONG times the prediction, because longer
 * delays usually have another cause. */
static const double LONG = 4, FEW = 2;

static void
step_terms(const struct step_time_cell *c, const struct step_cost *w, double x[STEP_TERMS])
{
    double hidden = w->weights * c->base[0] / c->base[2];

    x[0] = w->weights;
    x[1] = w->kv;
    x[2] = MAX(w->matmul - hidden, 0.) + w->attend;
}

enum step_kind
step_kind(unsigned work)
{
    if (!(work & WORK_DECODE)) return STEP_PREFILL;
    return work & (WORK_PREFILL | WORK_ENCODER) ? STEP_BOTH : STEP_DECODE;
}

/* Computes the factors m by coordinate descent: sets each factor to its optimum while the others
 * are fixed, which never increases the error. hold: weight, in steps, that draws m to at[]. */
static void
solve_factors(const struct step_time_cell *c, const double at[STEP_TERMS], double hold,
              const double least[STEP_TERMS], double m[STEP_TERMS])
{
    for (unsigned i = 0; i < STEP_TERMS; i++) m[i] = MAX(at[i], least[i]);
    for (unsigned s = 0; s < SWEEPS && c->n > 0; s++)
        for (unsigned i = 0; i < STEP_TERMS; i++) {
            double rest = c->b[i] + hold * at[i];

            for (unsigned j = 0; j < STEP_TERMS; j++)
                if (j != i) rest -= c->a[i][j] * m[j];
            m[i] = MAX(rest / (c->a[i][i] + hold), least[i]);
        }
}

/* Fits a partition's factors, starting from partition 0's; no part is faster than the device. */
static void
fit_partition(const struct step_time_cell *whole, struct step_time_cell *c)
{
    double at[STEP_TERMS], least[STEP_TERMS], is = PULL, want = PULL;

    for (unsigned i = 0; i < STEP_TERMS; i++) {
        want += c->b[i] * whole->m[i];
        for (unsigned j = 0; j < STEP_TERMS; j++) is += c->a[i][j] * whole->m[i] * whole->m[j];
    }
    for (unsigned i = 0; i < STEP_TERMS; i++) {
        at[i] = want / is * whole->m[i];
        least[i] = whole->n > 0 && c->base[i] > 0 ? whole->m[i] * whole->base[i] / c->base[i]
                                                  : LEAST * at[i];
    }
    solve_factors(c, at, APART, least, c->m);
}

/* Fits all partitions of a kind after each measured step: there are many predictions per step. */
static void
fit_kind(struct step_time *t, enum step_kind kind)
{
    const double one[STEP_TERMS] = { 1, 1, 1 }, least[STEP_TERMS] = { LEAST, LEAST, LEAST };
    struct step_time_cell *c = t->cell[kind];

    solve_factors(&c[0], one, PULL, least, c[0].m);
    for (unsigned r = 1; r < MAX_PARTITIONS; r++) fit_partition(&c[0], &c[r]);
}

void
step_time_init(struct step_time *t, const struct partition_list *l, double bandwidth, double peak)
{
    memset(t, 0, sizeof *t);
    for (unsigned k = 0; k < STEP_KINDS; k++) {
        double *base = t->cell[k][0].base;

        base[0] = base[1] = 1e9 / bandwidth;
        base[2] = 1e9 / peak;
        fit_kind(t, k);
    }
    for (unsigned r = 1; r < l->n; r++) {
        double prefill = (double)l->partition[r].prefill_units / l->units,
               decode = (double)l->partition[r].decode_units / l->units;

        step_time_set_partition(t, r, (struct part_share){ prefill, prefill },
                                (struct part_share){ decode, decode });
    }
}

void
step_time_set_partition(struct step_time *t, unsigned partition, struct part_share prefill,
                        struct part_share decode)
{
    const struct part_share share[STEP_KINDS] = {
        [STEP_PREFILL] = prefill, [STEP_DECODE] = decode, [STEP_BOTH] = { 1, 1 }
    };

    check(partition > 0 && partition < MAX_PARTITIONS);
    for (unsigned k = 0; k < STEP_KINDS; k++) {
        struct step_time_cell *c = &t->cell[k][partition];
        const double *whole = t->cell[k][0].base;

        *c = (struct step_time_cell){ .base = { whole[0] / share[k].read, whole[1] / share[k].read,
                                                whole[2] / share[k].compute } };
        fit_kind(t, k);
    }
}

static void
fade_cell(struct step_time_cell *c, double to)
{
    for (unsigned i = 0; i < STEP_TERMS; i++) {
        c->b[i] *= to;
        for (unsigned j = 0; j < STEP_TERMS; j++) c->a[i][j] *= to;
    }
    c->n *= to;
}

void
step_time_learn(struct step_time *t, enum step_kind kind, unsigned partition,
                const struct step_cost *w, nsec took, double beside)
{
    struct step_time_cell *c = &t->cell[kind][partition];
    double x[STEP_TERMS], weight = partition ? beside : 1 - beside, draft = 0, ns = (double)took;

    check(partition < MAX_PARTITIONS);
    if (took <= 0 || !(weight > 0)) return;
    if (c->n > FEW) ns = MIN(ns, LONG * step_time_of(t, kind, partition, w));
    step_terms(c, w, x);
    for (unsigned r = 0; r < MAX_PARTITIONS; r++)
        fade_cell(&t->cell[kind][r], r == partition ? 1 - (1 - KEEP) * weight : r ? FADE : 1);
    for (unsigned i = 0; i < STEP_TERMS; i++) draft += x[i] * c->base[i];
    for (unsigned i = 0; i < STEP_TERMS; i++) x[i] *= c->base[i] / draft;
    for (unsigned i = 0; i < STEP_TERMS; i++) {
        c->b[i] += weight * x[i] * ns / draft;
        for (unsigned j = 0; j < STEP_TERMS; j++) c->a[i][j] += weight * x[i] * x[j];
    }
    c->n += weight;
    fit_kind(t, kind);
}

double
step_time_of(const struct step_time *t, enum step_kind kind, unsigned partition,
             const struct step_cost *w)
{
    const struct step_time_cell *c = &t->cell[kind][partition];
    double x[STEP_TERMS], ns = 1;

    step_terms(c, w, x);
    for (unsigned i = 0; i < STEP_TERMS; i++) ns += x[i] * c->base[i] * c->m[i];
    return ns;
}

double
step_time_known(const struct step_time *t, enum step_kind kind)
{
    return t->cell[kind][0].n;
}
