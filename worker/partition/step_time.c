/* step_time.c - see step_time.h.
 *
 * A step's time and each term of it are counted as parts of what the draft says of it: z[i] = base[i] x[i] / draft and
 * y = ns / draft, so that all numbers are near 1. Factors m of the base are what brings the sums of m[i] z[i] as near to y as
 * can be over all steps; PULL steps' worth of belief hold them at 1 on partition 0. (As parts of the time itself a step that was
 * found late, and made the next one short, would outweigh thousands; so the two even out.)
 *
 * On another partition one factor more is found first, which all of partition 0's have there: PULL holds it at 1. Then each has its own,
 * and APART steps' worth hold them together. For steps that are alike do not tell one term from another: when seven or eight
 * had generated, the few steps in which a change was under way were taken for what a longer context costs, and what was
 * expected of thirty was a tenth too much.
 */
#include "worker/partition/step_time.h"

#include <string.h>

/* PULL: a step outweighs it. APART: a few that differ do. KEEP, of the same partition: the last 50 steps count. FADE, of other
 * partitions: after some thousand steps elsewhere half is forgotten. LEAST: a factor may not become 0 before any step has had its
 * term. */
static const double PULL = 0.02, APART = 0.2, KEEP = 0.98, FADE = 0.9997, LEAST = 1e-3;
enum { SWEEPS = 60 };
/* A step counts as so many times what it should take, at most: what has held it up was something else, as a rule. Not
 * with FEW known. */
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

/* Each factor in turn to where it is best with the others as they are: the sum of squares falls every time. hold: steps'
 * worth, that each is what it is thought to be. */
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

/* A partition's factors, from those of partition 0. A part does nothing faster than the whole device. */
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

/* After anything was changed: asked for many times as often. */
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
        double context = (double)l->partition[r].prefill_units / l->units,
               generation = (double)l->partition[r].decode_units / l->units;

        step_time_set_partition(t, r, (struct part_share){ context, context },
                                (struct part_share){ generation, generation });
    }
}

void
step_time_set_partition(struct step_time *t, unsigned partition, struct part_share context,
                        struct part_share generation)
{
    const struct part_share share[STEP_KINDS] = {
        [STEP_PREFILL] = context, [STEP_DECODE] = generation, [STEP_BOTH] = { 1, 1 }
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
