/* test_t5_bias.c - T5's buckets compared with transformers: 32 buckets, max_distance 128. */
#include "tests/test.h"
#include "worker/arch/t5_bias.h"

static const struct t5_buckets ENCODER = { 32, 128, true }, DECODER = { 32, 128, false };

static void
encoder_bias_buckets_equal_those_of_transformers(void **state)
{
    static const int32_t edge[] = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91, 1 << 20
    };

    (void)state;
    for (uint32_t b = 0; b < 16; b++)
        for (int32_t d = edge[b]; d < edge[b + 1]; d += d < 200 ? 1 : 99991) {
            assert_int_equal(t5_bucket(ENCODER, -d), b);
            if (d) assert_int_equal(t5_bucket(ENCODER, d), 16 + b);
        }
}

static void
decoder_bias_buckets_equal_those_of_transformers(void **state)
{
    static const int32_t edge[] = { 16, 19, 21, 24, 27, 31, 35,  40,     46,
                                    52, 59, 67, 77, 87, 99, 113, 1 << 20 };

    (void)state;
    for (int32_t d = 0; d < 16; d++) assert_int_equal(t5_bucket(DECODER, -d), d);
    for (uint32_t b = 0; b < 16; b++)
        for (int32_t d = edge[b]; d < edge[b + 1]; d += d < 200 ? 1 : 99991)
            assert_int_equal(t5_bucket(DECODER, -d), 16 + b);
    assert_int_equal(t5_bucket(DECODER, 5), 0); /* never used by a decoder */
}

static void
bias_table_ends_where_buckets_stop_changing(void **state)
{
    static float weight[32 * 3], out[3 * (2 * 113 + 1)];

    (void)state;
    assert_int_equal(t5_reach(ENCODER), 91);
    assert_int_equal(t5_reach(DECODER), 113);
    for (uint32_t i = 0; i < 32 * 3; i++) weight[i] = (float)i;
    t5_bias(out, weight, 3, ENCODER);
    for (int32_t h = 0; h < 3; h++)
        for (int32_t d = -91; d <= 91; d++)
            assert_true(out[h * 183 + d + 91] == (float)(t5_bucket(ENCODER, d) * 3 + (uint32_t)h));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoder_bias_buckets_equal_those_of_transformers),
        cmocka_unit_test(decoder_bias_buckets_equal_those_of_transformers),
        cmocka_unit_test(bias_table_ends_where_buckets_stop_changing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
