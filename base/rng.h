/* rng.h - small seeded random number generators: rng_next() and rng_below() for tests, benchmarks
 * and the simulator, rng_id() for ids.
 *
 * rng_next() is a 64-bit linear congruential generator (Knuth, MMIX). Only the upper 32 bits are
 * used, because the lower bits have short periods. Any state is a valid seed. Not for token
 * sampling, which runs on the device, and not for secrets. */
#pragma once
#include "base/base.h"

/* Advances the state and returns 32 random bits. */
static inline uint32_t
rng_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 32);
}

/* Returns a uniform random number in [0, n), n > 0. */
static inline uint32_t
rng_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(((uint64_t)rng_next(state) * n) >> 32);
}

/* Advances the state and returns 64 random bits, different for 2^64 calls (splitmix64; Steele, Lea,
 * Flood 2014). */
static inline uint64_t
rng_id(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
