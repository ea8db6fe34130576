/* fp.h - conversions between float and bf16, fp16, fp8 e4m3 (KV), MXFP4. To float: exact. From
 * float: round to nearest even.
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

/* A NaN stays a NaN. */
static inline uint16_t
bf16_of_float(float f)
{
    uint32_t u = bits_of_float(f);

    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* a b + c with one rounding. Without the FMA instruction: the product is exact in double, the sum
 * is rounded to odd there (Boldo and Melquiond, 2008), and rounding 53 bits to 24 then gives the
 * exact result. */
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

/* MXFP4 code: 1 bit sign, 2 bits exponent, 1 bit fraction. */
static inline float
float_of_e2m1(unsigned code)
{
    static const float value[16] = { 0,    .5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6 };

    return value[code & 15];
}

/* 2^(b - 127), exact; 255 is NaN. */
static inline float
float_of_e8m0(uint8_t b)
{
    return float_of_bits(b == 255 ? 0x7fc00000 : b == 0 ? 0x00400000 : (uint32_t)b << 23);
}

/* fp8 e4m3: 4 bits exponent, 3 bits fraction, no infinities; 0x7f and 0xff are NaN. */
static inline float
float_of_e4m3(uint8_t b)
{
    uint32_t size = (uint32_t)(b & 0x7f) << 20, sign = (uint32_t)(b & 0x80) << 24;
    /* The exponent is moved to the position of fp32's. Subnormals have no hidden bit. */
    float f = float_of_bits(size + 0x3c000000);

    if (size < 0x00800000) f = float_of_bits(size + 0x3c800000) - 0x1p-6f;
    if (size == 0x07f00000) f = float_of_bits(0x7fc00000);
    return float_of_bits(bits_of_float(f) | sign);
}

uint8_t e4m3_of_float(float f); /* above 448, the largest: 448 with the same sign */

float float_of_f16(uint16_t h); /* a signalling NaN becomes quiet, as F16C does */
uint16_t f16_of_float(float f); /* too large: infinity */
