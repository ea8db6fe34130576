/* fp.c - conversions to and from fp16, and to fp8 e4m3; see fp.h. */
#include "gpu/fp.h"

float
float_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;

    if (exp == 31) return float_of_bits(sign | 0x7f800000 | man << 13 | (man ? 0x400000 : 0));
    if (exp) return float_of_bits(sign | (exp + 112) << 23 | man << 13);
    /* A subnormal is man * 2^-24, exact in fp32. */
    return float_of_bits(sign | bits_of_float((float)man * 0x1p-24f));
}

uint16_t
f16_of_float(float f)
{
    uint32_t u = bits_of_float(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;

    if (mag > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more round to infinity */
    if (mag < 0x38800000) {
        /* Below 2^-14 the result is a multiple of 2^-24. In the sum with 0.5 the last bit of fp32
         * is 2^-24, so the addition rounds to that multiple. */
        return (uint16_t)(sign | (bits_of_float(float_of_bits(mag) + 0.5f) - 0x3f000000));
    }
    mag += 0xfff + (mag >> 13 & 1);
    return (uint16_t)(sign | (mag - 0x38000000) >> 13);
}

uint8_t
e4m3_of_float(float f)
{
    uint32_t u = bits_of_float(f), sign = u >> 24 & 0x80, mag = u & 0x7fffffff;

    if (mag > 0x7f800000) return (uint8_t)(sign | 0x7f);
    if (mag > 0x43e00000) return (uint8_t)(sign | 0x7e);
    /* Below 2^-6 the result is a multiple of 2^-9. In the sum with 2^14 the last bit of fp32 is
     * 2^-9, so the addition rounds to that multiple. */
    if (mag < 0x3c800000)
        return (uint8_t)(sign | (bits_of_float(float_of_bits(mag) + 0x1p14f) - 0x46800000));
    mag += 0x7ffff + (mag >> 20 & 1);
    return (uint8_t)(sign | (mag - 0x3c000000) >> 20);
}
