/* test_ops.c - every op against a naive reference in double: random shapes, odd strides, outputs
 * poisoned with NaN first. The bound is a few roundings of fp32, scaled by what was summed, and where
 * activations have 16 bits one rounding of the result, and twice those of the steps in between.
 *
 * On a GPU every other shape is one that kernels for whole tiles take; of large outputs a sample is looked
 * at, since the reference is one core.
 */
#include "tests/gpu/naive.h"
#include "tests/test.h"

#include "gpu/fp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 40 };

static uint32_t
between(uint32_t low, uint32_t high)
{
    return low + test_below(high - low + 1);
}

/* size: the sum of the magnitudes that went in. type: of the result, which is rounded once. between: the
 * magnitude of what was rounded to that type on the way. */
static void
near_steps(double got, double want, double size, enum dtype type, double on_the_way)
{
    double tiny = type == DT_F16 ? 3.1e-8 : 1e-30; /* half of its smallest number */
    double bound = size * 4e-6 + (1.01 * fabs(want) + 2 * on_the_way) * rounding(type) + tiny;

    if (fabs(got - want) <= bound) return; /* false for a NaN */
    fail_msg("%s: %.9g, but should be %.9g within %.2g", dtype_name(type), got, want, bound);
}

static void
near(double got, double want, double size, enum dtype type)
{
    near_steps(got, want, size, type, 0);
}

/* Whether this time the shape is one for whole tiles. */
static bool
wide(void)
{
    return rig_cuda() && test_below(2);
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
    for (int n = 0; n < rig_rounds(ROUNDS); n++) {
        bool w = wide();
        uint32_t rows = between(1, 9), d = w ? 64 * between(1, 40) : between(1, 70);
        uint32_t vocab = between(1, 50);
        struct rig r;
        struct tensor table, x;
        int32_t *token;

        open_any(&r);
        table = rig_tensor(&r, rig_weight(&r), vocab, d, w ? d : d + test_below(5), 1);
        /* What it fills is the residual stream: fp32 on every device. */
        x = rig_empty(&r, DT_F32, rows, d, w ? d : d + test_below(5));
        token = rig_bytes(&r, rows * sizeof *token);
        for (uint32_t i = 0; i < rows; i++) HOST(token)[i] = (int32_t)test_below(vocab + 1) - 1;
        rig_send(&r);
        assert_int_equal(r.op->embed(r.lane, x, table, token, 3.5f), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < d; j++) {
                int32_t t = HOST(token)[i];
                double want = t < 0 ? 0 : at(table, (uint32_t)t, j) * 3.5;

                near(at(x, i, j), want, fabs(want), DT_F32);
            }
        rig_close(&r);
    }
}

static void
matmul_is_x_w_transposed_plus_bias_plus_beta_y(void **state)
{
    (void)state;
    for (int n = 0; n < rig_rounds(3 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), k = between(1, 100), out = between(1, 60), pad = 9, look;
        float beta = test_below(3) ? 0 : 0.75f;
        struct rig r;
        struct tensor x, w, bias = NO_TENSOR, y, old;
        enum dtype type;

        if (whole) {
            rows = test_below(2) ? between(1, 33) : between(1, 300);
            k = 64 * (test_below(4) ? between(1, 32) : between(32, 70));
            out = test_below(3) ? 64 * between(1, 16) : between(1, 1000);
            pad = 1;
        }
        open_any(&r);
        type = test_below(3) ? r.act : DT_F32;
        x = rig_tensor(&r, r.act, rows, k, k + test_below(pad), 1);
        w = rig_tensor(&r, rig_weight(&r), out, k, k + test_below(pad), 1);
        if (test_below(2)) bias = rig_tensor(&r, rig_vector(&r), 1, out, out, 1);
        y = rig_empty(&r, type, rows, out, out + test_below(pad));
        if (beta != 0) y = rig_tensor(&r, type, rows, out, y.stride, 1);
        old = rig_twice(&r, y);
        rig_send(&r);
        assert_int_equal(r.op->matmul(r.lane, y, x, w, bias, beta), 0);
        rig_wait(&r);
        look = whole ? 500 : rows * out;
        for (uint32_t l = 0; l < look; l++) {
            uint32_t i = whole ? test_below(rows) : l / out, j = whole ? test_below(out) : l % out;
            double sum = bias.data ? at(bias, 0, j) : 0, size = fabs(sum), product = 0;

            for (uint32_t e = 0; e < k; e++) {
                product += at(x, i, e) * at(w, j, e);
                size += fabs(at(x, i, e) * at(w, j, e));
            }
            sum += product;
            if (beta != 0) {
                sum += beta * at(old, i, j);
                size += fabs(beta * at(old, i, j));
            }
            near_steps(at(y, i, j), sum, size, type, bias.data || beta != 0 ? fabs(product) : 0);
        }
        rig_close(&r);
    }
}

static void
rms_norm_divides_by_the_root_mean_square(void **state)
{
    (void)state;
    for (int n = 0; n < rig_rounds(ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = whole ? 64 * between(1, 90) : between(1, 90);
        float plus = test_below(2) ? 1 : 0;
        struct rig r;
        struct tensor x, y, w = NO_TENSOR;

        open_any(&r);
        x = rig_tensor(&r, test_below(2) ? DT_F32 : r.act, rows, d, whole ? d : d + test_below(9),
                       3);
        y = rig_output(&r, rows, d, whole ? d : d + test_below(9));
        if (test_below(3)) w = rig_tensor(&r, rig_vector(&r), 1, d, d, 1);
        rig_send(&r);
        assert_int_equal(r.op->rms_norm(r.lane, y, x, w, 1e-5f, plus), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            double sum = 0;

            for (uint32_t j = 0; j < d; j++) sum += at(x, i, j) * at(x, i, j);
            for (uint32_t j = 0; j < d; j++) {
                double v = at(x, i, j) / sqrt(sum / d + 1e-5f);

                if (w.data) v *= at(w, 0, j) + plus;
                near(at(y, i, j), v, fabs(v), y.dtype);
            }
        }
        rig_close(&r);
    }
}

static void
layer_norm_takes_the_mean_off_first(void **state)
{
    (void)state;
    for (int n = 0; n < rig_rounds(ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = whole ? 64 * between(1, 90) : between(2, 90);
        struct rig r;
        struct tensor x, y, w = NO_TENSOR, b = NO_TENSOR;

        open_any(&r);
        x = rig_tensor(&r, r.act, rows, d, whole ? d : d + test_below(9), 3);
        y = rig_output(&r, rows, d, whole ? d : d + test_below(9));
        if (test_below(3)) w = rig_tensor(&r, rig_vector(&r), 1, d, d, 1);
        if (test_below(3)) b = rig_tensor(&r, rig_vector(&r), 1, d, d, 1);
        rig_send(&r);
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
                     fabs(add) + fabs(weight) * (3 + 10 * inv), y.dtype);
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
    for (int n = 0; n < rig_rounds(2 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 5), d = whole ? 64 * between(1, 40) : between(1, 70);
        uint32_t pad = whole ? 1 : 9;
        enum act a = (enum act)(n % 4);
        float cap = test_below(2) ? 30 : 0;
        struct rig r;
        struct tensor x, y, pair, gated, sum, sum_old, scaled, scaled_old;

        open_any(&r);
        x = rig_tensor(&r, r.act, rows, d, d + test_below(pad), 3);
        y = rig_output(&r, rows, d, d + test_below(pad));
        pair = rig_tensor(&r, r.act, rows, 2 * d, 2 * d + test_below(pad), 3);
        gated = rig_output(&r, rows, d, d + test_below(pad));
        sum = rig_tensor(&r, test_below(2) ? DT_F32 : r.act, rows, d, d, 1);
        scaled = rig_tensor(&r, test_below(2) ? DT_F32 : r.act, rows, d, d, 1);
        sum_old = rig_twice(&r, sum);
        scaled_old = rig_twice(&r, scaled);
        rig_send(&r);
        assert_int_equal(r.op->act(r.lane, y, x, a), 0);
        assert_int_equal(r.op->gate(r.lane, gated, pair, a), 0);
        assert_int_equal(r.op->add(r.lane, sum, x), 0);
        assert_int_equal(r.op->scale(r.lane, scaled, 20, cap), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < d; j++) {
                double v = at(x, i, j), g = at(pair, i, j), up = at(pair, i, d + j);
                double was = at(scaled_old, i, j) * 20;

                near(at(y, i, j), activation(v, a), fabs(v), r.act);
                near(at(gated, i, j), activation(g, a) * up, fabs(g * up), r.act);
                near(at(sum, i, j), at(sum_old, i, j) + v, fabs(v) + 1, sum.dtype);
                near(at(scaled, i, j), cap != 0 ? cap * tanh(was / cap) : was, 60, scaled.dtype);
            }
        rig_close(&r);
    }
}

static void
residual_adds_and_norms_what_it_added(void **state)
{
    (void)state;
    for (int n = 0; n < rig_rounds(2 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = whole ? 64 * between(1, 90) : between(1, 90);
        uint32_t pad = whole ? 1 : 9;
        bool adds = test_below(4), norms = test_below(4) || !adds;
        struct rig r;
        struct tensor x, old;
        struct residual a = { .eps = 1e-5f, .plus = test_below(2) ? 1 : 0 };

        open_any(&r);
        x = rig_tensor(&r, DT_F32, rows, d, d + test_below(pad), 3);
        old = rig_twice(&r, x);
        a.x = x;
        if (adds)
            a.in = rig_tensor(&r, test_below(2) ? r.act : DT_F32, rows, d, d + test_below(pad), 2);
        if (adds && test_below(2)) a.in_norm = rig_tensor(&r, rig_vector(&r), 1, d, d, 1);
        if (norms) a.y = rig_output(&r, rows, d, d + test_below(pad));
        if (norms && test_below(3)) a.y_norm = rig_tensor(&r, rig_vector(&r), 1, d, d, 1);
        rig_send(&r);
        assert_int_equal(r.op->residual(r.lane, &a), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            double squares = 0, in_squares = 0;

            for (uint32_t j = 0; adds && j < d; j++) in_squares += pow(at(a.in, i, j), 2);
            for (uint32_t j = 0; j < d; j++) {
                double in = adds ? at(a.in, i, j) : 0;

                if (a.in_norm.data)
                    in *= (at(a.in_norm, 0, j) + a.plus) / sqrt(in_squares / d + a.eps);
                near(at(x, i, j), at(old, i, j) + in, fabs(at(old, i, j)) + fabs(in), DT_F32);
                squares += pow(at(x, i, j), 2);
            }
            for (uint32_t j = 0; norms && j < d; j++) {
                double v = at(x, i, j) / sqrt(squares / d + a.eps);

                if (a.y_norm.data) v *= at(a.y_norm, 0, j) + a.plus;
                near(at(a.y, i, j), v, fabs(v), r.act);
            }
        }
        rig_close(&r);
    }
}

static void
act_matmul_and_gate_matmul_take_an_activation_of_a_product(void **state)
{
    (void)state;
    for (int n = 0; n < rig_rounds(2 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), k = between(1, 100), f = between(1, 40), pad = 9, look;
        enum act a = (enum act)(n % 4);
        struct rig r;
        struct tensor x, w, y, both, acted;

        if (whole) {
            rows = test_below(2) ? between(1, 33) : between(1, 300);
            k = 64 * (test_below(4) ? between(1, 32) : between(32, 70));
            f = 64 * between(1, 10);
            pad = 1;
        }
        open_any(&r);
        x = rig_tensor(&r, r.act, rows, k, k + test_below(pad), 1);
        w = rig_tensor(&r, rig_weight(&r), 2 * f, k, k + test_below(pad), 3 / sqrtf((float)k));
        y = rig_output(&r, rows, f, f + test_below(pad));
        both = rig_output(&r, rows, 2 * f, 2 * f);
        acted = rig_output(&r, rows, f, f + test_below(pad));
        rig_send(&r);
        assert_int_equal(r.op->gate_matmul(r.lane, y, both, x, w, a), 0);
        assert_int_equal(r.op->act_matmul(r.lane, acted, x, tensor_rows(w, 0, f), a), 0);
        rig_wait(&r);
        look = whole ? 300 : rows * f;
        for (uint32_t l = 0; l < look; l++) {
            uint32_t i = whole ? test_below(rows) : l / f, j = whole ? test_below(f) : l % f;
            double g = 0, up = 0, g_size = 0, up_size = 0;

            for (uint32_t e = 0; e < k; e++) {
                g += at(x, i, e) * at(w, j, e);
                g_size += fabs(at(x, i, e) * at(w, j, e));
                up += at(x, i, e) * at(w, f + j, e);
                up_size += fabs(at(x, i, e) * at(w, f + j, e));
            }
            /* An activation is nowhere steeper than 1.13. */
            near_steps(at(acted, i, j), activation(g, a), 1.2 * g_size, r.act, 1.13 * fabs(g));
            near_steps(at(y, i, j), activation(g, a) * up,
                       1.2 * (g_size * fabs(up) + up_size * fabs(g)), r.act, 1.13 * fabs(g * up));
        }
        rig_close(&r);
    }
}

static void
rows_copies_are_bytes(void **state)
{
    (void)state;
    for (int n = 0; n < 6; n++) {
        uint32_t d = n % 2 ? 33 : 256;
        struct rig r;
        struct tensor x, y;
        uint32_t *which;

        open_any(&r);
        x = rig_tensor(&r, rig_weight(&r), 20, d, d + 7 * (n % 2), 1);
        y = rig_empty(&r, x.dtype, 50, d, d + 4 * (n % 2));
        which = rig_bytes(&r, 50 * sizeof *which);
        for (int i = 0; i < 50; i++) HOST(which)[i] = test_below(20);
        rig_send(&r);
        assert_int_equal(r.op->rows(r.lane, y, x, which), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < 50; i++)
            for (uint32_t j = 0; j < d; j++) assert_true(at(y, i, j) == at(x, HOST(which)[i], j));
        rig_close(&r);
    }
}

static void
copies_edits_and_tokens_land_where_they_should(void **state)
{
    enum { N = 3 << 18 };
    static uint32_t host[N], back[N];
    const struct table_edit edit[] = {
        { .table = 1, .seat = 1, .entry = 2, .at = 7 },
        { .table = 0, .seat = 2, .entry = 1, .at = 9 },
        { .table = 1,
          .seat = 1,
          .entry = 2,
          .at = SLICE_NONE }, /* in order: the later one stands */
    };
    const int32_t token[] = { 5, -1, -1, 8 }, last[] = { 100, 101, 102 }, pos[] = { 0, 0, 0, 0 };
    const uint32_t seat[] = { 0, 2, SEAT_NONE, 1 };
    const slice_id table[6] = { 0 };
    struct rig r;
    uint32_t *a, *b;
    slice_id *t0, *t1;
    struct rows rows;

    (void)state;
    open_any(&r);
    a = rig_bytes(&r, sizeof host);
    b = rig_bytes(&r, sizeof host);
    t0 = rig_copy(&r, table, sizeof table);
    t1 = rig_copy(&r, table, sizeof table);
    rows = (struct rows){ .n_rows = 4,
                          .token = rig_copy(&r, token, sizeof token),
                          .pos = rig_copy(&r, pos, sizeof pos),
                          .seat = rig_copy(&r, seat, sizeof seat) };
    const struct table_edit *edits = rig_copy(&r, edit, sizeof edit);
    const int32_t *lasts = rig_copy(&r, last, sizeof last);

    for (uint32_t i = 0; i < N; i++) host[i] = HOST(a)[i] = i;
    rig_send(&r);
    assert_int_equal(r.op->put(r.lane, b, host, sizeof host), 0);
    assert_int_equal(r.op->copy(r.lane, b + 1, a, 64), 0);
    assert_int_equal(r.op->get(r.lane, back, b, sizeof back), 0);
    assert_int_equal(r.op->edit(r.lane,
                                (struct tables){ .n = 2, .stride = { 2, 3 }, .table = { t0, t1 } },
                                edits, 3),
                     0);
    assert_int_equal(r.op->tokens(r.lane, rows, lasts), 0);
    rig_wait(&r);
    for (uint32_t i = 0; i < N; i++)
        if (back[i] != (i >= 1 && i <= 16 ? i - 1 : i)) fail_msg("word %u is %u", i, back[i]);
    assert_int_equal(HOST(t0)[5], 9);
    assert_int_equal(HOST(t1)[5], SLICE_NONE);
    assert_int_equal(HOST(rows.token)[0], 5);
    assert_int_equal(HOST(rows.token)[1], 102);
    assert_int_equal(HOST(rows.token)[2], -1);
    assert_int_equal(HOST(rows.token)[3], 8);
    rig_close(&r);
}

/* A GPU keeps KV as its activations are. */
static enum dtype
some_kv(const struct rig *r)
{
    if (rig_cuda()) return r->act;
    return test_below(2) ? DT_F32 : DT_BF16;
}

static void
rope_store_norms_rotates_and_stores(void **state)
{
    (void)state;
    for (int n = 0; n < rig_rounds(2 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t d = whole ? 64u << test_below(3) : 2 * between(1, 40);
        uint32_t rot = whole ? d : 2 * between(1, d / 2), rows = between(1, 9), pad = whole ? 1 : 9;
        uint32_t n_kv = between(1, 3), n_heads = n_kv * between(1, 3), max_pos = 40;
        bool norms = test_below(2), rotates = test_below(3), stores = test_below(4);
        struct rig r;
        struct paged p;
        struct tensor q, k, v, q_old, k_old, cs, qn, kn;
        struct rope_store s;
        int32_t *pos;
        uint32_t *seat;

        open_any(&r);
        rig_paged(&r, &p, some_kv(&r), 2, max_pos, 1u << test_below(5), n_kv, d);
        q = rig_tensor(&r, r.act, rows, n_heads * d, n_heads * d + test_below(pad), 1);
        k = rig_tensor(&r, r.act, rows, n_kv * d, n_kv * d + test_below(pad), 1);
        v = rig_tensor(&r, r.act, rows, n_kv * d, n_kv * d + test_below(pad), 1);
        q_old = rig_twice(&r, q);
        k_old = rig_twice(&r, k);
        cs = rig_tensor(&r, DT_F32, max_pos, rot, rot, 1);
        qn = rig_tensor(&r, rig_vector(&r), 1, d, d, 1);
        kn = rig_tensor(&r, rig_vector(&r), 1, d, d, 1);
        pos = rig_bytes(&r, rows * sizeof *pos);
        seat = rig_bytes(&r, rows * sizeof *seat);
        for (uint32_t i = 0; i < rows; i++) {
            HOST(pos)[i] = (int32_t)(i < 5 ? 3 * i : 7 * (i - 5) + 1); /* no two of a seat alike */
            HOST(seat)[i] = i == 2 ? SEAT_NONE : i < 5 ? 0 : 1;
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
        rig_send(&r);
        assert_int_equal(
            r.op->rope_store(r.lane, &s, (struct rows){ .n_rows = rows, .pos = pos, .seat = seat }),
            0);
        rig_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t h = 0; h < n_heads + n_kv; h++) {
                bool is_k = h >= n_heads;
                uint32_t head = is_k ? h - n_heads : h;
                struct tensor from = is_k ? k_old : q_old, w = is_k ? kn : qn;
                double x[256], sum = 0;
                uint32_t here = (uint32_t)HOST(pos)[i], whose = HOST(seat)[i];

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
                        double c = at(cs, here, e % half);
                        double sn = at(cs, here, half + e % half);

                        want = e < half ? x[e] * c - x[pair] * sn : x[e] * c + x[pair] * sn;
                        size = fabs(x[e] * c) + fabs(x[pair] * sn) + 1e-3;
                    }
                    if (is_k && stores) {
                        if (whose == SEAT_NONE) continue;
                        got = naive_kv(&p.view, 0, whose, here, head, e);
                        assert_true(at(k, i, head * d + e) == at(k_old, i, head * d + e));
                    } else {
                        got = at(is_k ? k : q, i, head * d + e);
                    }
                    near_steps(got, want, size, is_k && stores ? p.view.dtype : r.act,
                               rotates ? size : 0);
                    if (is_k && stores) {
                        got = naive_kv(&p.view, 1, whose, here, head, e);
                        want = at(v, i, head * d + e);
                        near(got, want, fabs(want), p.view.dtype);
                    }
                }
            }
        rig_close(&r);
    }
}

static const uint32_t fast_dim[] = { 64, 128, 256 };

/* A tree of drafts: every row sees itself and some of the rows before it. */
static void
some_mask(struct rig *r, struct attend *a, const struct run *run, uint32_t n_runs, uint32_t rows)
{
    uint32_t *bits;

    a->mask_words = 2;
    a->mask = bits = rig_bytes(r, rows * 2 * sizeof *bits);
    for (uint32_t i = 0; i < n_runs; i++)
        for (uint32_t j = 0; j < run[i].n_rows; j++) {
            uint32_t *row = HOST(bits) + (run[i].first_row + j) * 2;

            for (uint32_t w = 0; w < 2; w++) row[w] = test_below(1u << 31) & test_below(1u << 31);
            row[0] &= j < 31 ? (2u << j) - 1 : UINT32_MAX;
            row[1] = 0;
            row[0] |= 1u << j;
        }
}

/* The runs as a graph has them: some of no rows among them. to has room for three of those a run, and three more. */
static uint32_t
with_empty_runs(const struct run *run, uint32_t n, struct run *to, uint32_t *n_single)
{
    uint32_t single = *n_single, k = 0;

    for (uint32_t i = 0; i <= n; i++) {
        for (uint32_t empty = test_below(4); empty; empty--)
            to[k++] = (struct run){ .seat = SEAT_NONE };
        if (i == single) *n_single = k;
        if (i < n) to[k++] = run[i];
    }
    return k;
}

/* The step's keys and values, not yet in the cache. */
static void
own_keys(struct rig *r, struct attend *a, uint32_t rows, uint32_t pad)
{
    uint32_t width = a->n_kv_heads * a->head_dim;

    a->k = rig_tensor(r, r->act, rows, width, width + test_below(pad), 1);
    a->v = rig_tensor(r, r->act, rows, width, width + test_below(pad), 1);
}

/* What has been queued is complete for what comes: so attend() may take its cache as settled. */
static void
settle(struct rig *r, struct attend *a, const struct rows *step)
{
    struct rows some = *step;

    a->settled = true;
    some.token = rig_bytes(r, step->n_rows * sizeof *some.token);
    memset(HOST(some.token), 0, step->n_rows * sizeof *some.token);
    rig_send(r);
    assert_int_equal(r->op->tokens(r->lane, some, some.token), 0);
}

/* What attend() has stored of a row: those keys and values as the cache's type has them. */
static void
check_stored(const struct attend *a, const struct run *run, uint32_t row, uint32_t e)
{
    uint32_t pos = (uint32_t)run->first_pos + row - run->first_row;

    for (uint32_t h = 0; h < a->n_kv_heads; h++)
        for (uint32_t part = 0; part < a->kv.n_parts; part++) {
            double want = at(part ? a->v : a->k, row, h * a->head_dim + e);

            near(naive_kv(&a->kv, part, run->seat, pos, h, e), want, fabs(want), a->kv.dtype);
        }
}

/* A random mix of every variant; K and V outside the visible keys are NaN. */
static void
attend_is_softmax_over_the_visible_keys(void **state)
{
    enum { SEATS = 4 };

    (void)state;
    for (int n = 0; n < rig_rounds(4 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t n_kv = between(1, 3), n_heads = n_kv * between(1, whole ? 8 : 4);
        uint32_t d = whole ? fast_dim[test_below(3)] : between(rig_cuda() ? 3 : 1, 12) * 6;
        uint32_t tpb = whole ? 16u << test_below(3) : 4u << test_below(5);
        uint32_t kind = test_below(4), rows = 0, pad = whole ? 1 : 9, far = whole ? 900 : 180;
        struct run run[SEATS] = { { 0 } }, all[4 * SEATS + 3] = { { 0 } };
        struct rig r;
        struct paged p;
        struct attend a = {
            .n_heads = n_heads, .n_kv_heads = n_kv, .head_dim = d, .scale = 0.2f, .causal = kind < 2
        };
        struct rows step = { .n_runs = SEATS };
        bool stores = false;
        float *sinks, *bias;
        int32_t *pos;
        uint32_t *seat;

        open_any(&r);
        rig_paged(&r, &p, some_kv(&r), SEATS, far + 120, tpb, n_kv, d);
        for (uint32_t i = 0; i < SEATS; i++) {
            run[i].seat = (i + 1) % SEATS;
            run[i].first_row = rows;
            run[i].n_rows = between(1, test_below(2) ? 1 : whole && test_below(2) ? 120 : 20);
            run[i].first_pos = kind == 3 ? 0 : (int32_t)test_below(far);
            run[i].kv_len = kind == 2 ? test_below(far)
                                      : (uint32_t)run[i].first_pos + run[i].n_rows;
            rows += run[i].n_rows;
        }
        while (step.n_single < SEATS && run[step.n_single].n_rows == 1) step.n_single++;
        step.n_single = test_below(step.n_single + 1);
        a.q = rig_tensor(&r, r.act, rows, n_heads * d, n_heads * d + test_below(pad), 1);
        a.out = rig_output(&r, rows, n_heads * d, n_heads * d + test_below(pad));
        if (kind == 3) { /* encoder: keys are rows */
            own_keys(&r, &a, rows, pad);
        } else {
            a.kv = p.view;
            stores = kind < 2 && test_below(2);
            if (stores) own_keys(&r, &a, rows, pad);
        }
        sinks = rig_tensor(&r, DT_F32, 1, n_heads, n_heads, 1).data;
        a.bias_reach = between(1, 150);
        bias = rig_tensor(&r, DT_F32, n_heads, 2 * a.bias_reach + 1, 2 * a.bias_reach + 1, 1).data;
        if (test_below(3) == 0) a.window = between(1, 150);
        if (test_below(3) == 0) a.softcap = 2;
        if (test_below(3) == 0) a.sinks = sinks;
        if (test_below(3) == 0) a.bias = bias;
        for (uint32_t i = 0; kind != 3 && i < SEATS; i++)
            rig_fill_kv(&p, run[i].seat, 0, stores ? (uint32_t)run[i].first_pos : run[i].kv_len);
        if (kind < 2 && !a.window && test_below(3) == 0) {
            for (uint32_t i = 0; i < SEATS; i++) assert_true(run[i].n_rows <= 120);
            if (MAX(MAX(run[0].n_rows, run[1].n_rows), MAX(run[2].n_rows, run[3].n_rows)) <= 32)
                some_mask(&r, &a, run, SEATS, rows);
        }
        pos = rig_bytes(&r, rows * sizeof *pos);
        seat = rig_bytes(&r, rows * sizeof *seat);
        for (uint32_t i = 0; i < SEATS; i++)
            for (uint32_t j = 0; j < run[i].n_rows; j++) {
                HOST(pos)[run[i].first_row + j] = run[i].first_pos + (int32_t)j;
                HOST(seat)[run[i].first_row + j] = run[i].seat;
            }
        step.n_rows = rows;
        memcpy(all, run, sizeof run);
        if (test_below(2)) step.n_runs = with_empty_runs(run, SEATS, all, &step.n_single);
        step.run = rig_copy(&r, all, sizeof all);
        step.pos = pos;
        step.seat = seat;
        if (test_below(2))
            settle(&r, &a, &step);
        else
            rig_send(&r);
        assert_int_equal(r.op->attend(r.lane, &a, step), 0);
        rig_wait(&r);
        for (uint32_t i = 0; i < SEATS; i++)
            for (uint32_t l = 0; l < (whole ? 4 : 30); l++) {
                uint32_t row = run[i].first_row + test_below(run[i].n_rows);
                uint32_t head = test_below(n_heads), e = test_below(d);
                double size, want = naive_attend(&a, &run[i], row, head, e, &size);

                near_steps(at(a.out, row, head * d + e), want, 8, r.act, size);
                if (stores) check_stored(&a, &run[i], row, e);
            }
        rig_close(&r);
    }
}

/* How a device shares out the keys depends on how many sequences there are and on their lengths. */
static void
generation_sees_all_its_keys_in_any_number_of_sequences(void **state)
{
    enum { MOST = 90 };
    static const uint32_t count[] = { 1, 1, 2, 5, 17, MOST };

    (void)state;
    for (uint32_t n = 0; n < 3 * ARRAY_LEN(count); n++) {
        uint32_t seqs = count[n % ARRAY_LEN(count)], far = 4000 / seqs + 20;
        uint32_t n_kv = between(1, 3), n_heads = n_kv * between(1, 10);
        uint32_t d = rig_cuda() ? 64u << test_below(2) : 12, width = n_heads * d;
        struct run run[MOST] = { { 0 } };
        struct rig r;
        struct paged p;
        struct attend a = { .n_heads = n_heads, .n_kv_heads = n_kv, .head_dim = d, .scale = 0.2f };
        struct rows step = { .n_rows = seqs, .n_runs = seqs, .n_single = seqs };
        bool stores;
        float *sinks, *bias;
        int32_t *pos;
        uint32_t *seat;

        open_any(&r);
        rig_paged(&r, &p, some_kv(&r), seqs, far, 16u << test_below(3), n_kv, d);
        a.kv = p.view;
        a.causal = test_below(2);
        stores = a.causal && test_below(2);
        if (stores) own_keys(&r, &a, seqs, 1);
        a.q = rig_tensor(&r, r.act, seqs, width, width, 1);
        a.out = rig_output(&r, seqs, width, width);
        sinks = rig_tensor(&r, DT_F32, 1, n_heads, n_heads, 1).data;
        a.bias_reach = between(1, 150);
        bias = rig_tensor(&r, DT_F32, n_heads, 2 * a.bias_reach + 1, 2 * a.bias_reach + 1, 1).data;
        if (test_below(3) == 0) a.window = between(1, 150);
        if (test_below(3) == 0) a.softcap = 2;
        if (test_below(3) == 0) a.sinks = sinks;
        if (test_below(3) == 0) a.bias = bias;
        pos = rig_bytes(&r, seqs * sizeof *pos);
        seat = rig_bytes(&r, seqs * sizeof *seat);
        for (uint32_t i = 0; i < seqs; i++) {
            uint32_t keys = test_below(4) ? between(1, far) : between(1, 40);

            run[i] = (struct run){ i, i, 1, (int32_t)keys - 1, keys };
            if (!a.causal && test_below(4) == 0) run[i].kv_len = keys = 0;
            rig_fill_kv(&p, i, 0, keys - stores);
            if (i && test_below(8) == 0) run[i].seat = SEAT_NONE;
            HOST(pos)[i] = run[i].first_pos;
            HOST(seat)[i] = run[i].seat;
        }
        step.run = rig_copy(&r, run, seqs * sizeof *run);
        step.pos = pos;
        step.seat = seat;
        if (test_below(2))
            settle(&r, &a, &step);
        else
            rig_send(&r);
        assert_int_equal(r.op->attend(r.lane, &a, step), 0);
        rig_wait(&r);
        for (uint32_t l = 0; l < 60; l++) {
            uint32_t i = test_below(seqs), head = test_below(n_heads), e = test_below(d);
            double size, got = at(a.out, i, head * d + e), want;

            if (run[i].seat == SEAT_NONE) {
                assert_true(isnan(got)); /* as it was before */
                continue;
            }
            want = naive_attend(&a, &run[i], i, head, e, &size);
            near_steps(got, want, 8, r.act, size);
            if (stores) check_stored(&a, &run[i], i, e);
        }
        rig_close(&r);
    }
}

/* Two sequences, one after the other in the same blocks, step by step without a look: the second one's results. */
static void
generation_reads_what_the_steps_before_it_stored(void **state)
{
    enum { MOST = 3, STEPS = 70, ALL = 2 * STEPS };

    (void)state;
    for (int n = 0; n < 6; n++) {
        uint32_t seqs = between(1, MOST), n_kv = between(1, 3), n_heads = n_kv * between(1, 3);
        uint32_t d = rig_cuda() ? 64u << test_below(2) : 12, width = n_heads * d;
        struct run run[ALL][MOST] = { { { 0 } } };
        struct attend a[ALL];
        struct rows step[ALL];
        struct tensor q, k, v, out;
        struct rig r;
        struct paged p;

        open_any(&r);
        rig_paged(&r, &p, test_below(4) ? r.act : some_kv(&r), seqs, STEPS, 16u << test_below(3),
                  n_kv, d);
        q = rig_tensor(&r, r.act, ALL * seqs, width, width, 1);
        k = rig_tensor(&r, r.act, ALL * seqs, n_kv * d, n_kv * d, 1);
        v = rig_tensor(&r, r.act, ALL * seqs, n_kv * d, n_kv * d, 1);
        out = rig_output(&r, ALL * seqs, width, width);
        for (uint32_t i = 0; i < ALL; i++) {
            int32_t *pos = rig_bytes(&r, seqs * sizeof *pos),
                    *token = rig_copy(&r, &(int32_t[MOST]){ 0 }, sizeof *token * MOST);
            uint32_t *seat = rig_bytes(&r, seqs * sizeof *seat), at = i % STEPS;

            for (uint32_t s = 0; s < seqs; s++) {
                HOST(pos)[s] = (int32_t)at;
                HOST(seat)[s] = s;
                run[i][s] = (struct run){ s, s, 1, (int32_t)at, at + 1 };
            }
            step[i] = (struct rows){ .n_rows = seqs,
                                     .n_runs = seqs,
                                     .n_single = seqs,
                                     .token = token,
                                     .pos = pos,
                                     .seat = seat,
                                     .run = rig_copy(&r, run[i], sizeof run[i]) };
            a[i] = (struct attend){ .out = tensor_rows(out, i * seqs, seqs),
                                    .q = tensor_rows(q, i * seqs, seqs),
                                    .k = tensor_rows(k, i * seqs, seqs),
                                    .v = tensor_rows(v, i * seqs, seqs),
                                    .kv = p.view,
                                    .settled = true,
                                    .n_heads = n_heads,
                                    .n_kv_heads = n_kv,
                                    .head_dim = d,
                                    .causal = true,
                                    .scale = 0.2f };
        }
        rig_send(&r);
        for (uint32_t i = 0; i < ALL; i++) {
            assert_int_equal(r.op->tokens(r.lane, step[i], step[i].token), 0);
            assert_int_equal(r.op->attend(r.lane, &a[i], step[i]), 0);
        }
        rig_wait(&r);
        for (uint32_t l = 0; l < 200; l++) {
            uint32_t i = STEPS + test_below(STEPS), s = test_below(seqs),
                     head = test_below(n_heads);
            uint32_t e = test_below(d);
            double size, want = naive_attend(&a[i], &run[i][s], s, head, e, &size);

            near_steps(at(a[i].out, s, head * d + e), want, 8, r.act, size);
            check_stored(&a[i], &run[i][s], s, e);
        }
        rig_close(&r);
    }
}

/* What 42 and 0.02 fill a tensor with on the CPU device. */
static void
same_on_the_cpu(struct tensor t)
{
    struct gpu_options o = { .device = "cpu" };
    struct tensor here = t;
    struct err e = { 0 };
    struct lane *lane;
    struct gpu *cpu;

    assert_int_equal(gpu_open(&cpu, &o, &e), 0);
    assert_int_equal(gpu_ops(cpu)->lane_open(cpu, 1, &lane, &e), 0);
    here.data = malloc(dtype_bytes(t.dtype, (size_t)t.dim[0] * t.stride));
    assert_non_null(here.data);
    assert_int_equal(gpu_ops(cpu)->fill_random(lane, here, 42, 0.02f), 0);
    gpu_ops(cpu)->lane_close(lane);
    gpu_close(cpu);
    assert_true(same_bits(here, t));
    free(here.data);
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
    a = rig_empty(&r, DT_F32, N, COLS, COLS);
    b = rig_empty(&r, DT_F32, N, COLS, COLS + 5);
    c = rig_empty(&r, DT_F32, N, COLS, COLS);
    h = rig_empty(&r, DT_BF16, N, COLS, COLS);
    rig_send(&r);
    assert_int_equal(r.op->fill_random(r.lane, a, 42, 0.02f), 0);
    assert_int_equal(r.op->fill_random(r.lane, b, 42, 0.02f), 0);
    assert_int_equal(r.op->fill_random(r.lane, c, 43, 0.02f), 0);
    assert_int_equal(r.op->fill_random(r.lane, h, 42, 0.02f), 0);
    rig_wait(&r);
    assert_true(same_bits(a, b));
    assert_int_not_equal(memcmp(HOST(a.data), HOST(c.data), 64), 0);
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
    if (rig_cuda()) same_on_the_cpu(a);
    rig_close(&r);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        rig_test(embed_is_the_scaled_row_of_each_token),
        rig_test(matmul_is_x_w_transposed_plus_bias_plus_beta_y),
        rig_test(rms_norm_divides_by_the_root_mean_square),
        rig_test(layer_norm_takes_the_mean_off_first),
        rig_test(act_gate_add_and_scale_are_what_they_say),
        rig_test(residual_adds_and_norms_what_it_added),
        rig_test(act_matmul_and_gate_matmul_take_an_activation_of_a_product),
        rig_test(rows_copies_are_bytes),
        rig_test(copies_edits_and_tokens_land_where_they_should),
        rig_test(rope_store_norms_rotates_and_stores),
        rig_test(attend_is_softmax_over_the_visible_keys),
        rig_test(generation_reads_what_the_steps_before_it_stored),
        rig_test(generation_sees_all_its_keys_in_any_number_of_sequences),
        rig_test(random_weights_are_normal_and_depend_on_seed_and_index_alone),
    };

    rig_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
