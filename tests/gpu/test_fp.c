/* test_fp.c - the conversions of gpu/fp.h, over all 2^16 patterns of both types. */
#include "gpu/fp.h"

#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include <math.h>

/* fp16 by its definition. */
static double
half(uint32_t h)
{
    int exp = (int)(h >> 10 & 31), man = (int)(h & 0x3ff);
    double v = exp == 31 ? (man ? NAN : INFINITY)
               : exp     ? ldexp(1024 + man, exp - 25)
                         : ldexp(man, -24);

    return h & 0x8000 ? -v : v;
}

static void
every_fp16_converts_to_its_float(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = float_of_f16((uint16_t)h);
        double want = half(h);

        if (want != want)
            assert_true(f != f);
        else
            assert_true((double)f == want && !signbit(f) == !signbit(want));
    }
}

static void
every_fp16_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = float_of_f16((uint16_t)h);
        uint16_t back = f16_of_float(f);

        if (f != f)
            assert_true((back & 0x7c00) == 0x7c00 && (back & 0x3ff));
        else
            assert_int_equal(back, h);
    }
}

/* Between two neighbours: the nearer one; at the midpoint the even one. */
static void
fp16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double low = half(h), high = h == 0x7bff ? 65536 : half(h + 1);
        float mid = (float)((low + high) / 2);

        assert_int_equal(f16_of_float(mid), h & 1 ? h + 1 : h);
        assert_int_equal(f16_of_float(nextafterf(mid, 0)), h);
        assert_int_equal(f16_of_float(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(f16_of_float(-mid), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_int_equal(f16_of_float(1e30f), 0x7c00);
    assert_int_equal(f16_of_float(1e-30f), 0);
}

static void
every_bf16_survives_the_round_trip_and_rounds_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = float_of_bf16((uint16_t)h), mid = float_of_bits(h << 16 | 0x8000);
        uint16_t back = bf16_of_float(f);

        assert_int_equal(bits_of_float(f), h << 16);
        if (f != f) {
            assert_true((back & 0x7f80) == 0x7f80 && (back & 0x7f));
            continue;
        }
        assert_int_equal(back, h);
        if ((h & 0x7f80) == 0x7f80) continue;
        assert_int_equal(bf16_of_float(mid), h & 1 ? h + 1 : h);
        assert_int_equal(bf16_of_float(float_of_bits(h << 16 | 0x7fff)), h);
        assert_int_equal(bf16_of_float(float_of_bits(h << 16 | 0x8001)), h + 1);
    }
}

static void
every_fp8_converts_exactly_and_rounds_to_even(void **state)
{
    (void)state;
    for (unsigned b = 0; b < 256; b++) {
        unsigned exp = b >> 3 & 15, man = b & 7;
        double want = exp ? ldexp(8 + man, (int)exp - 10) : ldexp(man, -9), next;
        float f = float_of_e4m3((uint8_t)b);

        if ((b & 0x7f) == 0x7f) {
            assert_true(isnan(f) && e4m3_of_float(f) == b);
            continue;
        }
        assert_true((double)f == (b & 0x80 ? -want : want) && !signbit(f) == !(b & 0x80));
        assert_int_equal(e4m3_of_float(f), b);
        if ((b & 0x7f) == 0x7e) continue;
        /* The midpoint to the next value, and slightly less and more. */
        next = fabs((double)float_of_e4m3((uint8_t)(b + 1)));
        f = (float)((want + next) / 2) * (b & 0x80 ? -1.0f : 1.0f);
        assert_int_equal(e4m3_of_float(f), b & 1 ? b + 1 : b);
        assert_int_equal(e4m3_of_float(nextafterf(f, 0)), b);
        assert_int_equal(e4m3_of_float(nextafterf(f, f * 2)), b + 1);
    }
    assert_int_equal(e4m3_of_float(449), 0x7e);
    assert_int_equal(e4m3_of_float(-INFINITY), 0xfe);
}

static void
every_mxfp4_code_and_scale_converts_exactly(void **state)
{
    static const float value[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

    (void)state;
    for (unsigned c = 0; c < 16; c++)
        assert_int_equal(bits_of_float(float_of_e2m1(c)),
                         bits_of_float(c & 8 ? -value[c & 7] : value[c & 7]));
    for (unsigned b = 0; b < 255; b++)
        assert_true((double)float_of_e8m0((uint8_t)b) == ldexp(1, (int)b - 127));
    assert_true(isnan(float_of_e8m0(255)));
    /* A code times its scale is exact in bf16, except outside bf16's range. */
    for (unsigned c = 0; c < 16; c++)
        for (unsigned b = 0; b < 252; b++) {
            float v = float_of_e2m1(c) * float_of_e8m0((uint8_t)b);

            assert_int_equal(bits_of_float(float_of_bf16(bf16_of_float(v))), bits_of_float(v));
        }
}

/* Through embed(), which converts eight at a time, with both instruction sets. */
static void
weights_are_converted_exactly_by_both_instruction_sets(void **state)
{
    static const char *const isa[] = { "scalar", "auto" };
    static const enum dtype type[] = { DT_BF16, DT_F16 };

    (void)state;
    for (int n = 0; n < 4; n++) {
        struct fixture r;
        struct tensor x, table;
        int32_t *token;

        fixture_open(&r, isa[n % 2], 1);
        table = tensor_2d(fixture_bytes(&r, 2 * 65536), type[n / 2], 8192, 8);
        x = fixture_output(&r, 8192, 8, 8);
        token = fixture_bytes(&r, 8192 * sizeof *token);
        for (int32_t i = 0; i < 8192; i++) token[i] = i;
        for (uint32_t h = 0; h < 65536; h++) ((uint16_t *)table.data)[h] = (uint16_t)h;
        assert_int_equal(r.op->embed(r.lane, x, table, token, 1), 0);
        fixture_wait(&r);
        assert_true(same_bits(x, table));
        fixture_close(&r);
    }
}

static void
fma_rounds_once(void **state)
{
    (void)state;
    test_seed();
    for (int i = 0; i < 2000000; i++) {
        uint32_t u[3];
        float a, b, c, want, got;

        for (int j = 0; j < 3; j++) u[j] = test_below(UINT32_MAX);
        /* Every second sum nearly cancels, which reveals a second rounding. */
        a = float_of_bits(u[0]);
        b = float_of_bits(u[1]);
        c = i % 2 ? float_of_bits(u[2]) : -a * b * (1 + (float)(u[2] % 64) * 0x1p-23f);
        want = fmaf(a, b, c);
        got = fma_1(a, b, c);
        if (want != want)
            assert_true(got != got);
        else
            assert_int_equal(bits_of_float(got), bits_of_float(want));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fp16_converts_to_its_float),
        cmocka_unit_test(every_fp16_survives_the_round_trip),
        cmocka_unit_test(fp16_rounds_to_nearest_even),
        cmocka_unit_test(every_bf16_survives_the_round_trip_and_rounds_to_even),
        cmocka_unit_test(every_fp8_converts_exactly_and_rounds_to_even),
        cmocka_unit_test(every_mxfp4_code_and_scale_converts_exactly),
        cmocka_unit_test(weights_are_converted_exactly_by_both_instruction_sets),
        cmocka_unit_test(fma_rounds_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
