/* test_step_inputs.c - row ops beyond test_ops.c's random shapes: rows longer than any block keeps,
 * conflicting table edits, seen tokens, every kind of rope_store, and random weights equal on GPU
 * and CPU. Any device; outputs poisoned.
 */
#include "tests/gpu/ref_attend.h"
#include "tests/test.h"

#include <math.h>

/* Lengths around the limit that a block keeps of a row, aligned and not. */
static void
norms_support_rows_of_any_length(void **state)
{
    static const uint32_t length[] = {
        1, 3, 1024, 4100, 5376, 8190, 8192, 8193, 8196, 20000, 20001
    };

    (void)state;
    for (size_t l = 0; l < ARRAY_LEN(length); l++) {
        uint32_t d = length[l], n = 3, odd = test_below(2);
        struct fixture r;
        struct tensor x, y, centred, w, b, sum, old, in, w_in;

        fixture_open(&r, "auto", 1);
        x = fixture_tensor(&r, DT_F32, n, d, d + odd, 2);
        y = fixture_output(&r, n, d, d + odd);
        centred = fixture_output(&r, n, d, d + odd);
        w = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        w_in = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        b = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        in = fixture_tensor(&r, r.act, n, d, d + odd, 1);
        sum = fixture_twice(&r, x);
        old = fixture_twice(&r, x);
        fixture_send(&r);
        assert_int_equal(r.op->rms_norm(r.lane, y, x, w, 1e-5f, 1), 0);
        assert_int_equal(r.op->residual(r.lane, &(struct residual){ .x = x,
                                                                    .y = centred,
                                                                    .y_norm = w,
                                                                    .y_bias = b,
                                                                    .eps = 1e-5f,
                                                                    .norm = RESIDUAL_LAYER }),
                         0);
        assert_int_equal(
            r.op->residual(r.lane,
                           &(struct residual){ .x = sum, .in = in, .in_norm = w_in, .eps = 1e-5f }),
            0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < n; i++) {
            double mean = 0, squares = 0, var = 0, in_squares = 0;

            for (uint32_t j = 0; j < d; j++) {
                mean += at(x, i, j) / d;
                squares += pow(at(x, i, j), 2) / d;
                in_squares += pow(at(in, i, j), 2) / d;
            }
            for (uint32_t j = 0; j < d; j++) var += pow(at(x, i, j) - mean, 2) / d;
            for (uint32_t j = 0; j < d; j++) {
                double v = at(x, i, j), g = at(w, 0, j), k = 1 / sqrt(var + 1e-5);
                double add = at(in, i, j) / sqrt(in_squares + 1e-5) * at(w_in, 0, j);

                near(at(y, i, j), v / sqrt(squares + 1e-5) * (g + 1), 3, r.act);
                near(at(centred, i, j), (v - mean) * k * g + at(b, 0, j),
                     fabs(g) * (3 + 10 * k) + 3, r.act);
                near(at(sum, i, j), at(old, i, j) + add, 10, DT_F32);
            }
        }
        fixture_close(&r);
    }
}

/* Few entries and many edits, so that most conflict; more than one round of any block. */
static void
table_edits_apply_in_order(void **state)
{
    (void)state;
    for (int round = 0; round < 12; round++) {
        static const uint32_t count[] = { 1, 31, 300, 5000 };
        uint32_t n = count[round % 4], n_tables = between(1, 8),
                 slots = between(1, round < 6 ? 3 : 60);
        struct tables t = { .n = n_tables };
        slice_id *want[8];
        struct table_edit *edit;
        struct fixture r;

        fixture_open(&r, "auto", 1);
        for (uint32_t i = 0; i < n_tables; i++) {
            size_t bytes;

            t.stride[i] = between(1, 20);
            bytes = (size_t)slots * t.stride[i] * sizeof(slice_id);
            t.table[i] = fixture_bytes(&r, bytes);
            want[i] = memset(test_malloc(bytes), 0xff, bytes);
        }
        edit = fixture_bytes(&r, n * sizeof *edit);
        for (uint32_t i = 0; i < n; i++) {
            struct table_edit e = { .table = test_below(n_tables), .slot = test_below(slots) };

            e.entry = test_below(t.stride[e.table]);
            e.at = test_below(9) ? test_below(1000) : SLICE_NONE;
            HOST(edit)[i] = e;
            want[e.table][e.slot * t.stride[e.table] + e.entry] = e.at;
        }
        fixture_send(&r);
        assert_int_equal(r.op->step.update_tables(r.lane, t, edit, n), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < n_tables; i++) {
            assert_memory_equal(HOST(t.table[i]), want[i],
                                (size_t)slots * t.stride[i] * sizeof(slice_id));
            test_free(want[i]);
        }
        fixture_close(&r);
    }
}

static void
seen_tokens_start_at_position_0_and_include_every_token(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        uint32_t words = between(1, round < 5 ? 9 : 3000), n_segments = between(1, 12), rows = 0;
        size_t bits = (size_t)13 * words;
        uint32_t *seen, *want;
        int32_t *token;
        struct segment *segment;
        struct step_tokens all = { 0 };
        struct token_history h;
        struct fixture r;

        fixture_open(&r, "auto", 1);
        seen = fixture_bytes(&r, bits * sizeof *seen);
        token = fixture_bytes(&r, 13 * 300 * sizeof *token);
        for (uint32_t i = 0; i < 13 * 300; i++) HOST(token)[i] = -7;
        segment = fixture_bytes(&r, n_segments * sizeof *segment);
        for (uint32_t i = 0; i < n_segments; i++) {
            HOST(segment)
            [i] = (struct segment){ .slot = i % 5 == 3 ? SLOT_NONE : 12 - i,
                                    .first_token = rows,
                                    .n_tokens = between(1, 400),
                                    .first_pos = test_below(2) ? 0 : 5 };
            rows += HOST(segment)[i].n_tokens;
        }
        all.n_tokens = rows;
        all.n_segments = n_segments;
        all.token = fixture_bytes(&r, rows * sizeof *all.token);
        for (uint32_t i = 0; i < rows; i++)
            HOST(all.token)[i] = (int32_t)test_below(words * 33) - 1;
        want = test_malloc(bits * sizeof *want);
        for (size_t i = 0; i < bits; i++) want[i] = HOST(seen)[i] = 1u << test_below(32);
        for (uint32_t i = 0; i < n_segments; i++) {
            struct segment u = HOST(segment)[i];
            uint32_t *to = want + (size_t)u.slot * words;

            if (u.slot == SLOT_NONE) continue;
            if (u.first_pos == 0) memset(to, 0, words * sizeof *to);
            for (uint32_t j = 0; j < u.n_tokens; j++) {
                uint32_t t = (uint32_t)HOST(all.token)[u.first_token + j];

                if (t < words * 32) to[t / 32] |= 1u << t % 32;
            }
        }
        fixture_send(&r);
        h = (struct token_history){
            .seen = seen, .seen_words = words, .token = token, .stride = 300
        };
        assert_int_equal(r.op->step.mark_tokens(r.lane, h, all, segment, n_segments), 0);
        fixture_wait(&r);
        assert_memory_equal(HOST(seen), want, bits * sizeof *want);
        for (uint32_t i = 0; i < n_segments; i++) {
            struct segment u = HOST(segment)[i];
            uint32_t first = (uint32_t)u.first_pos;

            for (uint32_t pos = 0; pos < 300 && u.slot != SLOT_NONE; pos++)
                assert_int_equal(HOST(token)[u.slot * 300 + pos],
                                 pos < first || pos - first >= u.n_tokens
                                     ? -7
                                     : HOST(all.token)[u.first_token + pos - first]);
        }
        test_free(want);
        fixture_close(&r);
    }
}

/* The result for one head, in double. */
static void
rotate(double *y, struct tensor x, uint32_t row, uint32_t head, const struct rope_store *s,
       const struct tensor *norm, uint32_t pos)
{
    uint32_t d = s->head_dim, rot = s->cos_sin.data ? s->cos_sin.dim[1] : 0, half = rot / 2;
    double v[512], sum = 0;

    for (uint32_t e = 0; e < d; e++) {
        v[e] = at(x, row, head * d + e);
        sum += v[e] * v[e];
    }
    for (uint32_t e = 0; norm->data && e < d; e++)
        v[e] *= (at(*norm, 0, e) + s->norm_plus) / sqrt(sum / d + s->norm_eps);
    for (uint32_t e = 0; e < d; e++) y[e] = v[e];
    for (uint32_t e = 0; e < half; e++) {
        double c = at(s->cos_sin, pos, e), sn = at(s->cos_sin, pos, half + e);

        y[e] = v[e] * c - v[e + half] * sn;
        y[e + half] = v[e + half] * c + v[e] * sn;
    }
}

/* Partial rotary, q or k alone, K = V, one part, every KV dtype, heads as in models; padding rows
 * at invalid positions, and only a row's own slots are written. */
static void
rope_store_supports_every_kind_of_layer(void **state)
{
    static const uint32_t dim[] = { 16, 64, 80, 96, 128, 256, 512, 34 };

    (void)state;
    for (int round = 0; round < 160; round++) {
        uint32_t d = dim[test_below(8)], rot = test_below(2) ? d : d / 4 * 2, rows = between(1, 12);
        uint32_t n_kv = between(1, 3), n_heads = n_kv * between(1, 4), pad = test_below(2) ? 1 : 9;
        bool has_q = test_below(4), has_k = !has_q || test_below(4), stores = test_below(4);
        bool one_part = test_below(4) == 0, k_is_v = !one_part && test_below(3) == 0;
        static const enum dtype kept[] = { DT_F32, DT_BF16, DT_E4M3, DT_F16 };
        enum dtype kv = kept[test_below(fixture_cuda() ? 4 : 3)];
        struct fixture r;
        struct paged p;
        struct rope_store s = { .norm_eps = 1e-6f, .norm_plus = test_below(2), .head_dim = d };
        struct tensor q_old, k_old, v_old;
        int32_t *pos;
        uint32_t *slot;
        double y[512];

        fixture_open(&r, "auto", 2);
        fixture_paged(&r, &p, kv, 2, 60, 1u << test_below(6), n_kv, d);
        s.n_heads = n_heads;
        s.n_kv_heads = n_kv;
        if (has_q)
            s.q = fixture_tensor(&r, r.act, rows, n_heads * d, n_heads * d + test_below(pad), 1);
        if (has_k) s.k = fixture_tensor(&r, r.act, rows, n_kv * d, n_kv * d + test_below(pad), 1);
        if (has_k && !one_part)
            s.v = k_is_v ? s.k
                         : fixture_tensor(&r, r.act, rows, n_kv * d, n_kv * d + test_below(pad), 1);
        q_old = has_q ? fixture_twice(&r, s.q) : NO_TENSOR;
        k_old = has_k ? fixture_twice(&r, s.k) : NO_TENSOR;
        v_old = s.v.data ? fixture_twice(&r, s.v) : NO_TENSOR;
        if (test_below(2)) s.q_norm = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        if (test_below(2)) s.k_norm = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        if (test_below(4))
            s.cos_sin = fixture_tensor(&r, DT_F32, 60, rot, rot + test_below(pad), 1);
        if (stores) s.kv = p.view;
        if (one_part) s.kv.n_parts = 1;
        pos = fixture_bytes(&r, rows * sizeof *pos);
        slot = fixture_bytes(&r, rows * sizeof *slot);
        for (uint32_t i = 0; i < rows; i++) {
            HOST(pos)[i] = (int32_t)(i < 6 ? 7 * i : 9 * (i - 6) + 1);
            HOST(slot)[i] = i % 4 == 2 ? SLOT_NONE : i < 6;
            if (i % 8 == 6) HOST(pos)[i] = test_below(2) ? -1 : 1 << 20;
        }
        fixture_send(&r);
        assert_int_equal(
            r.op->rope_store(r.lane, &s,
                             (struct step_tokens){ .n_tokens = rows, .pos = pos, .slot = slot }),
            0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++) {
            uint32_t here = (uint32_t)HOST(pos)[i], whose = HOST(slot)[i];

            if (whose == SLOT_NONE) continue;
            for (uint32_t h = 0; has_q && h < n_heads; h++) {
                rotate(y, q_old, i, h, &s, &s.q_norm, here);
                for (uint32_t e = 0; e < d; e++) near(at(s.q, i, h * d + e), y[e], 9, r.act);
            }
            for (uint32_t h = 0; has_k && h < n_kv; h++) {
                rotate(y, k_old, i, h, &s, &s.k_norm, here);
                for (uint32_t e = 0; e < d; e++) {
                    double k = at(s.k, i, h * d + e);

                    if (!stores) {
                        near(k, y[e], 9, r.act);
                        continue;
                    }
                    assert_true(k == at(k_old, i, h * d + e));
                    near(ref_kv(&s.kv, 0, whose, here, h, e), y[e], 9, kv);
                    if (!one_part)
                        near(ref_kv(&s.kv, 1, whose, here, h, e), at(v_old, i, h * d + e), 3, kv);
                }
            }
        }
        /* Positions that no row has are still poison. */
        for (uint32_t i = 0; i < 20 && has_k && stores; i++) {
            uint32_t whose = test_below(2), here = test_below(60);
            bool written = false;

            for (uint32_t j = 0; j < rows; j++)
                written |= HOST(slot)[j] == whose && HOST(pos)[j] == (int32_t)here;
            if (!written) assert_true(isnan(ref_kv(&s.kv, 0, whose, here, n_kv - 1, d - 1)));
        }
        fixture_close(&r);
    }
}

/* The same bits as on the CPU, so that GPU test data can be made on a host without GPU. */
static void
random_weights_equal_those_of_the_cpu(void **state)
{
    struct gpu_options o = { .device = "cpu", .isa = "auto" };
    const struct gpu_ops *op;
    struct lane *lane;
    struct gpu *cpu;
    struct err e = { 0 };

    (void)state;
    if (gpu_open(&cpu, &o, &e) < 0) fail_msg("%s", e.text);
    op = gpu_ops(cpu);
    if (op->lane.open(cpu, 1, &lane, &e) < 0) fail_msg("%s", e.text);
    for (uint64_t round = 1; round <= 30; round++) {
        static const enum dtype type[] = { DT_F32, DT_BF16, DT_F16 };
        enum dtype t = type[test_below(3)];
        uint32_t rows = between(1, 40), cols = between(1, round % 2 ? 200 : 3000);
        uint32_t stride = cols + (round % 3 ? 0 : between(1, 9));
        struct tensor x, want;
        struct fixture r;

        fixture_open(&r, "auto", 1);
        x = fixture_empty(&r, t, rows, cols, stride);
        want = x;
        want.data = test_malloc(dtype_bytes(t, (size_t)rows * stride));
        fixture_send(&r);
        assert_int_equal(r.op->mem.fill_random(r.lane, x, round << 40 | round, 0, 0, 0.02f), 0);
        assert_int_equal(op->mem.fill_random(lane, want, round << 40 | round, 0, 0, 0.02f), 0);
        assert_int_equal(op->lane.mark(lane, round), 0);
        fixture_wait(&r);
        while (op->lane.done(lane) < round) {
        }
        assert_true(same_bits(x, want));
        test_free(want.data);
        fixture_close(&r);
    }
    op->lane.close(lane);
    gpu_close(cpu);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_support_rows_of_any_length),
        cmocka_unit_test(table_edits_apply_in_order),
        cmocka_unit_test(seen_tokens_start_at_position_0_and_include_every_token),
        cmocka_unit_test(rope_store_supports_every_kind_of_layer),
        cmocka_unit_test(random_weights_equal_those_of_the_cpu),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
