/* test_ops.c - every op but attention (test_attend.c) against a reference in double: random shapes,
 * odd strides, outputs poisoned with NaN, within the bound of ref_attend.h.
 *
 * On a GPU every other shape fits kernels for whole tiles. Of large outputs a sample is checked,
 * because the reference uses one core.
 */
#include "tests/gpu/ref_attend.h"
#include "tests/test.h"

#include "gpu/fp.h"

#include <math.h>

enum { ROUNDS = 40 };

static void
embed_is_the_scaled_row_of_each_token(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        bool w = wide();
        uint32_t rows = between(1, 9), d = w ? 64 * between(1, 40) : between(1, 70);
        uint32_t vocab = between(1, 50);
        struct fixture r;
        struct tensor table, x;
        int32_t *token;

        open_any(&r);
        table = fixture_tensor(&r, fixture_weight(&r), vocab, d, w ? d : d + test_below(5), 1);
        /* It fills the residual stream: fp32 on every device. */
        x = fixture_empty(&r, DT_F32, rows, d, w ? d : d + test_below(5));
        token = fixture_bytes(&r, rows * sizeof *token);
        for (uint32_t i = 0; i < rows; i++) HOST(token)[i] = (int32_t)test_below(vocab + 3) - 1;
        fixture_send(&r);
        assert_int_equal(r.op->embed(r.lane, x, table, token, 3.5f), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < d; j++) {
                int32_t t = HOST(token)[i];
                double want = t < 0 ? 0 : at(table, t < (int32_t)vocab ? (uint32_t)t : 0, j) * 3.5;

                near(at(x, i, j), want, fabs(want), DT_F32);
            }
        fixture_close(&r);
    }
}

static void
matmul_is_x_w_transposed_plus_bias_plus_beta_y(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(3 * ROUNDS); n++) {
        bool whole = wide(), large = false;
        uint32_t rows = between(1, 9), k = between(1, 100), out = between(1, 60), pad = 9, look;
        float beta = test_below(3) ? 0 : 0.75f;
        struct fixture r;
        struct tensor x, w, bias = NO_TENSOR, y, old, again;
        enum dtype type;

        if (whole) {
            rows = between(1, test_below(2) ? 33 : test_below(2) ? 64 : 300);
            k = test_below(4) ? 64 * (test_below(4) ? between(1, 32) : between(32, 70))
                              : 8 * between(1, 500);
            out = test_below(3) ? 64 * between(1, 16) : between(1, 1000);
            large = test_below(4) == 0; /* enough for kernels that need some rows */
            if (large) {
                rows = between(9, 64);
                k = 8 * between(260, 560);
                out = 4 * between(520, 800);
                beta = 0;
            }
            pad = 1;
        }
        open_any(&r);
        type = test_below(3) ? r.act : DT_F32;
        x = fixture_tensor(&r, r.act, rows, k, k + test_below(pad), 1);
        w = fixture_tensor(&r, fixture_weight(&r), out, k, k + test_below(pad), 1);
        if (!large && test_below(2)) bias = fixture_tensor(&r, fixture_vector(&r), 1, out, out, 1);
        y = fixture_empty(&r, type, rows, out, out + test_below(pad));
        if (beta != 0) y = fixture_tensor(&r, type, rows, out, y.stride, 1);
        old = fixture_twice(&r, y);
        again = fixture_twice(&r, y);
        fixture_send(&r);
        assert_int_equal(r.op->matmul(r.lane, y, x, w, bias, beta), 0);
        assert_int_equal(r.op->matmul(r.lane, again, x, w, bias, beta), 0);
        fixture_wait(&r);
        assert_true(same_bits(y, again));
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
        fixture_close(&r);
    }
}

static void
rms_norm_divides_by_the_root_mean_square(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = whole ? 64 * between(1, 90) : between(1, 90);
        float plus = test_below(2) ? 1 : 0;
        struct fixture r;
        struct tensor x, y, w = NO_TENSOR;

        open_any(&r);
        x = fixture_tensor(&r, test_below(2) ? DT_F32 : r.act, rows, d,
                           whole ? d : d + test_below(9), 3);
        y = fixture_output(&r, rows, d, whole ? d : d + test_below(9));
        if (test_below(3)) w = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        fixture_send(&r);
        assert_int_equal(r.op->rms_norm(r.lane, y, x, w, 1e-5f, plus), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            double sum = 0;

            for (uint32_t j = 0; j < d; j++) sum += at(x, i, j) * at(x, i, j);
            for (uint32_t j = 0; j < d; j++) {
                double v = at(x, i, j) / sqrt(sum / d + 1e-5f);

                if (w.data) v *= at(w, 0, j) + plus;
                near(at(y, i, j), v, fabs(v), y.dtype);
            }
        }
        fixture_close(&r);
    }
}

static void
layer_norm_subtracts_the_mean_first(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = whole ? 64 * between(1, 90) : between(2, 90);
        struct fixture r;
        struct tensor x, y, w = NO_TENSOR, b = NO_TENSOR;

        open_any(&r);
        x = fixture_tensor(&r, DT_F32, rows, d, whole ? d : d + test_below(9), 3);
        y = fixture_output(&r, rows, d, whole ? d : d + test_below(9));
        if (test_below(3)) w = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        if (test_below(3)) b = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        fixture_send(&r);
        assert_int_equal(r.op->residual(r.lane, &(struct residual){ .x = x,
                                                                    .y = y,
                                                                    .y_norm = w,
                                                                    .y_bias = b,
                                                                    .eps = 1e-5f,
                                                                    .norm = RESIDUAL_LAYER }),
                         0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            double mean = 0, var = 0;

            for (uint32_t j = 0; j < d; j++) mean += at(x, i, j) / d;
            for (uint32_t j = 0; j < d; j++) var += pow(at(x, i, j) - mean, 2) / d;
            for (uint32_t j = 0; j < d; j++) {
                double weight = w.data ? at(w, 0, j) : 1, add = b.data ? at(b, 0, j) : 0;
                double inv = 1 / sqrt(var + 1e-5f);

                /* The mean's own rounding matters if the values are large. */
                near(at(y, i, j), (at(x, i, j) - mean) * inv * weight + add,
                     fabs(add) + fabs(weight) * (3 + 10 * inv), y.dtype);
            }
        }
        fixture_close(&r);
    }
}

static double
activation(double x, enum act a)
{
    switch (a) {
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_RELU2:
        return x > 0 ? x * x : 0;
    case ACT_SILU:
        return x / (1 + exp(-x));
    case ACT_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_SWIGLU_CLAMPED: /* takes a pair */
        break;
    }
    return NAN;
}

/* Gate 2 j and up 2 j + 1 of row i. */
static double
clamped(struct tensor pair, uint32_t i, uint32_t j)
{
    double g = fmin(at(pair, i, 2 * j), 7), u = fmax(fmin(at(pair, i, 2 * j + 1), 7), -7);

    return (u + 1) * g / (1 + exp(-1.702 * g));
}

static void
act_gate_add_and_scale_match_the_reference(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(2 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 5), d = whole ? 64 * between(1, 40) : between(1, 70);
        uint32_t pad = whole ? 1 : 9;
        enum act a = (enum act)(n % 5);
        float cap = test_below(2) ? 30 : 0;
        struct fixture r;
        struct tensor x, y, pair, gated, clamped_y, sum, sum_old, scaled, scaled_old;

        open_any(&r);
        x = fixture_tensor(&r, r.act, rows, d, d + test_below(pad), 3);
        y = fixture_output(&r, rows, d, d + test_below(pad));
        pair = fixture_tensor(&r, r.act, rows, 2 * d, 2 * d + test_below(pad), 3);
        gated = fixture_output(&r, rows, d, d + test_below(pad));
        clamped_y = fixture_output(&r, rows, d, d + test_below(pad));
        sum = fixture_tensor(&r, test_below(2) ? DT_F32 : r.act, rows, d, d, 1);
        scaled = fixture_tensor(&r, test_below(2) ? DT_F32 : r.act, rows, d, d, 1);
        sum_old = fixture_twice(&r, sum);
        scaled_old = fixture_twice(&r, scaled);
        fixture_send(&r);
        assert_int_equal(r.op->act(r.lane, y, x, a), 0);
        assert_int_equal(r.op->gate(r.lane, gated, pair, a), 0);
        assert_int_equal(r.op->gate(r.lane, clamped_y, pair, ACT_SWIGLU_CLAMPED), 0);
        assert_int_equal(r.op->add(r.lane, sum, x), 0);
        assert_int_equal(r.op->scale(r.lane, scaled, 20, cap), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < d; j++) {
                double v = at(x, i, j), g = at(pair, i, j), up = at(pair, i, d + j);
                double was = at(scaled_old, i, j) * 20;

                near(at(y, i, j), activation(v, a), fabs(v), r.act);
                near(at(gated, i, j), activation(g, a) * up, fabs(g * up), r.act);
                near(at(clamped_y, i, j), clamped(pair, i, j), 100, r.act);
                near(at(sum, i, j), at(sum_old, i, j) + v, fabs(v) + 1, sum.dtype);
                near(at(scaled, i, j), cap != 0 ? cap * tanh(was / cap) : was, 60, scaled.dtype);
            }
        fixture_close(&r);
    }
}

/* Statistics of a row for its norm. */
struct moments {
    double mean, inverse;
};

static struct moments
moments(const struct residual *a, struct tensor x, uint32_t i)
{
    struct moments m = { 0 };
    double squares = 0;

    for (uint32_t k = 0; a->norm != RESIDUAL_RMS && k < x.dim[1]; k++)
        m.mean += at(x, i, k) / x.dim[1];
    for (uint32_t k = 0; k < x.dim[1]; k++) squares += pow(at(x, i, k) - m.mean, 2);
    m.inverse = 1 / sqrt(squares / x.dim[1] + a->eps);
    return m;
}

/* Element j of the norm with input v, and the magnitude of its terms. */
static double
normed(const struct residual *a, struct moments m, double v, uint32_t j, double *size)
{
    bool layer = a->norm != RESIDUAL_RMS;
    double weight = a->y_norm.data ? at(a->y_norm, 0, j) + (layer ? 0 : a->plus) : 1;
    double bias = a->y_bias.data ? at(a->y_bias, 0, j) : 0;

    v = (v - m.mean) * m.inverse * weight;
    /* The mean's own rounding matters if the values are large. */
    *size = layer ? fabs(bias) + fabs(weight) * (3 + 10 * m.inverse) : fabs(v);
    return v + bias;
}

static void
residual_adds_then_normalizes_the_sum(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(4 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), d = whole ? 64 * between(1, 90) : between(2, 90);
        uint32_t pad = whole ? 1 : 9;
        bool adds = test_below(4), norms = test_below(4) || !adds, post;
        struct fixture r;
        struct tensor x, sum;
        struct residual a = { .eps = 1e-5f,
                              .plus = test_below(2) ? 1 : 0,
                              .norm = (enum residual_norm)test_below(3) };

        open_any(&r);
        post = a.norm == RESIDUAL_POST;
        if (whole && n % 20 == 0) d = 8192 + 64 * between(1, 20); /* more than a row in registers */
        x = fixture_tensor(&r, DT_F32, rows, d, d + test_below(pad), 3);
        sum = fixture_twice(&r, x);
        a.x = x;
        if (adds)
            a.in = fixture_tensor(&r, test_below(2) ? r.act : DT_F32, rows, d, d + test_below(pad),
                                  2);
        if (adds && test_below(2))
            a.in_bias = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        else if (adds && a.norm == RESIDUAL_RMS && test_below(2))
            a.in_norm = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        if (norms) a.y = fixture_output(&r, rows, d, d + test_below(pad));
        if (test_below(3)) a.y_norm = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        if (a.norm != RESIDUAL_RMS && test_below(3))
            a.y_bias = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        fixture_send(&r);
        assert_int_equal(r.op->residual(r.lane, &a), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            double in_squares = 0, size;
            struct moments m;

            for (uint32_t j = 0; adds && j < d; j++) in_squares += pow(at(a.in, i, j), 2);
            for (uint32_t j = 0; j < d; j++) {
                double in = adds ? at(a.in, i, j) : 0, old = at(sum, i, j);

                if (a.in_bias.data) in += at(a.in_bias, 0, j);
                if (a.in_norm.data)
                    in *= (at(a.in_norm, 0, j) + a.plus) / sqrt(in_squares / d + a.eps);
                if (!post) near(at(x, i, j), old + in, fabs(old) + fabs(in), DT_F32);
                set(sum, i, j, (float)(post ? old + in : at(x, i, j)));
            }
            m = moments(&a, sum, i);
            for (uint32_t j = 0; j < d; j++) {
                double v = normed(&a, m, at(sum, i, j), j, &size);

                if (post) near(at(x, i, j), v, size, DT_F32);
                if (norms) near(at(a.y, i, j), v, size, r.act);
            }
        }
        fixture_close(&r);
    }
}

static void
act_matmul_and_gate_matmul_activate_the_product(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(2 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t rows = between(1, 9), k = between(1, 100), f = between(1, 40), pad = 9, look;
        enum act a = (enum act)(n % 4);
        struct fixture r;
        struct tensor x, w, y, both, acted, bias = NO_TENSOR;

        if (whole) {
            rows = between(1, test_below(2) ? 33 : test_below(2) ? 64 : 300);
            k = test_below(4) ? 64 * (test_below(4) ? between(1, 32) : between(32, 70))
                              : 8 * between(1, 500);
            f = test_below(4) ? 64 * between(1, 10) : 8 * between(1, 100);
            if (test_below(4) == 0) { /* large enough for kernels that need some rows */
                rows = between(9, 64);
                k = 8 * between(260, 560);
                f = 8 * between(130, 200);
            }
            pad = 1;
        }
        open_any(&r);
        x = fixture_tensor(&r, r.act, rows, k, k + test_below(pad), 1);
        w = fixture_tensor(&r, fixture_weight(&r), 2 * f, k, k + test_below(pad),
                           3 / sqrtf((float)k));
        y = fixture_output(&r, rows, f, f + test_below(pad));
        both = fixture_output(&r, rows, 2 * f, 2 * f);
        acted = fixture_output(&r, rows, f, f + test_below(pad));
        if (test_below(2)) bias = fixture_tensor(&r, fixture_vector(&r), 1, f, f, 1);
        fixture_send(&r);
        assert_int_equal(r.op->gate_matmul(r.lane, y, both, x, w, a), 0);
        assert_int_equal(r.op->act_matmul(r.lane, acted, x, tensor_rows(w, 0, f), bias, a), 0);
        fixture_wait(&r);
        look = whole ? 300 : rows * f;
        for (uint32_t l = 0; l < look; l++) {
            uint32_t i = whole ? test_below(rows) : l / f, j = whole ? test_below(f) : l % f;
            double g = 0, up = 0, g_size = 0, up_size = 0, b = bias.data ? at(bias, 0, j) : 0;
            double steep;

            for (uint32_t e = 0; e < k; e++) {
                g += at(x, i, e) * at(w, j, e);
                g_size += fabs(at(x, i, e) * at(w, j, e));
                up += at(x, i, e) * at(w, f + j, e);
                up_size += fabs(at(x, i, e) * at(w, f + j, e));
            }
            /* The slope of an activation is at most 1.13, except of a square. */
            steep = a == ACT_RELU2 ? 2 * (fabs(g) + fabs(b)) + 1e-5 * g_size : 1.13;
            near_steps(at(acted, i, j), activation(g + b, a), 1.1 * steep * (g_size + fabs(b)),
                       r.act, steep * (fabs(g) + fabs(b)));
            near_steps(at(y, i, j), activation(g, a) * up,
                       1.1 * steep * (g_size * fabs(up) + up_size * fabs(g)), r.act,
                       steep * fabs(g * up));
        }
        fixture_close(&r);
    }
}

static void
gather_rows_copies_bytes(void **state)
{
    (void)state;
    for (int n = 0; n < 6; n++) {
        uint32_t d = n % 2 ? 33 : 256;
        struct fixture r;
        struct tensor x, y;
        uint32_t *which;

        open_any(&r);
        x = fixture_tensor(&r, fixture_weight(&r), 20, d, d + 7 * (n % 2), 1);
        y = fixture_empty(&r, x.dtype, 50, d, d + 4 * (n % 2));
        which = fixture_bytes(&r, 50 * sizeof *which);
        for (int i = 0; i < 50; i++) HOST(which)[i] = test_below(20);
        fixture_send(&r);
        assert_int_equal(r.op->gather_rows(r.lane, y, x, which), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < 50; i++)
            for (uint32_t j = 0; j < d; j++) assert_true(at(y, i, j) == at(x, HOST(which)[i], j));
        fixture_close(&r);
    }
}

static void
copies_table_edits_and_tokens_match_the_reference(void **state)
{
    enum { N = 3 << 18 };
    static uint32_t host[N], back[N];
    const struct table_edit edit[] = {
        { .table = 1, .slot = 1, .entry = 2, .at = 7 },
        { .table = 0, .slot = 2, .entry = 1, .at = 9 },
        { .table = 1,
          .slot = 1,
          .entry = 2,
          .at = SLICE_NONE }, /* in order: the later edit counts */
    };
    const int32_t token[] = { 5, -1, -1, 8 }, last[] = { 100, 101, 102 }, pos[] = { 0, 0, 0, 0 };
    const uint32_t slot[] = { 0, 2, SLOT_NONE, 1 };
    const slice_id table[6] = { 0 };
    struct fixture r;
    uint32_t *a, *b;
    slice_id *t0, *t1;
    struct step_tokens rows;

    (void)state;
    open_any(&r);
    a = fixture_bytes(&r, sizeof host);
    b = fixture_bytes(&r, sizeof host);
    t0 = fixture_copy(&r, table, sizeof table);
    t1 = fixture_copy(&r, table, sizeof table);
    rows = (struct step_tokens){ .n_tokens = 4,
                                 .token = fixture_copy(&r, token, sizeof token),
                                 .pos = fixture_copy(&r, pos, sizeof pos),
                                 .slot = fixture_copy(&r, slot, sizeof slot) };
    const struct table_edit *edits = fixture_copy(&r, edit, sizeof edit);
    const int32_t *lasts = fixture_copy(&r, last, sizeof last);

    for (uint32_t i = 0; i < N; i++) host[i] = HOST(a)[i] = i;
    fixture_send(&r);
    assert_int_equal(r.op->mem.put(r.lane, b, host, sizeof host), 0);
    assert_int_equal(r.op->mem.copy(r.lane, b + 1, a, 64), 0);
    assert_int_equal(r.op->mem.get(r.lane, back, b, sizeof back), 0);
    assert_int_equal(
        r.op->step.update_tables(
            r.lane, (struct tables){ .n = 2, .stride = { 2, 3 }, .table = { t0, t1 } }, edits, 3),
        0);
    assert_int_equal(r.op->step.resolve_tokens(r.lane, rows, lasts), 0);
    fixture_wait(&r);
    for (uint32_t i = 0; i < N; i++)
        if (back[i] != (i >= 1 && i <= 16 ? i - 1 : i)) fail_msg("word %u is %u", i, back[i]);
    assert_int_equal(HOST(t0)[5], 9);
    assert_int_equal(HOST(t1)[5], SLICE_NONE);
    assert_int_equal(HOST(rows.token)[0], 5);
    assert_int_equal(HOST(rows.token)[1], 102);
    assert_int_equal(HOST(rows.token)[2], -1);
    assert_int_equal(HOST(rows.token)[3], 8);
    fixture_close(&r);
}

/* Values of seed 42 and std 0.02 on the CPU device. */
static void
same_on_the_cpu(struct tensor t)
{
    struct gpu_options o = { .device = "cpu" };
    struct tensor here = t;
    struct err e = { 0 };
    struct lane *lane;
    struct gpu *cpu;

    assert_int_equal(gpu_open(&cpu, &o, &e), 0);
    assert_int_equal(gpu_ops(cpu)->lane.open(cpu, 1, &lane, &e), 0);
    here.data = malloc(dtype_bytes(t.dtype, (size_t)t.dim[0] * t.stride));
    assert_non_null(here.data);
    assert_int_equal(gpu_ops(cpu)->mem.fill_random(lane, here, 42, 0, 0, 0.02f), 0);
    gpu_ops(cpu)->lane.close(lane);
    gpu_close(cpu);
    assert_true(same_bits(here, t));
    free(here.data);
}

static void
random_weights_are_normal_and_depend_on_seed_and_index(void **state)
{
    enum { N = 300, COLS = 307 };
    struct fixture r;
    struct tensor a, b, c, h;
    double sum = 0, squares = 0, cubes = 0, next = 0;
    uint32_t beyond_2 = 0;

    (void)state;
    open_any(&r);
    a = fixture_empty(&r, DT_F32, N, COLS, COLS);
    b = fixture_empty(&r, DT_F32, N, COLS, COLS + 5);
    c = fixture_empty(&r, DT_F32, N, COLS, COLS);
    h = fixture_empty(&r, DT_BF16, N, COLS, COLS);
    fixture_send(&r);
    assert_int_equal(r.op->mem.fill_random(r.lane, a, 42, 0, 0, 0.02f), 0);
    assert_int_equal(r.op->mem.fill_random(r.lane, b, 42, 0, 0, 0.02f), 0);
    assert_int_equal(r.op->mem.fill_random(r.lane, c, 43, 0, 0, 0.02f), 0);
    assert_int_equal(r.op->mem.fill_random(r.lane, h, 42, 0, 0, 0.02f), 0);
    fixture_wait(&r);
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
    /* 92,100 values: within five standard errors each. */
    assert_true(fabs(sum / (N * COLS)) < 0.0165);
    assert_true(fabs(squares / (N * COLS) - 1) < 0.0235);
    assert_true(fabs(cubes / (N * COLS)) < 0.064);
    assert_true(fabs(next / (N * COLS)) < 0.0165);
    assert_true(fabs(beyond_2 / (double)(N * COLS) - 0.0455) < 0.0035);
    if (fixture_cuda()) same_on_the_cpu(a);
    fixture_close(&r);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(embed_is_the_scaled_row_of_each_token),
        fixture_test(matmul_is_x_w_transposed_plus_bias_plus_beta_y),
        fixture_test(rms_norm_divides_by_the_root_mean_square),
        fixture_test(layer_norm_subtracts_the_mean_first),
        fixture_test(act_gate_add_and_scale_match_the_reference),
        fixture_test(residual_adds_then_normalizes_the_sum),
        fixture_test(act_matmul_and_gate_matmul_activate_the_product),
        fixture_test(gather_rows_copies_bytes),
        fixture_test(copies_table_edits_and_tokens_match_the_reference),
        fixture_test(random_weights_are_normal_and_depend_on_seed_and_index),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
