/* tiny_exec.h - small models of random weights, run by hand, and slots in them: one at a time in a program. */
#ifndef TESTS_EXEC_TINY_EXEC_H
#define TESTS_EXEC_TINY_EXEC_H

#include "tests/exec/exec_harness.h"

extern const char LLAMA[], WIDE[], T5[]; /* config.json of each; WIDE has a large vocabulary */
extern const token_id SOURCE[12];
extern struct hand h; /* what is open */

/* What was generated and how likely it was. */
struct made {
    token_id token[HAND_SLOTS][HAND_LEN];
    float logprob[HAND_SLOTS][HAND_LEN];
};

/* A model directory of a config alone; one lane, 64 rows and blocks of 16 unless o says otherwise. */
void open_model(const char *config, struct hand_options o);
/* Seat i: n given tokens, some pattern of its own, then n_new to generate. */
struct hand_slot *sit(uint32_t i, uint32_t n, uint32_t n_new);
/* Seats that come and go: prompts of many lengths, ends at many steps, drawn and penalised ones, bans. */
void sit_mixed(bool encoder);
/* What all slots made; then the model is closed. */
void take(struct made *m);

#endif
