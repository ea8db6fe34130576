/* steptime.c - see steptime.h.
 *
 * A step's time and each term of it are counted as parts of what the guess says of it: z[i] = base[i] x[i] / guess and
 * y = ns / guess, so that all numbers are near 1. Factors m of the base are what brings the sums of m[i] z[i] as near to y as
 * can be over all steps; PULL steps' worth of belief hold them at 1 on rung 0. (As parts of the time itself a step that was
 * found late, and made the next one short, would outweigh thousands; so the two even out.)
 *
 * On another rung one factor more is found first, which all of rung 0's have there: PULL holds it at 1. Then each has its own,
 * and APART steps' worth hold them together. For steps that are alike do not tell one term from another: when seven or eight
 * had generated, the few steps in which a change was under way were taken for what a longer context costs, and what was
 * expected of thirty was a tenth too much.
 */
#include "worker/sched/steptime.h"

#include <string.h>

/* PULL: a step outweighs it. APART: a few that differ do. KEEP, of the same rung: the last 50 steps count. FADE, of other
 * rungs: after some thousand steps elsewhere half is forgotten. LEAST: a factor may not become 0 before any step has had its
 * term. */
static const double PULL = 0.02, APART = 0.2, KEEP = 0.98, FADE = 0.9997, LEAST = 1e-3;
enum { SWEEPS = 60 };
/* A step counts as so many times what it should take, at most: what has held it up was something else, as a rule. Not
 * with FEW known. */
static const double LONG = 4, FEW = 2;

static void
step_terms(const struct steptime_cell *c, const struct work_done *w, double x[STEP_TERMS])
{
    double hidden = w->weights * c->base[0] / c->base[2];

    x[0] = w->weights;
    x[1] = w->kv;
    x[2] = MAX(w->matmul - hidden, 0.) + w->attend;
}

enum step_kind
step_kind(unsigned work)
{
    if (!(work & WORK_GENERATION)) return STEP_CONTEXT;
    return work & (WORK_CONTEXT | WORK_ENCODER) ? STEP_BOTH : STEP_GENERATION;
}

/* Each factor in turn to where it is best with the others as they are: the sum of squares falls every time. hold: steps'
 * worth, that each is what it is thought to be. */
static void
solve_factors(const struct steptime_cell *c, const double at[STEP_TERMS], double hold,
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

/* A rung's factors, from those of rung 0. A part does nothing faster than the whole device. */
static void
fit_rung(const struct steptime_cell *whole, struct steptime_cell *c)
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
fit_kind(struct steptime *t, enum step_kind kind)
{
    const double one[STEP_TERMS] = { 1, 1, 1 }, least[STEP_TERMS] = { LEAST, LEAST, LEAST };
    struct steptime_cell *c = t->cell[kind];

    solve_factors(&c[0], one, PULL, least, c[0].m);
    for (unsigned r = 1; r < MAX_RUNGS; r++) fit_rung(&c[0], &c[r]);
}

void
steptime_init(struct steptime *t, const struct ladder *l, double bandwidth, double peak)
{
    memset(t, 0, sizeof *t);
    for (unsigned k = 0; k < STEP_KINDS; k++) {
        double *base = t->cell[k][0].base;

        base[0] = base[1] = 1e9 / bandwidth;
        base[2] = 1e9 / peak;
        fit_kind(t, k);
    }
    for (unsigned r = 1; r < l->n; r++) {
        double context = (double)l->rung[r].context / l->units,
               generation = (double)l->rung[r].generation / l->units;

        steptime_rung(t, r, (struct part_share){ context, context },
                      (struct part_share){ generation, generation });
    }
}

void
steptime_rung(struct steptime *t, unsigned rung, struct part_share context,
              struct part_share generation)
{
    const struct part_share share[STEP_KINDS] = {
        [STEP_CONTEXT] = context, [STEP_GENERATION] = generation, [STEP_BOTH] = { 1, 1 }
    };

    check(rung > 0 && rung < MAX_RUNGS);
    for (unsigned k = 0; k < STEP_KINDS; k++) {
        struct steptime_cell *c = &t->cell[k][rung];
        const double *whole = t->cell[k][0].base;

        *c = (struct steptime_cell){ .base = { whole[0] / share[k].read, whole[1] / share[k].read,
                                               whole[2] / share[k].compute } };
        fit_kind(t, k);
    }
}

static void
fade_cell(struct steptime_cell *c, double to)
{
    for (unsigned i = 0; i < STEP_TERMS; i++) {
        c->b[i] *= to;
        for (unsigned j = 0; j < STEP_TERMS; j++) c->a[i][j] *= to;
    }
    c->n *= to;
}

void
steptime_learn(struct steptime *t, enum step_kind kind, unsigned rung, const struct work_done *w,
               nsec took, double beside)
{
    struct steptime_cell *c = &t->cell[kind][rung];
    double x[STEP_TERMS], weight = rung ? beside : 1 - beside, guess = 0, ns = (double)took;

    check(rung < MAX_RUNGS);
    if (took <= 0 || !(weight > 0)) return;
    if (c->n > FEW) ns = MIN(ns, LONG * steptime_of(t, kind, rung, w));
    step_terms(c, w, x);
    for (unsigned r = 0; r < MAX_RUNGS; r++)
        fade_cell(&t->cell[kind][r], r == rung ? 1 - (1 - KEEP) * weight : r ? FADE : 1);
    for (unsigned i = 0; i < STEP_TERMS; i++) guess += x[i] * c->base[i];
    for (unsigned i = 0; i < STEP_TERMS; i++) x[i] *= c->base[i] / guess;
    for (unsigned i = 0; i < STEP_TERMS; i++) {
        c->b[i] += weight * x[i] * ns / guess;
        for (unsigned j = 0; j < STEP_TERMS; j++) c->a[i][j] += weight * x[i] * x[j];
    }
    c->n += weight;
    fit_kind(t, kind);
}

double
steptime_of(const struct steptime *t, enum step_kind kind, unsigned rung, const struct work_done *w)
{
    const struct steptime_cell *c = &t->cell[kind][rung];
    double x[STEP_TERMS], ns = 1;

    step_terms(c, w, x);
    for (unsigned i = 0; i < STEP_TERMS; i++) ns += x[i] * c->base[i] * c->m[i];
    return ns;
}

double
steptime_known(const struct steptime *t, enum step_kind kind)
{
    return t->cell[kind][0].n;
}
