/* step_cost.h - the bytes and FLOP of a step, counted from its batch. Pure. */
#pragma once

#include "worker/sched/batch.h"

/* Constants of a model. */
struct step_costs {
    uint64_t weights, encoder_weights; /* bytes that a step with decoder or encoder tokens reads */
    double row_flops, encoder_flops;   /* FLOP of a decoder or encoder token without attention */
    double attend[MAX_GROUPS];         /* FLOP per token and key */
    uint32_t n_enc_layers;             /* 0: decoder-only */
};

struct step_cost {
    double weights, kv;    /* bytes of matrices, and of keys and values read */
    double matmul, attend; /* FLOP of matrix products and attention */
};

/* work: mask of enum work to count. */
struct step_cost step_cost_of(const struct step_costs *c, const struct kv_config *kv,
                              const struct batch *b, unsigned work);
