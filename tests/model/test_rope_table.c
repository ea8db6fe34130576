/* test_rope_table.c - rotary frequencies compared with double-precision results. */
#include "tests/test.h"
#include "worker/model/rope_table.h"

#include <math.h>

static void
close_to(double got, double want)
{
    if (!(fabs(got - want) <= 1e-6 * fabs(want))) fail_msg("%.9g, want %.9g", got, want);
}

static void
default_frequencies_fall_from_1_to_1_over_theta(void **state)
{
    struct rope_params p = { .type = ROPE_DEFAULT, .theta = 1e4, .partial = 1 };
    float f[64];

    (void)state;
    assert_int_equal(rope_dim(&p, 128), 128);
    assert_true(rope_frequencies(&p, 128, 512, f) == 1);
    for (int i = 0; i < 64; i++) close_to(f[i], pow(1e4, -i / 64.0));
}

static void
linear_divides_every_frequency(void **state)
{
    struct rope_params p = { .type = ROPE_LINEAR, .theta = 1e6, .factor = 8, .partial = 1 };
    float f[16];

    (void)state;
    assert_true(rope_frequencies(&p, 32, 512, f) == 1);
    for (int i = 0; i < 16; i++) close_to(f[i], pow(1e6, -i / 16.0) / 8);
}

static void
llama3_rope_stretches_long_waves_only(void **state)
{
    struct rope_params p = { .type = ROPE_LLAMA3,
                             .theta = 5e5,
                             .factor = 8,
                             .low = 1,
                             .high = 4,
                             .original_max = 8192,
                             .partial = 1 };
    static const struct {
        int i;
        double f;
    } want[] = { { 0, 1 },
                 { 20, 0.0165604401 }, /* unchanged */
                 { 28, 0.00321144599 },
                 { 30, 0.00137189357 }, /* blended */
                 { 34, 0.000178507813 },
                 { 36, 7.78465527e-05 },
                 { 63, 3.06892599e-07 } }; /* 1/8 */
    float f[64];

    (void)state;
    assert_true(rope_frequencies(&p, 128, 512, f) == 1);
    for (size_t i = 0; i < ARRAY_LEN(want); i++) close_to(f[want[i].i], want[i].f);
}

static void
yarn_blends_over_dims_and_scales_cos_and_sin(void **state)
{
    struct rope_params p = { .type = ROPE_YARN,
                             .theta = 150000,
                             .factor = 32,
                             .beta_fast = 32,
                             .beta_slow = 1,
                             .original_max = 4096,
                             .partial = 1,
                             .attention_factor = NAN };
    static const struct {
        int i;
        double f;
    } want[] = { { 0, 1 },
                 { 8, 0.0508132748 },
                 { 9, 0.0317056962 },
                 { 12, 0.00679495949 },
                 { 16, 0.000456483919 },
                 { 18, 3.83088124e-05 },
                 { 31, 3.02351143e-07 } };
    float f[32];

    (void)state;
    close_to(rope_frequencies(&p, 64, 512, f), 1.3465735902799727);
    for (size_t i = 0; i < ARRAY_LEN(want); i++) close_to(f[want[i].i], want[i].f);
    p.truncate = true; /* borders at dims 8 and 18: another blend */
    rope_frequencies(&p, 64, 512, f);
    close_to(f[8], pow(150000, -16 / 64.0));
    assert_true(f[9] < pow(150000, -18 / 64.0) * 0.99);
    p.attention_factor = 1.25;
    assert_true(rope_frequencies(&p, 64, 512, f) == 1.25f);
}

/* The values are those of transformers 5.17. */
static void
longrope_divides_by_the_list_of_the_served_length(void **state)
{
    static const double want[][8] = {
        { 1, 0.287479758, 0.0833333358, 0.0243252143, 0.00714285718, 0.00210818532, 0.000624999986,
          0.000186016332 },
        { 1, 0.126491114, 0.0250000004, 0.00574959582, 0.00142857141, 0.000372032693,
          9.99999975e-05, 2.74980684e-05 },
    };
    struct rope_params p = { .type = ROPE_LONGROPE,
                             .theta = 1e4,
                             .factor = 4,
                             .original_max = 64,
                             .partial = 1,
                             .attention_factor = NAN,
                             .n_divisors = 8 };
    float f[8], table[2 * 16];

    (void)state;
    for (int i = 0; i < 8; i++) {
        p.divisor[ROPE_SHORT][i] = 1 + 0.1f * (float)i;
        p.divisor[ROPE_LONG][i] = 1 + 1.5f * (float)i;
    }
    for (uint32_t longer = 0; longer < 2; longer++) {
        close_to(rope_frequencies(&p, 16, 64 + longer, f), 1.1547005383792517);
        for (int i = 0; i < 8; i++) close_to(f[i], want[longer][i]);
    }
    rope_table(&p, 16, 2, table); /* a short model */
    assert_true(fabs(table[16 + 8 + 1] - 1.1547005 * sin(want[0][1])) < 1e-6);
    p.attention_factor = 2;
    assert_true(rope_frequencies(&p, 16, 64, f) == 2);
}

static void
dynamic_rope_is_the_default_up_to_the_positions_of_the_model(void **state)
{
    struct rope_params p = { .type = ROPE_DYNAMIC, .theta = 1e4, .factor = 8, .partial = 1 };
    float f[8];

    (void)state;
    assert_true(rope_frequencies(&p, 16, 512, f) == 1);
    for (int i = 0; i < 8; i++) close_to(f[i], pow(1e4, -i / 8.0));
}

static void
proportional_rope_exponents_cover_the_whole_head(void **state)
{
    struct rope_params p = {
        .type = ROPE_PROPORTIONAL, .theta = 1e6, .factor = 1, .partial = 0.25
    };
    float f[256];

    (void)state;
    assert_int_equal(rope_dim(&p, 512), 512);
    assert_true(rope_frequencies(&p, 512, 512, f) == 1);
    for (int i = 0; i < 64; i++) close_to(f[i], pow(1e6, -2 * i / 512.0));
    for (int i = 64; i < 256; i++) assert_true(f[i] == 0);
}

static void
partial_rotation_of_a_head_is_supported(void **state)
{
    struct rope_params p = { .type = ROPE_DEFAULT, .theta = 1e4, .partial = 0.5 };
    float f[16];

    (void)state;
    assert_int_equal(rope_dim(&p, 64), 32);
    rope_frequencies(&p, 64, 512, f);
    close_to(f[15], pow(1e4, -30 / 32.0));
    p.partial = 0.1;
    assert_int_equal(rope_dim(&p, 64), 6);
}

static void
rope_table_has_cosines_then_sines_of_fp32_angles(void **state)
{
    struct rope_params p = { .type = ROPE_DEFAULT, .theta = 1e4, .partial = 1 };
    static float t[200][16];
    float f[8];

    (void)state;
    rope_frequencies(&p, 16, 512, f);
    rope_table(&p, 16, 200, t[0]);
    for (int pos = 0; pos < 200; pos++)
        for (int i = 0; i < 8; i++) {
            float angle = (float)pos * f[i];

            assert_true(t[pos][i] == (float)cos(angle));
            assert_true(t[pos][8 + i] == (float)sin(angle));
        }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_frequencies_fall_from_1_to_1_over_theta),
        cmocka_unit_test(linear_divides_every_frequency),
        cmocka_unit_test(llama3_rope_stretches_long_waves_only),
        cmocka_unit_test(yarn_blends_over_dims_and_scales_cos_and_sin),
        cmocka_unit_test(longrope_divides_by_the_list_of_the_served_length),
        cmocka_unit_test(dynamic_rope_is_the_default_up_to_the_positions_of_the_model),
        cmocka_unit_test(proportional_rope_exponents_cover_the_whole_head),
        cmocka_unit_test(partial_rotation_of_a_head_is_supported),
        cmocka_unit_test(rope_table_has_cosines_then_sines_of_fp32_angles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
