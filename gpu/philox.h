/* philox.h - the random number generator Philox 4x32-10: returns four random words for a key and a
 * counter and keeps no state. The same code runs on every device.
 *
 * Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC11.
 */
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline void
    philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];

    for (int i = 0; i < 10; i++) {
        uint64_t p = (uint64_t)0xd2511f53 * a, q = (uint64_t)0xcd9e8d57 * c;

        a = (uint32_t)(q >> 32) ^ b ^ k0;
        b = (uint32_t)q;
        c = (uint32_t)(p >> 32) ^ d ^ k1;
        d = (uint32_t)p;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}
