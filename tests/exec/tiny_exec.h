/* tiny_exec.h - small models with random weights in the harness; one open model per program. */
#pragma once
#include "tests/exec/exec_harness.h"

extern const char LLAMA[], WIDE[], T5[]; /* config.json of each; WIDE has a large vocabulary */
extern const token_id SOURCE[12];
extern struct harness h; /* the open model */

/* Generated tokens and their log-probabilities. */
struct made {
    token_id token[HARNESS_SLOTS][HARNESS_LEN];
    float logprob[HARNESS_SLOTS][HARNESS_LEN];
};

/* Opens a model with only a config.json. Defaults of o: 1 lane, 64 tokens, blocks of 16. */
void open_model(const char *config, struct harness_options o);
/* Starts slot i: n prompt tokens with a pattern of that slot, then n_new generated tokens. */
struct harness_slot *start_slot(uint32_t i, uint32_t n, uint32_t n_new);
/* Starts slots with different prompt lengths, ends and sampling parameters. */
void start_mixed(bool encoder);
/* Copies the results of all slots and closes the model. */
void take(struct made *m);
