/* test_experts.c - route, expert_matmul and combine against doubles, and rule 1 of gpu/README.md: a
 * row has the same bits in any batch. MXFP4 is decoded here from its definition.
 */
#include "tests/gpu/ref_attend.h"
#include "tests/test.h"

#include <math.h>

enum { ROUNDS = 30 };

/* n rows to k of e experts; slot: every fifth row is padding. */
static struct pairs
new_pairs(struct fixture *r, uint32_t n, uint32_t k, uint32_t e)
{
    return (struct pairs){
        .n_tokens = n,
        .n_top = k,
        .n_experts = e,
        .expert = fixture_bytes(r, (size_t)n * k * sizeof(uint32_t)),
        .share = fixture_bytes(r, (size_t)n * k * sizeof(float)),
        .place = fixture_bytes(r, (size_t)n * k * sizeof(uint32_t)),
        .row = fixture_bytes(r, (size_t)n * k * sizeof(uint32_t)),
        .first = fixture_bytes(r, (e + 1) * sizeof(uint32_t)),
    };
}

static uint32_t *
new_slots(struct fixture *r, uint32_t n, bool all)
{
    uint32_t *slot = fixture_bytes(r, n * sizeof *slot);

    for (uint32_t i = 0; i < n; i++) HOST(slot)[i] = all || test_below(5) ? i : SLOT_NONE;
    return slot;
}

/* Whether a row prefers expert a to b: larger logit, or equal and lower index. NaN is the
 * smallest. */
static bool
before(struct tensor logits, uint32_t row, uint32_t a, uint32_t b)
{
    double x = at(logits, row, a), y = at(logits, row, b);

    if (isnan(x) || isnan(y)) return isnan(x) == isnan(y) ? a < b : isnan(y);
    return x > y || (x >= y && a < b);
}

static void
check_row(const struct route *r, uint32_t i)
{
    const struct pairs *p = &r->pairs;
    const uint32_t *expert = HOST(p->expert) + (size_t)i * p->n_top;
    const float *share = HOST(p->share) + (size_t)i * p->n_top;
    double sum = 0, best = at(r->logits, i, expert[0]);

    for (uint32_t j = 0; j < p->n_top; j++) {
        uint32_t better = 0;

        assert_true(expert[j] < p->n_experts);
        for (uint32_t e = 0; e < p->n_experts; e++) better += before(r->logits, i, e, expert[j]);
        assert_int_equal(better, j);
        sum += exp((at(r->logits, i, expert[j]) - best) * (double)r->factor);
    }
    for (uint32_t j = 0; j < p->n_top && !isnan(sum); j++) {
        double want = exp((at(r->logits, i, expert[j]) - best) * (double)r->factor) / sum;

        if (r->scale.data) want *= at(r->scale, 0, expert[j]);
        near((double)share[j], want, 4 * fabs(want), DT_F32);
    }
}

static double
sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Sigmoid and bias round: an expert with a nearly equal score may be chosen instead. */
static void
check_sigmoid_row(const struct route *r, uint32_t i)
{
    const struct pairs *p = &r->pairs;
    const uint32_t *expert = HOST(p->expert) + (size_t)i * p->n_top;
    const float *share = HOST(p->share) + (size_t)i * p->n_top;
    double sum = 0;

    for (uint32_t j = 0; j < p->n_top; j++) {
        double mine, least = 1e-6;

        assert_true(expert[j] < p->n_experts);
        mine = sigmoid(at(r->logits, i, expert[j])) + at(r->bias, 0, expert[j]);
        for (uint32_t e = 0; e < p->n_experts; e++) {
            bool taken = false;

            for (uint32_t k = 0; k < j; k++) taken |= expert[k] == e;
            if (!taken)
                assert_true(sigmoid(at(r->logits, i, e)) + at(r->bias, 0, e) <= mine + least);
        }
        for (uint32_t k = 0; k < j; k++) assert_true(expert[k] != expert[j]);
        sum += sigmoid(at(r->logits, i, expert[j]));
    }
    for (uint32_t j = 0; j < p->n_top; j++) {
        double want = sigmoid(at(r->logits, i, expert[j])) / (sum + 1e-20) * (double)r->factor;

        near((double)share[j], want, 4 * fabs(want), DT_F32);
    }
}

/* Checks that the sorted pairs are ordered by expert, then by row, and complete. */
static void
check_places(const struct pairs *p, const uint32_t *slot)
{
    const uint32_t *first = HOST(p->first), *row = HOST(p->row);
    uint32_t want = 0;

    for (uint32_t i = 0; i < p->n_tokens; i++) want += slot[i] == SLOT_NONE ? 0 : p->n_top;
    assert_int_equal(first[0], 0);
    assert_int_equal(first[p->n_experts], want);
    for (uint32_t e = 0; e < p->n_experts; e++) {
        assert_true(first[e] <= first[e + 1]);
        for (uint32_t at = first[e]; at < first[e + 1]; at++) {
            const uint32_t *expert = HOST(p->expert) + (size_t)row[at] * p->n_top;
            const uint32_t *place = HOST(p->place) + (size_t)row[at] * p->n_top;
            uint32_t j = 0;

            assert_true(row[at] < p->n_tokens && (at == first[e] || row[at] > row[at - 1]));
            while (j < p->n_top && expert[j] != e) j++;
            assert_true(j < p->n_top && place[j] == at);
        }
    }
}

static void
route_chooses_the_largest_logits_lowest_expert_on_ties(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        uint32_t e = between(1, n % 3 ? 9 : 128), k = between(1, MIN(e, 8u));
        uint32_t rows = between(1, n % 5 ? 40 : 900);
        struct fixture r;
        struct route a = { .factor = n % 2 ? 1 : 0.3f };
        uint32_t *slot;

        open_any(&r);
        a.logits = fixture_tensor(&r, DT_F32, rows, e, e + test_below(5), 2);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < e; j++) {
                if (test_below(3) == 0) set(a.logits, i, j, (float)test_below(3)); /* ties */
                if (test_below(40) == 0) set(a.logits, i, j, NAN);
                if (n % 3 == 2) set(a.logits, i, j, fixture_normal());
            }
        a.sigmoid = n % 3 == 2;
        if (a.sigmoid) a.bias = fixture_tensor(&r, DT_F32, 1, e, e, 1);
        if (n % 2) a.scale = fixture_tensor(&r, DT_F32, 1, e, e, 1);
        a.pairs = new_pairs(&r, rows, k, e);
        slot = new_slots(&r, rows, n % 4 == 0);
        a.slot = n % 4 == 0 ? NULL : slot;
        fixture_send(&r);
        assert_int_equal(r.op->route(r.lane, &a), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            if (HOST(slot)[i] != SLOT_NONE && a.sigmoid)
                check_sigmoid_row(&a, i);
            else if (HOST(slot)[i] != SLOT_NONE)
                check_row(&a, i);
            else
                assert_int_equal(HOST(a.pairs.expert)[(size_t)i * k], e);
        check_places(&a.pairs, HOST(slot));
        fixture_close(&r);
    }
}

/* Weights of several kinds, and their values. */
struct weights {
    struct tensor w;
    uint8_t *code, *scale; /* MXFP4 */
};

static struct weights
new_weights(struct fixture *r, bool fp4, uint32_t rows, uint32_t k)
{
    struct weights w = { 0 };

    if (!fp4) {
        w.w = fixture_tensor(r, fixture_weight(r), rows, k, k, 1);
        return w;
    }
    w.code = fixture_bytes(r, (size_t)rows * k / 2);
    w.scale = fixture_bytes(r, (size_t)rows * k / MX_RUN);
    for (size_t i = 0; i < (size_t)rows * k / 2; i++) HOST(w.code)[i] = (uint8_t)test_below(256);
    for (size_t i = 0; i < (size_t)rows * k / MX_RUN; i++)
        HOST(w.scale)[i] = (uint8_t)(120 + test_below(8));
    w.w = tensor_2d(w.code, DT_MXFP4, rows, k);
    w.w.scale = (const float *)(const void *)w.scale;
    w.w.scale_run = MX_RUN;
    return w;
}

static double
worth(const struct weights *w, uint32_t row, uint32_t col)
{
    static const double value[] = { 0, .5, 1, 1.5, 2, 3, 4, 6 };
    size_t at_code = (size_t)row * w->w.dim[1] + col;
    unsigned code;

    if (!w->code) return at(w->w, row, col);
    code = HOST(w->code)[at_code / 2] >> (at_code % 2 ? 4 : 0) & 15;
    return ldexp(code & 8 ? -value[code & 7] : value[code & 7],
                 HOST(w->scale)[at_code / MX_RUN] - 127);
}

static void
expert_matmul_multiplies_each_pair_with_its_expert(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(2 * ROUNDS); n++) {
        bool fp4 = n % 2, whole = wide();
        uint32_t e = between(1, 9), top = between(1, MIN(e, 4u)),
                 rows = between(1, n % 7 ? 12 : 200);
        uint32_t k = fp4 || whole ? 32 * between(1, 12) : between(1, 90);
        uint32_t out = whole ? 8 * between(1, 40) : between(1, 50), look;
        struct expert_matmul m = { .by_row = test_below(2) };
        struct route a = { .factor = 1 };
        struct weights w;
        struct fixture r;
        uint32_t pairs = rows * top;

        open_any(&r);
        a.logits = fixture_tensor(&r, DT_F32, rows, e, e, 2);
        a.pairs = new_pairs(&r, rows, top, e);
        a.slot = new_slots(&r, rows, false);
        m.x = fixture_tensor(&r, r.act, m.by_row ? rows : pairs, k, whole ? k : k + test_below(9),
                             1);
        w = new_weights(&r, fp4, e * out, k);
        m.w = w.w;
        if (test_below(2)) m.bias = fixture_tensor(&r, DT_F32, e, out, out, 1);
        m.y = fixture_output(&r, pairs, out, out);
        fixture_send(&r);
        assert_int_equal(r.op->route(r.lane, &a), 0);
        assert_int_equal(r.op->expert_matmul(r.lane, &m, &a.pairs), 0);
        fixture_wait(&r);
        look = HOST(a.pairs.first)[e];
        for (uint32_t p = 0, of = 0; p < look; p++) {
            uint32_t from = m.by_row ? HOST(a.pairs.row)[p] : p;

            while (p >= HOST(a.pairs.first)[of + 1]) of++;
            for (uint32_t s = 0; s < 40; s++) {
                uint32_t j = test_below(out);
                double bias = m.bias.data ? at(m.bias, of, j) : 0, sum = bias, size = fabs(bias);

                for (uint32_t c = 0; c < k; c++) {
                    double v = at(m.x, from, c) * worth(&w, of * out + j, c);

                    sum += v;
                    size += fabs(v);
                }
                near(at(m.y, p, j), sum, size, m.y.dtype);
            }
        }
        fixture_close(&r);
    }
}

/* Shares exclude the bias, the choice includes it; nearly equal scores may go either way. */
static void
sigmoid_routing_adds_the_bias_only_to_choose(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        uint32_t e = between(2, 40), k = between(1, MIN(e, 8u)), rows = between(1, 40);
        struct route a = { .sigmoid = true, .factor = 2.5f };
        struct fixture r;

        open_any(&r);
        a.logits = fixture_tensor(&r, DT_F32, rows, e, e, 2);
        a.bias = fixture_tensor(&r, DT_F32, 1, e, e, 1);
        a.pairs = new_pairs(&r, rows, k, e);
        fixture_send(&r);
        assert_int_equal(r.op->route(r.lane, &a), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            const uint32_t *expert = HOST(a.pairs.expert) + (size_t)i * k;
            double sum = 0, least = INFINITY, s[64];
            bool chosen[64] = { false };

            for (uint32_t j = 0; j < e; j++) s[j] = 1 / (1 + exp(-at(a.logits, i, j)));
            for (uint32_t j = 0; j < k; j++) {
                assert_true(expert[j] < e && !chosen[expert[j]]);
                chosen[expert[j]] = true;
                sum += s[expert[j]];
                least = fmin(least, s[expert[j]] + at(a.bias, 0, expert[j]));
            }
            for (uint32_t j = 0; j < e; j++)
                assert_true(chosen[j] || s[j] + at(a.bias, 0, j) <= least + 1e-6);
            for (uint32_t j = 0; j < k; j++)
                near((double)HOST(a.pairs.share)[i * k + j], s[expert[j]] / sum * 2.5,
                     4 * s[expert[j]] / sum * 2.5, DT_F32);
        }
        fixture_close(&r);
    }
}

static void
combine_adds_expert_outputs_weighted_by_shares(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        bool whole = wide();
        uint32_t e = between(1, 9), top = between(1, MIN(e, 4u)), rows = between(1, 20);
        uint32_t d = whole ? 64 * between(1, 50) : between(1, 90);
        struct route a = { .factor = 1 };
        struct tensor x, y;
        struct fixture r;

        open_any(&r);
        a.logits = fixture_tensor(&r, DT_F32, rows, e, e, 2);
        a.pairs = new_pairs(&r, rows, top, e);
        a.slot = new_slots(&r, rows, false);
        x = fixture_tensor(&r, r.act, rows * top, d, d, 1);
        y = fixture_output(&r, rows, d, whole ? d : d + test_below(9));
        fixture_send(&r);
        assert_int_equal(r.op->route(r.lane, &a), 0);
        assert_int_equal(r.op->combine(r.lane, y, x, &a.pairs), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < d; j++) {
                bool nobody = HOST(a.slot)[i] == SLOT_NONE;
                double sum = 0, size = 0;

                for (uint32_t t = 0; t < top && !nobody; t++) {
                    double v = (double)HOST(a.pairs.share)[i * top + t] *
                               at(x, HOST(a.pairs.place)[i * top + t], j);

                    sum += v;
                    size += fabs(v);
                }
                near(at(y, i, j), sum, size, y.dtype);
            }
        fixture_close(&r);
    }
}

struct work {
    struct tensor logits, x, bias, y;
    struct weights w;
    struct pairs pairs; /* and y: one batch after another */
    uint32_t e, top, d;
};

/* Router, product and sum of rows [first, first + n), stored in out. */
static void
one_batch(struct fixture *r, const struct work *k, struct tensor out, uint32_t first, uint32_t n)
{
    struct route a = { .logits = tensor_rows(k->logits, first, n), .factor = 1, .pairs = k->pairs };
    struct expert_matmul m = { .y = tensor_rows(k->y, 0, n * k->top),
                               .x = tensor_rows(k->x, first, n),
                               .w = k->w.w,
                               .bias = k->bias,
                               .by_row = true };

    a.pairs.n_tokens = n;
    assert_int_equal(r->op->route(r->lane, &a), 0);
    assert_int_equal(r->op->expert_matmul(r->lane, &m, &a.pairs), 0);
    assert_int_equal(r->op->combine(r->lane, tensor_rows(out, first, n), m.y, &a.pairs), 0);
}

static void
a_row_has_the_same_bits_in_any_batch(void **state)
{
    static const struct {
        const char *isa;
        uint32_t threads, at_once;
    } manner[] = {
        { "scalar", 1, 0 }, { "auto", 3, 0 }, { "auto", 2, 1 }, { "auto", 1, 5 }, { "auto", 1, 33 }
    };

    (void)state;
    for (int n = 0; n < fixture_rounds(8); n++) {
        uint32_t rows = between(1, 150), k = 32 * between(1, 9);
        struct work job = { .e = between(2, 6), .d = 8 * between(1, 30) };
        struct tensor want = NO_TENSOR;
        struct fixture keep;

        fixture_open(&keep, "scalar", 1);
        job.top = between(1, job.e);
        job.logits = fixture_tensor(&keep, DT_F32, rows, job.e, job.e, 2);
        job.x = fixture_tensor(&keep, keep.act, rows, k, k, 1);
        job.w = new_weights(&keep, n % 2, job.e * job.d, k);
        job.bias = fixture_tensor(&keep, DT_F32, job.e, job.d, job.d, 1);
        for (size_t i = 0; i < ARRAY_LEN(manner); i++) {
            uint32_t step = manner[i].at_once ? manner[i].at_once : rows;
            struct tensor out = fixture_empty(&keep, keep.act, rows, job.d, job.d);
            struct fixture r;

            job.pairs = new_pairs(&keep, step, job.top, job.e);
            job.y = fixture_output(&keep, step * job.top, job.d, job.d);
            fixture_open(&r, manner[i].isa, manner[i].threads);
            fixture_send(&r);
            for (uint32_t at = 0; at < rows; at += step)
                one_batch(&r, &job, out, at, MIN(step, rows - at));
            fixture_wait(&r);
            fixture_close(&r);
            if (i == 0)
                want = out;
            else if (!same_bits(want, out))
                fail_msg("%u rows, %u at once, with %u threads, differ", rows, step,
                         manner[i].threads);
        }
        fixture_close(&keep);
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(route_chooses_the_largest_logits_lowest_expert_on_ties),
        fixture_test(expert_matmul_multiplies_each_pair_with_its_expert),
        fixture_test(sigmoid_routing_adds_the_bias_only_to_choose),
        fixture_test(combine_adds_expert_outputs_weighted_by_shares),
        fixture_test(a_row_has_the_same_bits_in_any_batch),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
