/* test_ops.c - every op against a naive reference in double: random shapes, odd strides, outputs
 * poisoned with NaN first. The bound is a few roundings of fp32, scaled by what was summed.
 */
#include "tests/gpu/naive.h"
#include "tests/test.h"

#include "gpu/fp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 40 };

static const enum dtype weight_type[] = { DT_F32, DT_BF16, DT_F16 };

static uint32_t
between(uint32_t low, uint32_t high)
{
    return low + test_below(high - low + 1);
}

static enum dtype
some_weight(void)
{
    return weight_type[test_below(3)];
}

/* size: the sum of the magnitudes that went in. */
static void
near(double got, double want, double size)
{
    double bound = size * 4e-6 + 1e-30;

    if (fabs(got - want) <= bound) return; /* false for a NaN */
    fail_msg("%.9g, but should be %.9g within %.2g", got, want, bound);
}

static void
open_any(struct rig *r)
{
    rig_open(r, test_below(4) ? "auto" : "scalar", between(1, 3));
}

static void
embed_is_the_scaled_row_of_each_token(void **state)
{
    (void)state;
    for (int n = 0; n < ROUNDS; n++) {
        uint32_t rows = between(1, 9), d = between(1, 70), vocab = between(1, 50);
        struct rig r;
        struct tensor table, x;
        int32_t *token;

        open_any(&r);
        table = rig_tensor(&r, some_weight(), vocab, d, d + test_below(5), 1);
        x = rig_output(&r, rows, d, d + test_below(5));
        token = rig_bytes(&r, rows * sizeof *token);
        for (uint32_t i = 0; i < rows; i++) token[i] = (int32_t)test_below(vocab + 1) - 1;
        assert_int_equal(r.op->embed(r.lane, x, table, token, 3.5f), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < d; j++) {
                double want = token[i] < 0 ? 0 : at(table, (uint32_t)token[i], j) * 3.5;

                near(at(x, i, j), want, fabs(want));
            }
        rig_close(&r);
    }
}

static void
matmul_is_x_w_transposed_plus_bias_plus_beta_y(void **state)
{
    (void)state;
    for (int n = 0; n < 3 * ROUNDS; n++) {
        uint32_t rows = between(1, 9), k = between(1, 100), out = between(1, 60);
        float beta = test_below(3) ? 0 : 0.75f;
        struct rig r;
        struct tensor x, w, bias = NO_TENSOR, y, old;

        open_any(&r);
        x = rig_tensor(&r, DT_F32, rows, k, k + test_below(9), 1);
        w = rig_tensor(&r, some_weight(), out, k, k + test_below(9), 1);
        if (test_below(2)) bias = rig_tensor(&r, some_weight(), 1, out, out, 1);
        y = rig_output(&r, rows, out, out + test_below(9));
        if (beta != 0) y = rig_tensor(&r, DT_F32, rows, out, y.stride, 1);
        old = y;
        old.data = rig_bytes(&r, (size_t)rows * y.stride * 4);
        memcpy(old.data, y.data, (size_t)rows * y.stride * 4);
        assert_int_equal(r.op->matmul(r.lane, y, x, w, bias, beta), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < out; j++) {
                double sum = bias.data ? at(bias, 0, j) : 0, size = fabs(sum);

                for (uint32_t e = 0; e < k; e++) {
                    sum += at(x, i, e) * at(w, j, e);
                    size += fabs(at(x, i, e) * at(w, j, e));
                }
                if (beta != 0) {
                    sum += beta * at(old, i, j);
                    size += fabs(beta * at(old, i, j));
                }
                near(at(y, i, j), sum, size);
            }
        rig_close(&r);
    }
}

static void
rms_norm_divides_by_the_root_mean_square(void **state)
{
    (void)state;
    for (int n = 0; n < ROUNDS; n++) {
        uint32_t rows = between(1, 9), d = between(1, 90);
        float plus = test_below(2) ? 1 : 0;
        struct rig r;
        struct tensor x, y, w = NO_TENSOR;

        open_any(&r);
        x = rig_tensor(&r, DT_F32, rows, d, d + test_below(9), 3);
        y = rig_output(&r, rows, d, d + test_below(9));
        if (test_below(3)) w = rig_tensor(&r, some_weight(), 1, d, d, 1);
        assert_int_equal(r.op->rms_norm(r.lane, y, x, w, 1e-5f, plus), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            double sum = 0;

            for (uint32_t j = 0; j < d; j++) sum += at(x, i, j) * at(x, i, j);
            for (uint32_t j = 0; j < d; j++) {
                double v = at(x, i, j) / sqrt(sum / d + 1e-5f);

                if (w.data) v *= at(w, 0, j) + plus;
                near(at(y, i, j), v, fabs(v));
            }
        }
        rig_close(&r);
    }
}

static void
layer_norm_takes_the_mean_off_first(void **state)
{
    (void)state;
    for (int n = 0; n < ROUNDS; n++) {
        uint32_t rows = between(1, 9), d = between(2, 90);
        struct rig r;
        struct tensor x, y, w = NO_TENSOR, b = NO_TENSOR;

        open_any(&r);
        x = rig_tensor(&r, DT_F32, rows, d, d + test_below(9), 3);
        y = rig_output(&r, rows, d, d + test_below(9));
        if (test_below(3)) w = rig_tensor(&r, some_weight(), 1, d, d, 1);
        if (test_below(3)) b = rig_tensor(&r, some_weight(), 1, d, d, 1);
        assert_int_equal(r.op->layer_norm(r.lane, y, x, w, b, 1e-5f), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            double mean = 0, var = 0;

            for (uint32_t j = 0; j < d; j++) mean += at(x, i, j) / d;
            for (uint32_t j = 0; j < d; j++) var += pow(at(x, i, j) - mean, 2) / d;
            for (uint32_t j = 0; j < d; j++) {
                double weight = w.data ? at(w, 0, j) : 1, add = b.data ? at(b, 0, j) : 0;
                double inv = 1 / sqrt(var + 1e-5f);

                /* The mean's own rounding is felt as far as the values are large. */
                near(at(y, i, j), (at(x, i, j) - mean) * inv * weight + add,
                     fabs(add) + fabs(weight) * (3 + 10 * inv));
            }
        }
        rig_close(&r);
    }
}

static double
activation(double x, enum act a)
{
    switch (a) {
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_SILU:
        return x / (1 + exp(-x));
    case ACT_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    }
    return NAN;
}

static void
act_gate_add_and_scale_are_what_they_say(void **state)
{
    (void)state;
    for (int n = 0; n < 2 * ROUNDS; n++) {
        uint32_t rows = between(1, 5), d = between(1, 70);
        enum act a = (enum act)(n % 4);
        float cap = test_below(2) ? 30 : 0;
        struct rig r;
        struct tensor x, y, pair, gated, sum, scaled;

        open_any(&r);
        x = rig_tensor(&r, DT_F32, rows, d, d + test_below(9), 3);
        y = rig_output(&r, rows, d, d + test_below(9));
        pair = rig_tensor(&r, DT_F32, rows, 2 * d, 2 * d + test_below(9), 3);
        gated = rig_output(&r, rows, d, d + test_below(9));
        sum = rig_output(&r, rows, d, d);
        scaled = rig_output(&r, rows, d, d);
        for (uint32_t i = 0; i < rows * d; i++) {
            ((float *)sum.data)[i] = rig_normal();
            ((float *)scaled.data)[i] = rig_normal();
        }
        double before = at(sum, 0, d - 1), unscaled = at(scaled, 0, d - 1);

        assert_int_equal(r.op->act(r.lane, y, x, a), 0);
        assert_int_equal(r.op->gate(r.lane, gated, pair, a), 0);
        assert_int_equal(r.op->add(r.lane, sum, x), 0);
        assert_int_equal(r.op->scale(r.lane, scaled, 20, cap), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < d; j++) {
                double v = at(x, i, j), g = at(pair, i, j), up = at(pair, i, d + j);

                near(at(y, i, j), activation(v, a), fabs(v));
                near(at(gated, i, j), activation(g, a) * up, fabs(g * up));
            }
        near(at(sum, 0, d - 1), before + at(x, 0, d - 1), 10);
        near(at(scaled, 0, d - 1), cap != 0 ? cap * tanh(20 * unscaled / cap) : 20 * unscaled, 60);
        rig_close(&r);
    }
}

static void
rows_copies_are_bytes(void **state)
{
    struct rig r;
    struct tensor x, y;
    uint32_t *which;

    (void)state;
    open_any(&r);
    x = rig_tensor(&r, DT_BF16, 20, 33, 40, 1);
    y = x;
    y.data = rig_bytes(&r, 50 * 37 * 2);
    y.dim[0] = 50;
    y.stride = 37;
    which = rig_bytes(&r, 50 * sizeof *which);
    for (int i = 0; i < 50; i++) which[i] = test_below(20);
    assert_int_equal(r.op->rows(r.lane, y, x, which), 0);
    rig_wait(&r);
    for (uint32_t i = 0; i < 50; i++)
        for (uint32_t j = 0; j < 33; j++) assert_true(at(y, i, j) == at(x, which[i], j));
    rig_close(&r);
}

static void
copies_edits_and_tokens_land_where_they_should(void **state)
{
    struct rig r;
    uint32_t n = 3 << 20, *a, *b, *c;
    slice_id table[2][6] = { { 0 } };
    struct table_edit edit[] = {
        { .table = 1, .seat = 1, .entry = 2, .at = 7 },
        { .table = 0, .seat = 2, .entry = 1, .at = 9 },
        { .table = 1,
          .seat = 1,
          .entry = 2,
          .at = SLICE_NONE }, /* in order: the later one stands */
    };
    int32_t token[] = { 5, -1, -1, 8 }, last[] = { 100, 101, 102 };
    uint32_t seat[] = { 0, 2, SEAT_NONE, 1 };
    int32_t pos[] = { 0, 0, 0, 0 };
    struct rows rows = { .n_rows = 4, .token = token, .pos = pos, .seat = seat };

    (void)state;
    open_any(&r);
    a = rig_bytes(&r, n);
    b = rig_bytes(&r, n);
    c = rig_bytes(&r, n);
    for (uint32_t i = 0; i < n / 4; i++) a[i] = i;
    assert_int_equal(r.op->put(r.lane, b, a, n), 0);
    assert_int_equal(r.op->copy(r.lane, b + 1, a, 64), 0);
    assert_int_equal(r.op->get(r.lane, c, b, n), 0);
    assert_int_equal(
        r.op->edit(r.lane,
                   (struct tables){ .n = 2, .stride = { 2, 3 }, .table = { table[0], table[1] } },
                   edit, 3),
        0);
    assert_int_equal(r.op->tokens(r.lane, rows, last), 0);
    rig_wait(&r);
    for (uint32_t i = 0; i < n / 4; i++) assert_int_equal(c[i], i >= 1 && i <= 16 ? i - 1 : i);
    assert_int_equal(table[0][5], 9);
    assert_int_equal(table[1][5], SLICE_NONE);
    assert_int_equal(token[0], 5);
    assert_int_equal(token[1], 102);
    assert_int_equal(token[2], -1);
    assert_int_equal(token[3], 8);
    rig_close(&r);
}

static void
rope_store_norms_rotates_and_stores(void **state)
{
    (void)state;
    for (int n = 0; n < 2 * ROUNDS; n++) {
        uint32_t d = 2 * between(1, 40), rot = 2 * between(1, d / 2), rows = between(1, 9);
        uint32_t n_kv = between(1, 3), n_heads = n_kv * between(1, 3), max_pos = 40;
        bool norms = test_below(2), rotates = test_below(3), stores = test_below(4);
        struct rig r;
        struct paged p;
        struct tensor q, k, v, q_old, k_old, cs, qn, kn;
        struct rope_store s;
        int32_t *pos;
        uint32_t *seat;

        open_any(&r);
        rig_paged(&r, &p, test_below(2) ? DT_F32 : DT_BF16, 2, max_pos, 1u << test_below(5), n_kv,
                  d);
        q = rig_tensor(&r, DT_F32, rows, n_heads * d, n_heads * d + test_below(9), 1);
        k = rig_tensor(&r, DT_F32, rows, n_kv * d, n_kv * d + test_below(9), 1);
        v = rig_tensor(&r, DT_F32, rows, n_kv * d, n_kv * d + test_below(9), 1);
        q_old = q;
        q_old.data = memcpy(rig_bytes(&r, (size_t)rows * q.stride * 4), q.data,
                            (size_t)rows * q.stride * 4);
        k_old = k;
        k_old.data = memcpy(rig_bytes(&r, (size_t)rows * k.stride * 4), k.data,
                            (size_t)rows * k.stride * 4);
        cs = rig_tensor(&r, DT_F32, max_pos, rot, rot, 1);
        qn = rig_tensor(&r, some_weight(), 1, d, d, 1);
        kn = rig_tensor(&r, some_weight(), 1, d, d, 1);
        pos = rig_bytes(&r, rows * sizeof *pos);
        seat = rig_bytes(&r, rows * sizeof *seat);
        for (uint32_t i = 0; i < rows; i++) {
            pos[i] = (int32_t)(i < 5 ? 3 * i : 7 * (i - 5) + 1); /* no two of a seat alike */
            seat[i] = i == 2 ? SEAT_NONE : i < 5 ? 0 : 1;
        }
        s = (struct rope_store){ .q = q,
                                 .k = k,
                                 .v = v,
                                 .q_norm = norms ? qn : NO_TENSOR,
                                 .k_norm = norms ? kn : NO_TENSOR,
                                 .norm_eps = 1e-6f,
                                 .norm_plus = 1,
                                 .cos_sin = rotates ? cs : NO_TENSOR,
                                 .n_heads = n_heads,
                                 .n_kv_heads = n_kv,
                                 .head_dim = d };
        if (stores) s.kv = p.view;
        assert_int_equal(
            r.op->rope_store(r.lane, &s, (struct rows){ .n_rows = rows, .pos = pos, .seat = seat }),
            0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t h = 0; h < n_heads + n_kv; h++) {
                bool is_k = h >= n_heads;
                uint32_t head = is_k ? h - n_heads : h;
                struct tensor from = is_k ? k_old : q_old, w = is_k ? kn : qn;
                double x[80], sum = 0;

                for (uint32_t e = 0; e < d; e++) {
                    x[e] = at(from, i, head * d + e);
                    sum += x[e] * x[e];
                }
                for (uint32_t e = 0; norms && e < d; e++)
                    x[e] = x[e] / sqrt(sum / d + 1e-6f) * (at(w, 0, e) + 1);
                for (uint32_t e = 0; e < d; e++) {
                    uint32_t half = rot / 2, pair = e < half ? e + half : e - half;
                    double want = x[e], size = fabs(x[e]) + 1e-3, got;

                    if (rotates && e < rot) {
                        double c = at(cs, (uint32_t)pos[i], e % half);
                        double sn = at(cs, (uint32_t)pos[i], half + e % half);

                        want = e < half ? x[e] * c - x[pair] * sn : x[e] * c + x[pair] * sn;
                        size = fabs(x[e] * c) + fabs(x[pair] * sn) + 1e-3;
                    }
                    if (is_k && stores) {
                        if (seat[i] == SEAT_NONE) continue;
                        got = naive_kv(&p.view, 0, seat[i], (uint32_t)pos[i], head, e);
                        if (p.view.dtype == DT_BF16) size *= 1200;
                        assert_true(at(k, i, head * d + e) == at(k_old, i, head * d + e));
                    } else {
                        got = at(is_k ? k : q, i, head * d + e);
                    }
                    near(got, want, size);
                    if (is_k && stores) {
                        got = naive_kv(&p.view, 1, seat[i], (uint32_t)pos[i], head, e);
                        want = at(v, i, head * d + e);
                        near(got, want, fabs(want) * (p.view.dtype == DT_BF16 ? 1200 : 1));
                    }
                }
            }
        rig_close(&r);
    }
}

/* A random mix of every variant; K and V outside the visible keys are NaN. */
static void
attend_is_softmax_over_the_visible_keys(void **state)
{
    (void)state;
    for (int n = 0; n < 4 * ROUNDS; n++) {
        uint32_t n_kv = between(1, 3), n_heads = n_kv * between(1, 4), d = between(1, 12) * 6;
        uint32_t tpb = 4u << test_below(5), kind = test_below(4), rows = 0;
        struct run run[3] = { { 0 } };
        struct rig r;
        struct paged p;
        struct attend a = {
            .n_heads = n_heads, .n_kv_heads = n_kv, .head_dim = d, .scale = 0.2f, .causal = kind < 2
        };
        float *sinks, *bias;

        open_any(&r);
        rig_paged(&r, &p, test_below(2) ? DT_F32 : DT_BF16, 3, 300, tpb, n_kv, d);
        for (uint32_t i = 0; i < 3; i++) {
            run[i].seat = (i + 1) % 3;
            run[i].first_row = rows;
            run[i].n_rows = between(1, test_below(2) ? 1 : 20);
            run[i].first_pos = kind == 3 ? 0 : (int32_t)test_below(180);
            run[i].kv_len = kind == 2 ? test_below(200)
                                      : (uint32_t)run[i].first_pos + run[i].n_rows;
            rows += run[i].n_rows;
        }
        a.q = rig_tensor(&r, DT_F32, rows, n_heads * d, n_heads * d + test_below(9), 1);
        a.out = rig_output(&r, rows, n_heads * d, n_heads * d + test_below(9));
        if (kind == 3) { /* encoder: keys are rows */
            a.k = rig_tensor(&r, DT_F32, rows, n_kv * d, n_kv * d + test_below(9), 1);
            a.v = rig_tensor(&r, DT_F32, rows, n_kv * d, n_kv * d + test_below(9), 1);
        } else {
            a.kv = p.view;
        }
        sinks = rig_bytes(&r, n_heads * sizeof *sinks);
        for (uint32_t i = 0; i < n_heads; i++) sinks[i] = rig_normal();
        a.bias_reach = between(1, 150);
        bias = rig_bytes(&r, (size_t)n_heads * (2 * a.bias_reach + 1) * sizeof *bias);
        for (uint32_t i = 0; i < n_heads * (2 * a.bias_reach + 1); i++) bias[i] = rig_normal();
        if (test_below(3) == 0) a.window = between(1, 150);
        if (test_below(3) == 0) a.softcap = 2;
        if (test_below(3) == 0) a.sinks = sinks;
        if (test_below(3) == 0) a.bias = bias;
        for (uint32_t i = 0; kind != 3 && i < 3; i++)
            for (uint32_t j = 0; j < run[i].kv_len; j++)
                for (uint32_t e = 0; e < 2 * n_kv * d; e++) {
                    uint32_t part = e / (n_kv * d), head = e / d % n_kv;
                    size_t at_slice = (size_t)p.table[run[i].seat * p.n_entries + j / tpb] + part;
                    char *slice = (char *)p.view.base + at_slice * p.view.slice_bytes;
                    size_t to = ((size_t)head * tpb + j % tpb) * d + e % d;

                    if (p.view.dtype == DT_F32)
                        ((float *)slice)[to] = rig_normal();
                    else
                        ((uint16_t *)slice)[to] = bf16_of_float(rig_normal());
                }
        assert_int_equal(r.op->attend(r.lane, &a,
                                      (struct rows){ .n_rows = rows,
                                                     .n_runs = 3,
                                                     .run = run,
                                                     .pos = (const int32_t *)run,
                                                     .seat = (const uint32_t *)run }),
                         0);
        rig_wait(&r);
        for (uint32_t i = 0; i < 3; i++)
            for (uint32_t s = 0; s < 30; s++) {
                uint32_t row = run[i].first_row + test_below(run[i].n_rows);
                uint32_t head = test_below(n_heads), e = test_below(d);

                near(at(a.out, row, head * d + e), naive_attend(&a, &run[i], row, head, e), 8);
            }
        rig_close(&r);
    }
}

static void
random_weights_are_normal_and_depend_on_seed_and_index_alone(void **state)
{
    enum { N = 300, COLS = 307 };
    struct rig r;
    struct tensor a, b, c, h;
    double sum = 0, squares = 0, cubes = 0, next = 0;
    uint32_t beyond_2 = 0;

    (void)state;
    open_any(&r);
    a = rig_output(&r, N, COLS, COLS);
    b = rig_output(&r, N, COLS, COLS + 5);
    c = rig_output(&r, N, COLS, COLS);
    h = tensor_2d(rig_bytes(&r, N * COLS * 2), DT_BF16, N, COLS);
    assert_int_equal(r.op->fill_random(r.lane, a, 42, 0.02f), 0);
    assert_int_equal(r.op->fill_random(r.lane, b, 42, 0.02f), 0);
    assert_int_equal(r.op->fill_random(r.lane, c, 43, 0.02f), 0);
    assert_int_equal(r.op->fill_random(r.lane, h, 42, 0.02f), 0);
    rig_wait(&r);
    assert_true(same_bits(a, b));
    assert_int_not_equal(memcmp(a.data, c.data, 64), 0);
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < COLS; j++) {
            double x = at(a, i, j) / 0.02;

            sum += x;
            squares += x * x;
            cubes += x * x * x;
            if (j + 1 < COLS) next += x * at(a, i, j + 1) / 0.02;
            beyond_2 += fabs(x) > 2;
            assert_true(at(h, i, j) == (double)float_of_bf16(bf16_of_float((float)at(a, i, j))));
        }
    /* 92,100 values: five standard errors each. */
    assert_true(fabs(sum / (N * COLS)) < 0.0165);
    assert_true(fabs(squares / (N * COLS) - 1) < 0.0235);
    assert_true(fabs(cubes / (N * COLS)) < 0.064);
    assert_true(fabs(next / (N * COLS)) < 0.0165);
    assert_true(fabs(beyond_2 / (double)(N * COLS) - 0.0455) < 0.0035);
    rig_close(&r);
}

static int
seed(void **state)
{
    (void)state;
    test_seed();
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_is_the_scaled_row_of_each_token),
        cmocka_unit_test(matmul_is_x_w_transposed_plus_bias_plus_beta_y),
        cmocka_unit_test(rms_norm_divides_by_the_root_mean_square),
        cmocka_unit_test(layer_norm_takes_the_mean_off_first),
        cmocka_unit_test(act_gate_add_and_scale_are_what_they_say),
        cmocka_unit_test(rows_copies_are_bytes),
        cmocka_unit_test(copies_edits_and_tokens_land_where_they_should),
        cmocka_unit_test(rope_store_norms_rotates_and_stores),
        cmocka_unit_test(attend_is_softmax_over_the_visible_keys),
        cmocka_unit_test(random_weights_are_normal_and_depend_on_seed_and_index_alone),
    };

    return cmocka_run_group_tests(tests, seed, NULL);
}
