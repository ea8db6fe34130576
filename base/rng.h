/* rng.h - a small seeded random number generator for tests, benchmarks and the simulator.
 *
 * A 64-bit linear congruential generator (Knuth, MMIX). Only the upper 32 bits are used, because
 * the lower bits have short periods. Any state is a valid seed. Not for token sampling, which runs
 * on the device, and not for secrets. */
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
