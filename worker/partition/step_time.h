/* step_time.h - how long a step will take on a partition: fitted to those that were, as they come.
 *
 *     ns = w * bytes of weights + k * bytes of KV + f * FLOP
 *
 * where of the matrices' FLOP those do not count that are done while the weights are read, by the draft: the first rows of
 * prompts in a step that reads them anyhow cost next to nothing.
 *
 * with a w, k and f for each kind of step and each partition. Steps of a partition that divides the device run beside those of
 * the other part, so what they take from each other (memory's bandwidth, power) is in the numbers. Before a partition was
 * used its numbers are those of partition 0 over the share of the device that its part has; every step moves them to what
 * was measured, and what was measured long ago fades, so that a partition that was slow once is tried again.
 *
 * A fit by least squares of errors as parts of the draft, none of the three below zero. Pure.
 */
#ifndef PARTITION_STEP_TIME_H
#define PARTITION_STEP_TIME_H

#include "worker/partition/partition_list.h"
#include "worker/partition/step_cost.h"

enum step_kind { STEP_PREFILL, STEP_DECODE, STEP_BOTH, STEP_KINDS };
enum { STEP_TERMS = 3 };

struct step_time_cell {
    double base[STEP_TERMS]; /* ns a byte, a byte, a FLOP: the draft */
    double a[STEP_TERMS][STEP_TERMS],
        b[STEP_TERMS];    /* sums over steps, of what each term was of its time */
    double n;             /* steps, faded */
    double m[STEP_TERMS]; /* what they say of the base: a factor each */
};
struct step_time {
    struct step_time_cell cell[STEP_KINDS][MAX_PARTITIONS];
};

/* Guesses: the whole device's bytes and FLOP a second. A part's share of both is its share of units. */
void step_time_init(struct step_time *t, const struct partition_list *l, double bandwidth,
                    double peak);
/* The partition is another one now, or more is known of its parts: shares of the whole device's bytes and FLOP a second,
 * beside the other part. */
struct part_share {
    double read, compute;
};
void step_time_set_partition(struct step_time *t, unsigned partition, struct part_share context,
                             struct part_share generation);
/* A step took so long, more than 0. beside: for how much of that time, 0 .. 1, a step ran on the other part. */
void step_time_learn(struct step_time *t, enum step_kind kind, unsigned partition,
                     const struct step_cost *w, nsec took, double beside);
/* How long such a step will take; more than 0. */
double step_time_of(const struct step_time *t, enum step_kind kind, unsigned partition,
                    const struct step_cost *w);
/* Steps of that kind that it knows of, on the whole device, faded. */
double step_time_known(const struct step_time *t, enum step_kind kind);
enum step_kind step_kind(unsigned work); /* of a batch's mask of WORK_* */

#endif
