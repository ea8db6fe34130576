/* steptime.h - how long a step will take on a rung: fitted to those that were, as they come.
 *
 *     ns = w * bytes of weights + k * bytes of KV + f * FLOP
 *
 * where of the matrices' FLOP those do not count that are done while the weights are read, by the guess: the first rows of
 * prompts in a step that reads them anyhow cost next to nothing.
 *
 * with a w, k and f for each kind of step and each rung. Steps of a rung that divides the device run beside those of
 * the other part, so what they take from each other (memory's bandwidth, power) is in the numbers. Before a rung was
 * used its numbers are those of rung 0 over the share of the device that its part has; every step moves them to what
 * was measured, and what was measured long ago fades, so that a rung that was slow once is tried again.
 *
 * A fit by least squares of errors as parts of the guess, none of the three below zero. Pure.
 */
#ifndef SCHED_STEPTIME_H
#define SCHED_STEPTIME_H

#include "worker/sched/ladder.h"
#include "worker/sched/work.h"

enum step_kind { STEP_CONTEXT, STEP_GENERATION, STEP_BOTH, STEP_KINDS };
enum { STEP_TERMS = 3 };

struct steptime_cell {
    double base[STEP_TERMS]; /* ns a byte, a byte, a FLOP: the guess */
    double a[STEP_TERMS][STEP_TERMS],
        b[STEP_TERMS];    /* sums over steps, of what each term was of its time */
    double n;             /* steps, faded */
    double m[STEP_TERMS]; /* what they say of the base: a factor each */
};
struct steptime {
    struct steptime_cell cell[STEP_KINDS][MAX_RUNGS];
};

/* Guesses: the whole device's bytes and FLOP a second. A part's share of both is its share of units. */
void steptime_init(struct steptime *t, const struct ladder *l, double bandwidth, double peak);
/* The rung is another one now, or more is known of its parts: shares of the whole device's bytes and FLOP a second,
 * beside the other part. */
struct part_share {
    double read, compute;
};
void steptime_rung(struct steptime *t, unsigned rung, struct part_share context,
                   struct part_share generation);
/* A step took so long, more than 0. beside: for how much of that time, 0 .. 1, a step ran on the other part. */
void steptime_learn(struct steptime *t, enum step_kind kind, unsigned rung,
                    const struct work_done *w, nsec took, double beside);
/* How long such a step will take; more than 0. */
double steptime_of(const struct steptime *t, enum step_kind kind, unsigned rung,
                   const struct work_done *w);
/* Steps of that kind that it knows of, on the whole device, faded. */
double steptime_known(const struct steptime *t, enum step_kind kind);
enum step_kind step_kind(unsigned work); /* of a batch's mask of WORK_* */

#endif
