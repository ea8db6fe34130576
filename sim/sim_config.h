/* sim_config.h - the configuration of a simulated worker: cache, limits, costs of steps.
 *
 * These lines start a scenario, and form a model file of `lagan-sim run`:
 *
 *     cache block 64 arena 60GiB
 *     group full layers 32 slice 16KiB attend 524288
 *     limits seqs 256 max_num_batched_tokens 8192 len 131072
 *     cost weights 16GiB row_flops 16e9 bandwidth 4.2e12 peak 600e12 launch 30us tile 256
 *     split mode auto units 132 min_units 8 granularity 8 target 50ms
 *     co_run prefill 64 decode 68 compute 0.44 read 0.80
 *
 * `lagan-sim script --help` describes every key.
 */
#pragma once

#include "sim/scenario.h"
#include "worker/partition/step_cost.h"
#include "worker/sched/scheduler.h"

#include <stdio.h>

/* The shares of the whole device that both parts of a partition reach at the same time, measured.
 * Between two lines the values are interpolated. */
struct co_run {
    uint32_t context, generation; /* units */
    double compute, read;         /* FLOP rate of prefill, bandwidth of decode */
};
enum { MAX_CO_RUNS = 16 };

/* A roofline: a step takes the longer of its matrices' bytes and FLOP, then the same for attention,
 * and its launch. */
struct sim_cost {
    struct step_costs work;
    double bandwidth, peak; /* bytes and FLOP per second */
    nsec launch;
    nsec ends;     /* extra time of a long prefill step on a partition */
    uint32_t tile; /* matrix products round tokens up to a multiple of it; 0: they do not */
    /* burst: FLOP per second without the limit of the peak; few: tokens whose products reach half
     * of it; 0: products always reach the peak. */
    double burst, few;
    double initial_read; /* auto's initial estimate of decode's bandwidth on a part, as a factor */
    struct co_run co_run[MAX_CO_RUNS];
    uint32_t n_co_runs;
};

/* The division between prefill and decode: the worker's keys split.*. */
enum { DIVIDE_OFF, DIVIDE_AUTO, DIVIDE_FIXED };
struct sim_division {
    uint32_t mode, units, least, grain;
    char context_sm[16];
    nsec target;
};

struct sim_config {
    struct kv_config kv;
    struct scheduler_limits sched;
    struct sim_cost cost;
    struct sim_division divide;
};

/* Blocks of 10 tokens, ample limits, one lane. */
void setting_defaults(struct sim_config *st);
/* 1: the line was a setting and is applied. 0: no setting. -EINVAL, -ENOENT: with file and line. */
int setting_line(struct sim_config *st, const struct script_line *l, struct err *e) MUST_USE;
/* Derives the remaining fields: table lengths, lanes. */
void setting_close(struct sim_config *st);
/* Reads a model file: defaults, all lines, close. */
int setting_read(struct sim_config *st, const char *path, struct err *e) MUST_USE;
/* Changes the split mode afterwards; context_sm: for DIVIDE_FIXED. */
void setting_divide(struct sim_config *st, uint32_t mode, const char *context_sm);
void setting_help(FILE *out);
