/* step_time.h - predicts the time of a step on a partition, from the times of earlier steps.
 *
 *     ns = w * bytes of weights + k * bytes of KV + f * FLOP
 *
 * FLOP of matrix products count only beyond those that the device computes while it reads the
 * weights (by the initial estimate): the first prompt tokens of a decode step cost almost no time.
 *
 * Each kind of step has its own w, k and f on each partition. Both phases run at the same time on a
 * partition, so the fit includes their effect on each other (memory bandwidth, power). The first
 * estimate for a partition is the time on partition 0 divided by the share of units that the
 * phase's part has. Measured steps correct the estimate; old measurements fade, so that a partition
 * that was slow once is tried again.
 *
 * Least squares of errors relative to the initial estimate; no coefficient is negative. Pure.
 */
#pragma once
#include "worker/partition/partition_list.h"
#include "worker/partition/step_cost.h"

enum step_kind { STEP_PREFILL, STEP_DECODE, STEP_BOTH, STEP_KINDS };
enum { STEP_TERMS = 3 };

struct step_time_cell {
    double base[STEP_TERMS];          /* initial w, k, f: ns per byte, ns per byte, ns per FLOP */
    double a[STEP_TERMS][STEP_TERMS]; /* matrix of the normal equations of the fit */
    double b[STEP_TERMS];             /* right-hand side of these equations */
    double n;                         /* number of measured steps, decaying */
    double m[STEP_TERMS];             /* fitted factors: w is m[0] * base[0], ... */
};
struct step_time {
    struct step_time_cell cell[STEP_KINDS][MAX_PARTITIONS];
};

/* Sets the initial estimates. bandwidth, peak: bytes and FLOP per second of the whole device; each
 * part is assumed to have its share of units of both. */
void step_time_init(struct step_time *t, const struct partition_list *l, double bandwidth,
                    double peak);
/* The shares of the whole device's bandwidth and FLOP rate that one part has while the other one
 * works. step_time_set_partition() restarts the fit of a partition, which was replaced or measured,
 * with the shares of its two parts. */
struct part_share {
    double read, compute;
};
void step_time_set_partition(struct step_time *t, unsigned partition, struct part_share prefill,
                             struct part_share decode);
/* Adds a measured step. beside: share (0 .. 1) of its time in which another lane was busy. */
void step_time_learn(struct step_time *t, enum step_kind kind, unsigned partition,
                     const struct step_cost *w, nsec took, double beside);
/* Returns the expected time of a step in ns, above 0. */
double step_time_of(const struct step_time *t, enum step_kind kind, unsigned partition,
                    const struct step_cost *w);
/* Returns the number of steps of this kind measured on the whole device, decaying with age. */
double step_time_known(const struct step_time *t, enum step_kind kind);
enum step_kind step_kind(unsigned work); /* of a step with this mask of enum work */
