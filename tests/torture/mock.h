/* mock.h - what mock_worker.c replies, and memory shared with the test that kills it. */
#pragma once
#include "base/base.h"
#include "base/failpoint.h"

enum { MOCK_VOCAB = 32000, MOCK_MAX_LEN = 1 << 16, MOCK_SLOTS = 64, MOCK_WORKERS = 64 };
/* Requests that lagand sends beyond a worker's slots; rings that hold a step of all of them. */
enum { MOCK_ROWS = MOCK_SLOTS + 256, MOCK_RING_D = 16, MOCK_RING_W = 17 };
/* A prompt that starts with this token aborts the worker at its fourth token. */
enum { MOCK_POISON = MOCK_VOCAB - 1, MOCK_POISON_AT = 3 };
enum { MOCK_OWNERS = 1 << 16, MOCK_WAITS = 1 << 16 };

/* Returns a request's token at a position. */
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

/* The file that LAGAN_FP names: the board of failpoints, then data shared by mocks and tests. */
struct mock_board {
    struct fp_board fp;
    _Atomic uint32_t pace_us;             /* test: longest time between two steps */
    _Atomic int32_t pid[MOCK_WORKERS];    /* mock: process of worker i */
    _Atomic int64_t killed[MOCK_WORKERS]; /* test: when worker i was last killed */
    _Atomic uint64_t owner[MOCK_OWNERS];  /* mock: time and worker of request seed % MOCK_OWNERS */
    _Atomic uint32_t n_resumed, n_waits;  /* mock: requests started in another worker */
    _Atomic uint32_t wait_us[MOCK_WAITS]; /* from the kill to the arrival in the next worker */
};
