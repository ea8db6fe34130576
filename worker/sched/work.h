/* work.h - what a step reads and computes, counted from its batch. Pure. */
#ifndef SCHED_WORK_H
#define SCHED_WORK_H

#include "worker/sched/batch.h"

/* Of a model. */
struct work_costs {
    uint64_t weights, encoder_weights; /* bytes that a step with decoder, encoder rows reads */
    double row_flops, encoder_flops;   /* a decoder row, a source row; attention aside */
    double attend[MAX_GROUPS];         /* FLOP a row and key */
    uint32_t n_enc_layers;             /* 0: decoder-only */
};

struct work_done {
    double weights, kv;    /* bytes: of matrices, of keys and values that are seen */
    double matmul, attend; /* FLOP */
};

/* work: a mask of WORK_*, of which it is counted. */
struct work_done work_of(const struct work_costs *c, const struct kv_config *kv,
                         const struct batch *b, unsigned work);

#endif
