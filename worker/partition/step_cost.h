/* step_cost.h - counts the bytes that a step reads and its FLOP, from its batch. Pure. */
#pragma once
#include "worker/sched/batch.h"

/* The constants of a model from which the cost of its steps is counted. */
struct step_costs {
    uint64_t weights, encoder_weights; /* bytes that a step with decoder or encoder tokens reads */
    double row_flops, encoder_flops;   /* FLOP of a decoder or encoder token without attention */
    double attend[MAX_GROUPS];         /* per KV group: attention FLOP per query token and key */
    uint32_t n_enc_layers;             /* 0: decoder-only */
};

struct step_cost {
    double weights, kv;    /* bytes read of weights, and of keys and values */
    double matmul, attend; /* FLOP of matrix products, and of attention */
};

/* Returns the cost of the parts of b that do this work (mask of enum work). */
struct step_cost step_cost_of(const struct step_costs *c, const struct kv_config *kv,
                              const struct batch *b, unsigned work);
