/* golden.h - a fixture of tests/data/golden: prompts and the results of transformers. */
#pragma once
#include "base/base.h"

#include <jansson.h>

enum { GOLDEN_PROMPTS = 16, GOLDEN_NEW = 32 };

struct golden_prompt {
    token_id *input, *decoder; /* decoder: NULL in a decoder-only model */
    uint32_t n_input, n_decoder;
    token_id greedy[GOLDEN_NEW];
    double margin[GOLDEN_NEW], logprob[GOLDEN_NEW];
    const float *last, *all; /* logits [vocab], [n_input or n_decoder][vocab] or NULL */
    const float *last_fp8;   /* last, with the KV cache in fp8; NULL: not recorded */
};

struct golden_tensors { /* a safetensors file */
    char *data;
    json_t *header;
};

struct golden {
    char dir[400];
    uint32_t n, vocab;
    struct golden_prompt prompt[GOLDEN_PROMPTS];
    json_t *expected;
    struct golden_tensors logits, fp8; /* fp8: all members NULL if there is no such file */
};

/* Fails the test if the fixture cannot be read. */
void golden_open(struct golden *g, const char *name);
void golden_close(struct golden *g);

/* Makes a directory with the same checkpoint and another config as config.json; ret: its path. */
void golden_with_config(const struct golden *g, const char *config, char ret[64]);
void golden_remove(const char *dir);
