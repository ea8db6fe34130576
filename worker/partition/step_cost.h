/* step_cost.h - what a step reads and computes, counted from its batch. Pure. */
#ifndef PARTITION_STEP_COST_H
#define PARTITION_STEP_COST_H

#include "worker/sched/batch.h"

/* Of a model. */
struct step_costs {
    uint64_t weights, encoder_weights; /* bytes that a step with decoder, encoder rows reads */
    double row_flops, encoder_flops;   /* a decoder row, a source row; attention aside */
    double attend[MAX_GROUPS];         /* FLOP a row and key */
    uint32_t n_enc_layers;             /* 0: decoder-only */
};

struct step_cost {
    double weights, kv;    /* bytes: of matrices, of keys and values that are seen */
    double matmul, attend; /* FLOP */
};

/* work: a mask of WORK_*, of which it is counted. */
struct step_cost step_cost_of(const struct step_costs *c, const struct kv_config *kv,
                              const struct batch *b, unsigned work);

#endif
