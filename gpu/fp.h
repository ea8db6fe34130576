/* fp.h - converts single numbers between float and bf16, fp16, fp8 e4m3 (KV) and MXFP4. Conversions
 * to float are exact; conversions from float round to nearest even.
 */
#pragma once
#include "base/base.h"

static inline float
float_of_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t
bits_of_float(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float
float_of_bf16(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

/* NaN becomes a NaN, not an infinity. */
static inline uint16_t
bf16_of_float(float f)
{
    uint32_t u = bits_of_float(f);

    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Returns a b + c, rounded once. Without the FMA instruction: the product is exact in double, the
 * sum is rounded to odd in double (Boldo and Melquiond, 2008), and rounding its 53 bits to 24 then
 * gives the correctly rounded result. */
static inline float
fma_1(float a, float b, float c)
{
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    double p = (double)a * b, s = p + c, t = s - p, lost = (p - (s - t)) + (c - t);
    uint64_t u;

    memcpy(&u, &s, sizeof u);
    if (lost != 0 && (u & 1) == 0 && s - s == 0) u += (lost > 0) == (s > 0) ? 1 : UINT64_MAX;
    memcpy(&s, &u, sizeof s);
    return (float)s;
#endif
}

/* Returns the value of a 4-bit MXFP4 code: 1 bit sign, 2 bits exponent, 1 bit fraction. */
static inline float
float_of_e2m1(unsigned code)
{
    static const float value[16] = { 0,    .5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6 };

    return value[code & 15];
}

/* Returns the MXFP4 scale of byte b: 2^(b - 127), exact; 255 is NaN. */
static inline float
float_of_e8m0(uint8_t b)
{
    return float_of_bits(b == 255 ? 0x7fc00000 : b == 0 ? 0x00400000 : (uint32_t)b << 23);
}

/* Returns the value of an fp8 e4m3 byte: 4 bits exponent, 3 bits fraction, no inf; 0x7f and 0xff
 * are NaN. */
static inline float
float_of_e4m3(uint8_t b)
{
    uint32_t size = (uint32_t)(b & 0x7f) << 20, sign = (uint32_t)(b & 0x80) << 24;
    /* Moves the exponent bits to their position in fp32. A subnormal has no implicit leading 1. */
    float f = float_of_bits(size + 0x3c000000);

    if (size < 0x00800000) f = float_of_bits(size + 0x3c800000) - 0x1p-6f;
    if (size == 0x07f00000) f = float_of_bits(0x7fc00000);
    return float_of_bits(bits_of_float(f) | sign);
}

/* values above 448, the largest e4m3 value, become 448 with their sign */
uint8_t e4m3_of_float(float f);

float float_of_f16(uint16_t h); /* a signalling NaN becomes quiet, as F16C does */
uint16_t f16_of_float(float f); /* too large: infinity */
