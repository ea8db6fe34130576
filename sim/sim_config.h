/* sim_config.h - what a pretended worker is: its cache, its limits, what its steps cost.
 *
 * The same lines begin a scenario and are a model file of `lagan-sim run`:
 *
 *     cache block 64 arena 60GiB
 *     group full layers 32 slice 16KiB attend 524288
 *     limits seqs 256 rows 8192 len 131072
 *     cost weights 16GiB row_flops 16e9 bandwidth 4.2e12 peak 600e12 launch 30us tile 256 burst 780e12 few 110
 *     split mode auto units 132 least 8 grain 8 target 50ms
 *     co_run context 64 generation 68 compute 0.44 read 0.80
 *
 * `lagan-sim script --help` prints every key with its sentence.
 */
#ifndef SIM_CONFIG_H
#define SIM_CONFIG_H

#include "sim/scenario.h"
#include "worker/partition/step_cost.h"
#include "worker/sched/scheduler.h"

#include <stdio.h>

/* What both parts of a divided device can do at once, as shares of what the whole can: measured. Between two of these
 * lines what lies between. */
struct co_run {
    uint32_t context, generation; /* units */
    double compute, read;         /* of prompts the arithmetic, of answers the bytes */
};
enum { MAX_CO_RUNS = 16 };

/* A roofline: a step takes as long as its matrices' bytes or arithmetic, whichever is longer, then its attention's,
 * and its launch. */
struct sim_cost {
    struct step_costs work;
    double bandwidth, peak; /* bytes and FLOP a second */
    nsec launch;
    nsec
        ends; /* of a step of prompts on a part: so much longer than its rows it takes, if it is long */
    uint32_t
        tile; /* products of more rows take as long as of its next multiple; 0: of any as they are */
    double burst,
        few; /* FLOP a second if the peak were no limit, rows that have half of it; 0: all have the peak */
    double guess; /* what auto thinks at first that answers read on a part, of what they do */
    struct co_run co_run[MAX_CO_RUNS];
    uint32_t n_co_runs;
};

/* How a device is divided between prompts and answers: as the keys split.* of a worker. */
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

/* What scripts begin with: blocks of 10, room for everything, everything on one lane. */
void setting_defaults(struct sim_config *st);
/* 1: the line was a setting and is taken. 0: it is none. -EINVAL, -ENOENT with where. */
int setting_line(struct sim_config *st, const struct script *s, const struct script_line *l,
                 struct err *e) MUST_USE;
/* Fills in what follows from the rest: lengths of tables, lanes. */
void setting_close(struct sim_config *st);
int setting_read(struct sim_config *st, const char *path,
                 struct err *e) MUST_USE; /* all of the above */
/* Another mode, after all lines were read; context_sm: of DIVIDE_FIXED. */
void setting_divide(struct sim_config *st, uint32_t mode, const char *context_sm);
void setting_help(FILE *out);

#endif
