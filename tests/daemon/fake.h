/* fake.h - the outputs of fake_worker.c, for the tests that check them. */
#pragma once
#include "base/base.h"

enum { FAKE_VOCAB = 1000, FAKE_MAX_LEN = 950000, FAKE_REJECT = 999, FAKE_TEXT = 3000000 };
enum {
    FAKE_POISON = 13
}; /* mode poison: a prompt of this length crashes the worker at its fourth token */

/* The token at a position of a request with that seed. */
static inline token_id
fake_token(uint64_t seed, uint32_t position)
{
    uint64_t x = (seed + position) * UINT64_C(0x9e3779b97f4a7c15);

    return (token_id)((x ^ x >> 29) % FAKE_VOCAB);
}

static inline char
fake_letter(token_id t)
{
    return (char)('a' + t % 26);
}

static inline float
fake_logprob(uint32_t position)
{
    return -0.25f * (float)(position % 8);
}
