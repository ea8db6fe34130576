/* cpu_math.h - exp, log, tanh, erf and sin/cos of the CPU device, for eight values at a time.
 *
 * The functions of C libraries are not used, because their results differ between releases and
 * between scalar and vector code, and gpu.h guarantees the same bits everywhere. The error is at
 * most 2 ulp (measured by tests/gpu/test_math), subnormal results included. NaN in, NaN out.
 *
 * Polynomials: exp and tanh after Cephes (Moshier); erf and log after N. Juffa's posts of
 * single-precision minimax approximations.
 */
#pragma once
#include "gpu/cpu/cpu_vec.h"

/* Added to a float, 1.5 * 2^23 rounds it: the low bits of the sum are the nearest integer. */
#define MATH_ROUND 12582912.0f

ALWAYS v8
v8_exp(v8 x)
{
    v8 shifted, n, r, p, scale_1, scale_2;
    n8 i, half;

    /* The bounds are the first arguments, because min and max return their second argument if one
     * argument is NaN; so NaN stays NaN. */
    x = v8_max(v8_set(-104.0f), v8_min(v8_set(89.0f), x));
    shifted = v8_fma(x, v8_set(1.44269504f), v8_set(MATH_ROUND));
    n = v8_sub(shifted, v8_set(MATH_ROUND));
    r = v8_fma(n, v8_set(-0.693359375f), x);
    r = v8_fma(n, v8_set(2.12194440e-4f), r);
    p = v8_set(1.9875691500e-4f);
    p = v8_fma(p, r, v8_set(1.3981999507e-3f));
    p = v8_fma(p, r, v8_set(8.3334519073e-3f));
    p = v8_fma(p, r, v8_set(4.1665795894e-2f));
    p = v8_fma(p, r, v8_set(1.6666665459e-1f));
    p = v8_fma(p, r, v8_set(5.0000001201e-1f));
    p = v8_fma(p, v8_mul(r, r), r);
    p = v8_add(p, v8_set(1.0f));
    /* Multiplies by 2^n in two factors, so that a subnormal result is rounded only once. */
    i = n8_sub(n8_of_bits(shifted), n8_of_bits(v8_set(MATH_ROUND)));
    half = n8_shr(i, 1);
    scale_1 = v8_of_bits(n8_shl(n8_add(half, n8_set(127)), 23));
    scale_2 = v8_of_bits(n8_shl(n8_add(n8_sub(i, half), n8_set(127)), 23));
    return v8_mul(v8_mul(p, scale_1), scale_2);
}

/* Natural logarithm of positive finite values. 0: -inf; negative: an arbitrary number, not NaN. */
ALWAYS v8
v8_log(v8 x)
{
    v8 tiny = v8_set(0x1p-126f), e, m, s, r, t, zero = v8_set(0.0f);
    n8 bits, exp;

    e = v8_if_less(x, tiny, v8_set(-23.0f), zero);
    m = v8_if_less(x, tiny, v8_mul(x, v8_set(0x1p23f)), x);
    /* x = m * 2^exp with m in [2/3, 4/3). */
    bits = n8_sub(n8_of_bits(m), n8_of_bits(v8_set(0.666666667f)));
    exp = n8_and(bits, n8_set((int32_t)0xff800000));
    e = v8_add(e, v8_mul(v8_of_int(exp), v8_set(0x1p-23f)));
    m = v8_sub(v8_of_bits(n8_sub(n8_of_bits(m), exp)), v8_set(1.0f));
    s = v8_mul(m, m);
    r = v8_set(-0.130310059f);
    t = v8_set(0.140869141f);
    r = v8_fma(r, s, v8_set(-0.121484190f));
    t = v8_fma(t, s, v8_set(0.139814854f));
    r = v8_fma(r, s, v8_set(-0.166846052f));
    t = v8_fma(t, s, v8_set(0.200120345f));
    r = v8_fma(r, s, v8_set(-0.249996200f));
    r = v8_fma(t, m, r);
    r = v8_fma(r, m, v8_set(0.333331972f));
    r = v8_fma(r, m, v8_set(-0.5f));
    r = v8_fma(r, s, m);
    r = v8_fma(e, v8_set(0.693147182f), r);
    return v8_if_less(zero, x, r, v8_set(-INFINITY));
}

ALWAYS v8
v8_tanh(v8 x)
{
    v8 a = v8_abs(x), z = v8_mul(x, x), p, small, large;

    p = v8_set(-5.70498872745e-3f);
    p = v8_fma(p, z, v8_set(2.06390887954e-2f));
    p = v8_fma(p, z, v8_set(-5.37397155531e-2f));
    p = v8_fma(p, z, v8_set(1.33314422036e-1f));
    p = v8_fma(p, z, v8_set(-3.33332819422e-1f));
    small = v8_fma(v8_mul(p, z), x, x);
    large = v8_add(v8_exp(v8_add(a, a)), v8_set(1.0f));
    large = v8_sub(v8_set(1.0f), v8_div(v8_set(2.0f), large));
    return v8_if_less(a, v8_set(0.625f), small, v8_copysign(large, x));
}

ALWAYS v8
v8_erf(v8 x)
{
    v8 t = v8_abs(x), s = v8_mul(x, x), r, u, small;

    r = v8_fma(v8_set(-1.72853470e-5f), t, v8_set(3.83197126e-4f));
    u = v8_fma(v8_set(-3.88396438e-3f), t, v8_set(2.42546219e-2f));
    r = v8_fma(r, s, u);
    r = v8_fma(r, t, v8_set(-1.06777877e-1f));
    r = v8_fma(r, t, v8_set(-6.34846687e-1f));
    r = v8_fma(r, t, v8_set(-1.28717512e-1f));
    r = v8_fma(r, t, v8_neg(t));
    r = v8_copysign(v8_sub(v8_set(1.0f), v8_exp(r)), x);
    small = v8_set(-5.96761703e-4f);
    small = v8_fma(small, s, v8_set(4.99119423e-3f));
    small = v8_fma(small, s, v8_set(-2.67681349e-2f));
    small = v8_fma(small, s, v8_set(1.12819925e-1f));
    small = v8_fma(small, s, v8_set(-3.76125336e-1f));
    small = v8_fma(small, s, v8_set(1.28379166e-1f));
    small = v8_fma(small, x, x);
    /* Above 4 the polynomial is wrong; the result is 1, to which erf rounds from 3.92 on. */
    r = v8_if_less(v8_set(4.0f), t, v8_copysign(v8_set(1.0f), x), r);
    return v8_if_less(v8_set(0.921875f), t, r, small);
}

/* cos (here) and sin (below) of pi x for x in [-1/4, 1/4]. */
ALWAYS v8
v8_cospi_small(v8 x)
{
    v8 s = v8_mul(x, x), c = v8_set(0x1.d9e000p-3f);

    c = v8_fma(c, s, v8_set(-0x1.55c400p+0f));
    c = v8_fma(c, s, v8_set(0x1.03c1cep+2f));
    c = v8_fma(c, s, v8_set(-0x1.3bd3ccp+2f));
    return v8_fma(c, s, v8_set(1.0f));
}

ALWAYS v8
v8_sinpi_small(v8 x)
{
    v8 s = v8_mul(x, x), r = v8_set(-0x1.310000p-1f);

    r = v8_fma(r, s, v8_set(0x1.46737ep+1f));
    r = v8_fma(r, s, v8_set(-0x1.4abbfep+2f));
    return v8_fma(x, v8_set(0x1.921fb6p+1f), v8_mul(v8_mul(x, s), r));
}

/* exp of one value, with the bits that v8_exp() gives. */
ALWAYS float
exp_1(float x)
{
    return v8_first(v8_exp(v8_set(x)));
}

ALWAYS float
log_1(float x)
{
    return v8_first(v8_log(v8_set(x)));
}
