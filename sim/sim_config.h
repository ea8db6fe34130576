/* sim_config.h - the configuration of a simulated worker: cache, scheduler limits, step costs.
 *
 * Lines of this form (settings) begin a scenario, and form a model file of `lagan-sim run`:
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

/* One co_run line: the measured shares of the whole device that the two parts of a partition reach
 * at the same time. Between two lines the values are interpolated. */
struct co_run {
    uint32_t context, generation; /* units */
    double compute, read;         /* shares: FLOP rate of prefill, bandwidth of decode */
};
enum { MAX_CO_RUNS = 16 };

/* The roofline model of the device. A step takes the longer of the times for bytes and for FLOP of
 * its matrices, plus the same for its attention, plus the launch time. */
struct sim_cost {
    struct step_costs work;
    double bandwidth, peak; /* bytes and FLOP per second */
    nsec launch;
    nsec ends;     /* extra time of a long prefill step on a partition */
    uint32_t tile; /* matrix products compute multiples of this number of tokens; 0: any */
    /* Matrix products of n tokens reach min(peak, burst * n / (n + few)) FLOP per second. burst 0:
     * they always reach the peak. */
    double burst, few;
    double initial_read; /* split mode auto: factor on the first estimate of decode's bandwidth */
    struct co_run co_run[MAX_CO_RUNS];
    uint32_t n_co_runs;
};

/* The division of the device between prefill and decode: the worker's options split.*. */
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

/* Sets the defaults: blocks of 10 tokens, high limits, one lane. */
void setting_defaults(struct sim_config *st);
/* Applies a line that is a setting and returns 1. 0: the line is no setting. -EINVAL, -ENOENT: e
 * begins with file and line. */
int setting_line(struct sim_config *st, const struct script_line *l, struct err *e) MUST_USE;
/* Computes the fields that depend on all settings: table lengths, lanes. */
void setting_close(struct sim_config *st);
/* Reads a model file into *st: sets the defaults, applies all lines, calls setting_close(). */
int setting_read(struct sim_config *st, const char *path, struct err *e) MUST_USE;
/* Changes the split mode of a configuration that was read; context_sm: used with DIVIDE_FIXED. */
void setting_divide(struct sim_config *st, uint32_t mode, const char *context_sm);
void setting_help(FILE *out);
