/* rng.h - a small seeded generator: what tests, benches and the simulator draw from.
 *
 * A linear congruential generator of 64 bits (Knuth, MMIX), of which the upper half is used: its lower bits
 * repeat soon. Any state is a seed. Not for tokens, which are drawn on the device, and not for secrets.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include "base/base.h"

static inline uint32_t
rng_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 32);
}

/* Uniform in [0, n), n > 0. */
static inline uint32_t
rng_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(((uint64_t)rng_next(state) * n) >> 32);
}

#endif
