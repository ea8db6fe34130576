/* mock.h - what mock_worker.c answers and shares with the test that kills it. */
#ifndef TESTS_TORTURE_MOCK_H
#define TESTS_TORTURE_MOCK_H

#include "base/base.h"
#include "base/failpoint.h"

enum { MOCK_VOCAB = 32000, MOCK_MAX_LEN = 1 << 16, MOCK_SLOTS = 64, MOCK_WORKERS = 64 };
/* What lagand gives a worker beyond its slots; and rings that hold a step of all of them. */
enum { MOCK_ROWS = MOCK_SLOTS + 256, MOCK_RING_D = 16, MOCK_RING_W = 17 };
/* A prompt that begins with this aborts the worker at its fourth token. */
enum { MOCK_POISON = MOCK_VOCAB - 1, MOCK_POISON_AT = 3 };
enum { MOCK_OWNERS = 1 << 16, MOCK_WAITS = 1 << 16 };

/* A request's token at a position. */
static inline int32_t
mock_token(uint64_t seed, uint32_t position)
{
    uint64_t x = (seed ^ (uint64_t)position << 40) * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return (int32_t)((x ^ x >> 32) % (MOCK_VOCAB - 1));
}

static inline char
mock_letter(int32_t token)
{
    return (char)('a' + token % 26);
}

/* The file that LAGAN_FP names: the failpoints' board, and behind it what mocks and tests say to each
 * other. */
struct mock_board {
    struct fp_board fp;
    _Atomic uint32_t pace_us;             /* test: the longest pause between two steps */
    _Atomic int32_t pid[MOCK_WORKERS];    /* mock: who is worker i */
    _Atomic int64_t killed[MOCK_WORKERS]; /* test: when it last killed worker i */
    _Atomic uint64_t
        owner[MOCK_OWNERS]; /* mock: of request seed % MOCK_OWNERS, since when and who */
    _Atomic uint32_t n_resumed, n_waits;  /* mock: requests that had begun elsewhere */
    _Atomic uint32_t wait_us[MOCK_WAITS]; /* from a kill to their arrival here */
};

#endif
