/* step_time.h - predicts the time of a step on a partition, fitted to measured steps.
 *
 *     ns = w * bytes of weights + k * bytes of KV + f * FLOP
 *
 * FLOP of matrix products count only beyond those that the device computes while it reads the
 * weights (by the initial estimate): the first prompt tokens of a decode step cost almost no time.
 *
 * Each kind of step has its w, k and f on each partition. On a partition both phases run at the
 * same time, so the fit includes their effect on each other (memory bandwidth, power). A partition
 * starts with the times of partition 0 divided by the part's share of units. Steps move it towards
 * the measurements; these fade, so that a partition that was slow once is tried again.
 *
 * Least squares of errors relative to the initial estimate; no coefficient is negative. Pure.
 */
#pragma once

#include "worker/partition/partition_list.h"
#include "worker/partition/step_cost.h"

enum step_kind { STEP_PREFILL, STEP_DECODE, STEP_BOTH, STEP_KINDS };
enum { STEP_TERMS = 3 };

struct step_time_cell {
    double base[STEP_TERMS];          /* initial estimate: ns per byte, byte, FLOP */
    double a[STEP_TERMS][STEP_TERMS]; /* normal equations, */
    double b[STEP_TERMS];             /* and their right side */
    double n;                         /* steps, with decay */
    double m[STEP_TERMS];             /* fitted factors of base[] */
};
struct step_time {
    struct step_time_cell cell[STEP_KINDS][MAX_PARTITIONS];
};

/* bandwidth, peak: bytes and FLOP per second of the whole device. A part initially gets its share
 * of units of both. */
void step_time_init(struct step_time *t, const struct partition_list *l, double bandwidth,
                    double peak);
/* Resets a partition that was replaced or measured: shares of the whole device's bandwidth and FLOP
 * rate that a part has while the other part works. */
struct part_share {
    double read, compute;
};
void step_time_set_partition(struct step_time *t, unsigned partition, struct part_share prefill,
                             struct part_share decode);
/* Adds a measured step. beside: share (0 .. 1) of its time in which the other part was busy. */
void step_time_learn(struct step_time *t, enum step_kind kind, unsigned partition,
                     const struct step_cost *w, nsec took, double beside);
/* Expected ns of a step, above 0. */
double step_time_of(const struct step_time *t, enum step_kind kind, unsigned partition,
                    const struct step_cost *w);
/* Steps of that kind measured on the whole device, with decay. */
double step_time_known(const struct step_time *t, enum step_kind kind);
enum step_kind step_kind(unsigned work); /* work: mask of enum work */
