/* test_altup.c - mul, gaussian_topk, match_rms and altup against doubles, and rule 1 of
 * gpu/README.md: a row has the same bits alone and in a batch.
 */
#include "tests/gpu/ref_attend.h"
#include "tests/test.h"

#include <math.h>

enum { ROUNDS = 30 };

static uint32_t
width(bool whole)
{
    return whole ? 64 * between(1, 50) : between(1, 90);
}

static void
mul_multiplies_or_copies_to_another_dtype(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(2 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = width(whole), pad = whole ? 1 : 9;
        struct tensor x, y, w = NO_TENSOR;
        struct fixture r;

        open_any(&r);
        x = fixture_tensor(&r, test_below(2) ? DT_F32 : r.act, rows, d, d + test_below(pad), 1);
        y = fixture_output(&r, rows, d, d + test_below(pad));
        if (n % 3) w = fixture_tensor(&r, fixture_vector(&r), n % 3 == 1 ? 1 : rows, d, d, 1);
        fixture_send(&r);
        assert_int_equal(r.op->mul(r.lane, y, x, w), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < d; j++) {
                double v = at(x, i, j);

                if (w.data) v *= at(w, w.dim[0] == 1 ? 0 : i, j);
                near(at(y, i, j), v, fabs(v), y.dtype);
            }
        fixture_close(&r);
    }
}

static void
gaussian_topk_keeps_values_above_mean_plus_factor_std(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = width(whole);
        double factor = n % 2 ? 1.6448536 : 0.2533471;
        struct tensor x, old;
        struct fixture r;

        open_any(&r);
        x = fixture_tensor(&r, r.act, rows, d, whole ? d : d + test_below(9), 2);
        old = fixture_twice(&r, x);
        fixture_send(&r);
        assert_int_equal(r.op->gaussian_topk(r.lane, x, (float)factor), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            double mean = 0, squares = 0, edge, most = 0;

            for (uint32_t j = 0; j < d; j++) {
                mean += at(old, i, j) / d;
                most = fmax(most, fabs(at(old, i, j)));
            }
            for (uint32_t j = 0; j < d; j++) squares += pow(at(old, i, j) - mean, 2) / d;
            edge = mean + factor * sqrt(squares);
            for (uint32_t j = 0; j < d; j++)
                near(at(x, i, j), fmax(at(old, i, j) - edge, 0), 4 * most, r.act);
        }
        fixture_close(&r);
    }
}

static void
match_rms_scales_a_row_to_the_rms_of_another(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = width(whole);
        struct tensor y, old, like;
        struct fixture r;

        open_any(&r);
        y = fixture_tensor(&r, DT_F32, rows, d, whole ? d : d + test_below(9), n % 3 ? 2 : 1e-4f);
        old = fixture_twice(&r, y);
        like = fixture_tensor(&r, DT_F32, rows, d, d, 3);
        fixture_send(&r);
        assert_int_equal(r.op->match_rms(r.lane, y, like, 1e-5f), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            double want = 0, have = 0;

            for (uint32_t j = 0; j < d; j++) {
                want += pow(at(like, i, j), 2) / d;
                have += pow(at(old, i, j), 2) / d;
            }
            for (uint32_t j = 0; j < d; j++) {
                double v = at(old, i, j) * sqrt(want) / sqrt(fmax(have, 1e-5f));

                near(at(y, i, j), v, 3 * fabs(v), DT_F32);
            }
        }
        fixture_close(&r);
    }
}

static void
altup_predicts_and_corrects_streams(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(2 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = width(whole), s = between(1, 6);
        struct altup a = { .step = n % 2 ? ALTUP_CORRECT : ALTUP_PREDICT,
                           .n_streams = s,
                           .active = test_below(s) };
        struct tensor old;
        struct fixture r;

        open_any(&r);
        a.x = fixture_tensor(&r, DT_F32, rows, s * d, s * d + 4 * test_below(3), 1);
        a.coef = fixture_tensor(&r, DT_F32, rows, n % 2 ? s : s * s, n % 2 ? s : s * s, 1);
        if (n % 2) a.in = fixture_tensor(&r, DT_F32, rows, d, d, 1);
        old = fixture_twice(&r, a.x);
        fixture_send(&r);
        assert_int_equal(r.op->altup(r.lane, &a), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < s * d; j++) {
                double want = at(old, i, j), size = fabs(want) + 1, v;

                for (uint32_t k = 0; k < s && n % 2 == 0; k++) {
                    v = at(a.coef, i, j / d * s + k) * at(old, i, k * d + j % d);
                    want += v;
                    size += fabs(v);
                }
                if (n % 2) {
                    v = (1 + at(a.coef, i, j / d)) *
                        (at(a.in, i, j % d) - at(old, i, a.active * d + j % d));
                    want += v;
                    size += 4 * fabs(v) + 4 * fabs(1 + at(a.coef, i, j / d));
                }
                near(at(a.x, i, j), want, size, DT_F32);
            }
        fixture_close(&r);
    }
}

/* All four ops on rows [first, first + n) of x, in place. */
static void
all_of(struct fixture *r, struct tensor x, struct tensor coef, struct tensor w, uint32_t first,
       uint32_t n)
{
    struct tensor part = tensor_rows(x, first, n), half = tensor_cols(part, 0, x.dim[1] / 2);
    struct altup a = {
        .step = ALTUP_PREDICT, .x = part, .coef = tensor_rows(coef, first, n), .n_streams = 2
    };

    assert_int_equal(r->op->altup(r->lane, &a), 0);
    assert_int_equal(r->op->mul(r->lane, half, half, w), 0);
    assert_int_equal(
        r->op->match_rms(r->lane, half, tensor_cols(part, x.dim[1] / 2, x.dim[1] / 2), 1e-5f), 0);
    if (r->act == DT_F32) assert_int_equal(r->op->gaussian_topk(r->lane, half, 0.5f), 0);
}

static void
a_row_has_the_same_bits_in_any_batch(void **state)
{
    static const struct {
        const char *isa;
        uint32_t threads, at_once;
    } manner[] = { { "scalar", 1, 0 }, { "auto", 3, 0 }, { "auto", 2, 1 }, { "auto", 1, 5 } };

    (void)state;
    for (int n = 0; n < fixture_rounds(8); n++) {
        uint32_t rows = between(1, 40), d = 8 * between(1, 300);
        struct tensor x, coef, w, want = NO_TENSOR;
        struct fixture keep;

        fixture_open(&keep, "scalar", 1);
        x = fixture_tensor(&keep, DT_F32, rows, 2 * d, 2 * d, 1);
        coef = fixture_tensor(&keep, DT_F32, rows, 4, 4, 1);
        w = fixture_tensor(&keep, DT_F32, 1, d, d, 1);
        for (size_t i = 0; i < ARRAY_LEN(manner); i++) {
            uint32_t step = manner[i].at_once ? manner[i].at_once : rows;
            struct tensor out = fixture_twice(&keep, x);
            struct fixture r;

            fixture_open(&r, manner[i].isa, manner[i].threads);
            fixture_send(&r);
            for (uint32_t at = 0; at < rows; at += step)
                all_of(&r, out, coef, w, at, MIN(step, rows - at));
            fixture_wait(&r);
            fixture_close(&r);
            if (i == 0)
                want = out;
            else if (!same_bits(want, out))
                fail_msg("%u rows of %u, %u at once, differ", rows, d, step);
        }
        fixture_close(&keep);
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(mul_multiplies_or_copies_to_another_dtype),
        fixture_test(gaussian_topk_keeps_values_above_mean_plus_factor_std),
        fixture_test(match_rms_scales_a_row_to_the_rms_of_another),
        fixture_test(altup_predicts_and_corrects_streams),
        fixture_test(a_row_has_the_same_bits_in_any_batch),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
