/* test_math.c - the functions of gpu/cpu/cpu_math.h against the C library's in double. */
#include "gpu/cpu/cpu_math.h"

#include "tests/test.h"

#include <float.h>
#include <math.h>

/* Distance in ulp of a float near want. */
static double
ulps(float got, double want)
{
    int exp;
    float as_float = (float)want;

    if (got == as_float || (got != got && want != want)) return 0;
    if (isinf(got) || isinf(as_float) || got != got) return 1e9;
    frexp(want, &exp);
    return fabs((double)got - want) / ldexp(1, MAX(exp - 24, -149));
}

/* Over all float patterns in steps, with both signs if from is negative. */
static double
worst(v8 (*f)(v8), double (*ref)(double), float from, float to, float *where)
{
    double max = 0;

    for (uint64_t u = 0; u < UINT32_MAX; u += 3001) {
        float x = float_of_bits((uint32_t)u);
        double d;

        if (!(x >= from && x <= to)) continue;
        d = ulps(v8_first(f(v8_set(x))), ref(x));
        if (d > max) max = d, *where = x;
    }
    return max;
}

static v8
wrap_exp(v8 x)
{
    return v8_exp(x);
}

static v8
wrap_log(v8 x)
{
    return v8_log(x);
}

static v8
wrap_tanh(v8 x)
{
    return v8_tanh(x);
}

static v8
wrap_erf(v8 x)
{
    return v8_erf(x);
}

static v8
wrap_sinpi(v8 x)
{
    return v8_sinpi_small(x);
}

static v8
wrap_cospi(v8 x)
{
    return v8_cospi_small(x);
}

static double
sin_of_pi(double x)
{
    return sin(M_PI * x);
}

static double
cos_of_pi(double x)
{
    return cos(M_PI * x);
}

static void
close_to(const char *name, v8 (*f)(v8), double (*ref)(double), float from, float to)
{
    float where = 0;
    double d = worst(f, ref, from, to, &where);

    print_message("%s: at most %.2f ulp, at %g\n", name, d, (double)where);
    assert_true(d <= 2);
}

static void
exp_is_within_two_ulp_including_subnormals(void **state)
{
    (void)state;
    close_to("exp", wrap_exp, exp, -FLT_MAX, FLT_MAX);
    assert_true(exp_1(0) == 1);
    assert_true(exp_1(-INFINITY) == 0);
    assert_true(exp_1(INFINITY) == INFINITY);
    assert_true(isnan(exp_1(NAN)));
    assert_true(exp_1(-103.9f) > 0);
}

static void
log_is_within_two_ulp_for_all_positive_floats(void **state)
{
    (void)state;
    close_to("log", wrap_log, log, 0x1p-149f, FLT_MAX);
    assert_true(log_1(1) == 0);
    assert_true(log_1(0) == -INFINITY);
}

static void
tanh_is_within_two_ulp_and_ends_at_one(void **state)
{
    (void)state;
    close_to("tanh", wrap_tanh, tanh, -FLT_MAX, FLT_MAX);
    assert_true(v8_first(v8_tanh(v8_set(INFINITY))) == 1);
    assert_true(v8_first(v8_tanh(v8_set(-INFINITY))) == -1);
    assert_true(isnan(v8_first(v8_tanh(v8_set(NAN)))));
}

static void
erf_is_within_two_ulp_and_ends_at_one(void **state)
{
    (void)state;
    close_to("erf", wrap_erf, erf, -FLT_MAX, FLT_MAX);
    assert_true(v8_first(v8_erf(v8_set(INFINITY))) == 1);
    assert_true(v8_first(v8_erf(v8_set(-INFINITY))) == -1);
    assert_true(isnan(v8_first(v8_erf(v8_set(NAN)))));
}

static void
sine_and_cosine_are_within_two_ulp_up_to_45_degrees(void **state)
{
    (void)state;
    close_to("sin_of_pi", wrap_sinpi, sin_of_pi, -0.25f, 0.25f);
    close_to("cos_of_pi", wrap_cospi, cos_of_pi, -0.25f, 0.25f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_ulp_including_subnormals),
        cmocka_unit_test(log_is_within_two_ulp_for_all_positive_floats),
        cmocka_unit_test(tanh_is_within_two_ulp_and_ends_at_one),
        cmocka_unit_test(erf_is_within_two_ulp_and_ends_at_one),
        cmocka_unit_test(sine_and_cosine_are_within_two_ulp_up_to_45_degrees),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
