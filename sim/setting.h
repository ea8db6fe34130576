/* setting.h - what a pretended worker is: its cache, its limits, what its steps cost.
 *
 * The same lines begin a scenario and are a model file of `lagan-sim run`:
 *
 *     cache block 64 arena 60GiB
 *     group full layers 32 slice 16KiB attend 524288
 *     limits seqs 256 rows 8192 len 131072
 *     cost weights 16GiB row_flops 16e9 bandwidth 4.2e12 peak 600e12 launch 30us
 *
 * `lagan-sim script --help` prints every key with its sentence.
 */
#ifndef SIM_SETTING_H
#define SIM_SETTING_H

#include "sim/script.h"
#include "worker/sched/scheduler.h"

#include <stdio.h>

/* A roofline: a step takes as long as its bytes or its arithmetic, whichever is longer, and its launch. */
struct cost {
    uint64_t weights, encoder_weights; /* bytes that a step with decoder, encoder rows reads */
    double row_flops, encoder_flops;   /* a decoder row, a source row */
    double attend[MAX_GROUPS];         /* FLOP a row and key */
    double bandwidth, peak;            /* bytes and FLOP a second */
    nsec launch;
};

struct setting {
    struct kv_config kv;
    struct scheduler_limits sched;
    struct cost cost;
};

/* What scripts begin with: blocks of 10, room for everything, everything on one lane. */
void setting_defaults(struct setting *st);
/* 1: the line was a setting and is taken. 0: it is none. -EINVAL, -ENOENT with where. */
int setting_line(struct setting *st, const struct script *s, const struct script_line *l,
                 struct err *e) MUST_USE;
/* Fills in what follows from the rest: lengths of tables, lanes. */
void setting_close(struct setting *st);
int setting_read(struct setting *st, const char *path,
                 struct err *e) MUST_USE; /* all of the above */
void setting_help(FILE *out);

#endif
