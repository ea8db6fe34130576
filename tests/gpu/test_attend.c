/* test_attend.c - attend() and rope_store() against ref_attend.h, as test_ops.c does for other ops:
 * random shapes, odd strides, a cache and outputs poisoned with NaN.
 */
#include "tests/gpu/ref_attend.h"
#include "tests/test.h"

#include "gpu/fp.h"

#include <math.h>

enum { ROUNDS = 40 };

/* On a GPU KV has the dtype of activations, or fp8. */
static enum dtype
some_kv(const struct fixture *r)
{
    if (test_below(3) == 0) return DT_E4M3;
    if (fixture_cuda()) return r->act;
    return test_below(2) ? DT_F32 : DT_BF16;
}

static void
rope_store_normalizes_rotates_and_stores(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(2 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t d = whole ? 64u << test_below(4) : 2 * between(1, 40);
        uint32_t rot = whole ? d : 2 * between(1, d / 2), rows = between(1, 9), pad = whole ? 1 : 9;
        uint32_t n_kv = between(1, 3), n_heads = n_kv * between(1, 3), max_pos = 40;
        bool norms = test_below(2), rotates = test_below(3), stores = test_below(4);
        bool v_norm = test_below(2), v_is_k = test_below(3) == 0;
        struct fixture r;
        struct paged p;
        struct tensor q, k, v, q_old, k_old, cs, qn, kn;
        struct rope_store s;
        int32_t *pos;
        uint32_t *slot;

        open_any(&r);
        fixture_paged(&r, &p, some_kv(&r), 2, max_pos, 1u << test_below(5), n_kv, d);
        q = fixture_tensor(&r, r.act, rows, n_heads * d, n_heads * d + test_below(pad), 1);
        k = fixture_tensor(&r, r.act, rows, n_kv * d, n_kv * d + test_below(pad), 1);
        v = fixture_tensor(&r, r.act, rows, n_kv * d, n_kv * d + test_below(pad), 1);
        q_old = fixture_twice(&r, q);
        k_old = fixture_twice(&r, k);
        cs = fixture_tensor(&r, DT_F32, max_pos, rot, rot, 1);
        qn = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        kn = fixture_tensor(&r, fixture_vector(&r), 1, d, d, 1);
        pos = fixture_bytes(&r, rows * sizeof *pos);
        slot = fixture_bytes(&r, rows * sizeof *slot);
        for (uint32_t i = 0; i < rows; i++) {
            /* different for all tokens of a slot */
            HOST(pos)[i] = (int32_t)(i < 5 ? 3 * i : 7 * (i - 5) + 1);
            HOST(slot)[i] = i == 2 ? SLOT_NONE : i < 5 ? 0 : 1;
        }
        s = (struct rope_store){ .q = q,
                                 .k = k,
                                 .v = v_is_k ? k : v,
                                 .v_norm = v_norm,
                                 .q_norm = norms ? qn : NO_TENSOR,
                                 .k_norm = norms ? kn : NO_TENSOR,
                                 .norm_eps = 1e-6f,
                                 .norm_plus = 1,
                                 .cos_sin = rotates ? cs : NO_TENSOR,
                                 .n_heads = n_heads,
                                 .n_kv_heads = n_kv,
                                 .head_dim = d };
        if (stores) s.kv = p.view;
        fixture_send(&r);
        assert_int_equal(
            r.op->rope_store(r.lane, &s,
                             (struct step_tokens){ .n_tokens = rows, .pos = pos, .slot = slot }),
            0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t h = 0; h < n_heads + n_kv; h++) {
                bool is_k = h >= n_heads;
                uint32_t head = is_k ? h - n_heads : h;
                struct tensor from = is_k ? k_old : q_old, w = is_k ? kn : qn;
                double x[512], sum = 0;
                uint32_t here = (uint32_t)HOST(pos)[i], whose = HOST(slot)[i];

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
                        if (whose == SLOT_NONE) continue;
                        got = ref_kv(&p.view, 0, whose, here, head, e);
                        assert_true(at(k, i, head * d + e) == at(k_old, i, head * d + e));
                    } else {
                        got = at(is_k ? k : q, i, head * d + e);
                    }
                    near_steps(got, want, size, is_k && stores ? p.view.dtype : r.act,
                               rotates ? size : 0);
                    if (is_k && stores) {
                        got = ref_kv(&p.view, 1, whose, here, head, e);
                        want = at(s.v, i, head * d + e);
                        if (v_norm) {
                            double squares = 0;

                            for (uint32_t c = 0; c < d; c++)
                                squares += pow(at(s.v, i, head * d + c), 2);
                            want /= sqrt(squares / d + 1e-6f);
                        }
                        near(got, want, fabs(want), p.view.dtype);
                    }
                }
            }
        fixture_close(&r);
    }
}

static const uint32_t wide_dim[] = { 64, 128, 256, 512 };

/* A tree of draft tokens: every row sees itself and some earlier rows. */
static void
some_mask(struct fixture *r, struct attend *a, const struct segment *segment, uint32_t n_segments,
          uint32_t rows)
{
    uint32_t *bits;

    a->mask_words = 2;
    a->mask = bits = fixture_bytes(r, rows * 2 * sizeof *bits);
    for (uint32_t i = 0; i < n_segments; i++)
        for (uint32_t j = 0; j < segment[i].n_tokens; j++) {
            uint32_t *row = HOST(bits) + (segment[i].first_token + j) * 2;

            for (uint32_t w = 0; w < 2; w++) row[w] = test_below(1u << 31) & test_below(1u << 31);
            row[0] &= j < 31 ? (2u << j) - 1 : UINT32_MAX;
            row[1] = 0;
            row[0] |= 1u << j;
        }
}

/* The segments as in a graph: with some empty ones. `to` has three times the segments, plus
 * three. */
static uint32_t
with_empty_runs(const struct segment *segment, uint32_t n, struct segment *to,
                uint32_t *n_single_token)
{
    uint32_t single = *n_single_token, k = 0;

    for (uint32_t i = 0; i <= n; i++) {
        for (uint32_t empty = test_below(4); empty; empty--)
            to[k++] = (struct segment){ .slot = SLOT_NONE };
        if (i == single) *n_single_token = k;
        if (i < n) to[k++] = segment[i];
    }
    return k;
}

/* K and V of the step, not yet in the cache. */
static void
own_keys(struct fixture *r, struct attend *a, uint32_t rows, uint32_t pad)
{
    uint32_t width = a->n_kv_heads * a->head_dim;

    a->k = fixture_tensor(r, r->act, rows, width, width + test_below(pad), 1);
    a->v = fixture_tensor(r, r->act, rows, width, width + test_below(pad), 1);
}

/* All queued work is complete for later work, so that attend() may use inputs_ready. */
static void
settle(struct fixture *r, struct attend *a, const struct step_tokens *step)
{
    struct step_tokens some = *step;

    a->inputs_ready = true;
    some.token = fixture_bytes(r, step->n_tokens * sizeof *some.token);
    memset(HOST(some.token), 0, step->n_tokens * sizeof *some.token);
    fixture_send(r);
    assert_int_equal(r->op->step.resolve_tokens(r->lane, some, some.token), 0);
}

/* Checks what attend() stored of a row: its K and V in the cache's dtype. */
static void
check_stored(const struct attend *a, const struct segment *segment, uint32_t row, uint32_t e)
{
    uint32_t pos = (uint32_t)segment->first_pos + row - segment->first_token;

    for (uint32_t h = 0; h < a->n_kv_heads; h++)
        for (uint32_t part = 0; part < a->kv.n_parts; part++) {
            double want = at(part ? a->v : a->k, row, h * a->head_dim + e);

            near(ref_kv(&a->kv, part, segment->slot, pos, h, e), want, fabs(want), a->kv.dtype);
        }
}

/* Runs the op again: the bits do not depend on which GPU block is last. */
static void
attend_twice(struct fixture *r, const struct attend *a, struct tensor out, struct step_tokens step)
{
    struct attend again = *a;

    again.out = out;
    assert_int_equal(r->op->attend(r->lane, a, step), 0);
    assert_int_equal(r->op->attend(r->lane, &again, step), 0);
    fixture_wait(r);
    assert_true(same_bits(a->out, out));
}

/* A random mix of all variants; K and V outside the visible keys are NaN. */
static void
attend_is_softmax_over_the_visible_keys(void **state)
{
    enum { SLOTS = 4 };

    (void)state;
    for (int n = 0; n < fixture_rounds(4 * ROUNDS); n++) {
        bool whole = wide();
        uint32_t n_kv = between(1, 3), n_heads = n_kv * between(1, whole ? 8 : 4);
        uint32_t d = whole ? wide_dim[test_below(4)] : between(fixture_cuda() ? 3 : 1, 12) * 6;
        uint32_t tpb = whole ? 16u << test_below(3) : 4u << test_below(5);
        uint32_t kind = test_below(4), rows = 0, pad = whole ? 1 : 9, far = whole ? 900 : 180;
        struct segment segment[SLOTS] = { { 0 } }, all[4 * SLOTS + 3] = { { 0 } };
        struct fixture r;
        struct paged p;
        struct attend a = {
            .n_heads = n_heads, .n_kv_heads = n_kv, .head_dim = d, .scale = 0.2f, .causal = kind < 2
        };
        struct step_tokens step = { .n_segments = SLOTS };
        struct tensor again;
        bool stores = false;
        float *sinks, *bias;
        int32_t *pos;
        uint32_t *slot;

        open_any(&r);
        fixture_paged(&r, &p, some_kv(&r), SLOTS, far + 120, tpb, n_kv, d);
        for (uint32_t i = 0; i < SLOTS; i++) {
            segment[i].slot = (i + 1) % SLOTS;
            segment[i].first_token = rows;
            segment[i].n_tokens = between(1, test_below(2) ? 1 : whole && test_below(2) ? 120 : 20);
            segment[i].first_pos = kind == 3 ? 0 : (int32_t)test_below(far);
            segment[i].kv_len = kind == 2 ? test_below(far)
                                          : (uint32_t)segment[i].first_pos + segment[i].n_tokens;
            rows += segment[i].n_tokens;
        }
        while (step.n_single_token < SLOTS && segment[step.n_single_token].n_tokens == 1)
            step.n_single_token++;
        step.n_single_token = test_below(step.n_single_token + 1);
        a.q = fixture_tensor(&r, r.act, rows, n_heads * d, n_heads * d + test_below(pad), 1);
        a.out = fixture_output(&r, rows, n_heads * d, n_heads * d + test_below(pad));
        if (kind == 3) { /* encoder: keys are rows */
            own_keys(&r, &a, rows, pad);
        } else {
            a.kv = p.view;
            stores = kind < 2 && test_below(2);
            if (stores) own_keys(&r, &a, rows, pad);
        }
        sinks = fixture_tensor(&r, DT_F32, 1, n_heads, n_heads, 1).data;
        a.bias_reach = between(1, 150);
        bias =
            fixture_tensor(&r, DT_F32, n_heads, 2 * a.bias_reach + 1, 2 * a.bias_reach + 1, 1).data;
        if (test_below(3) == 0) a.window = between(1, 150);
        if (a.window && kind != 3 && test_below(2)) a.kept = between(1, 150);
        if (test_below(3) == 0) a.softcap = 2;
        if (test_below(3) == 0) a.sinks = sinks;
        if (test_below(3) == 0) a.bias = bias;
        for (uint32_t i = 0; kind != 3 && i < SLOTS; i++)
            fixture_fill_kv(&p, segment[i].slot, 0,
                            stores ? (uint32_t)segment[i].first_pos : segment[i].kv_len);
        if (kind < 2 && !a.window && test_below(3) == 0) {
            for (uint32_t i = 0; i < SLOTS; i++) assert_true(segment[i].n_tokens <= 120);
            if (MAX(MAX(segment[0].n_tokens, segment[1].n_tokens),
                    MAX(segment[2].n_tokens, segment[3].n_tokens)) <= 32)
                some_mask(&r, &a, segment, SLOTS, rows);
        }
        pos = fixture_bytes(&r, rows * sizeof *pos);
        slot = fixture_bytes(&r, rows * sizeof *slot);
        for (uint32_t i = 0; i < SLOTS; i++)
            for (uint32_t j = 0; j < segment[i].n_tokens; j++) {
                HOST(pos)[segment[i].first_token + j] = segment[i].first_pos + (int32_t)j;
                HOST(slot)[segment[i].first_token + j] = segment[i].slot;
            }
        step.n_tokens = rows;
        memcpy(all, segment, sizeof segment);
        if (test_below(2))
            step.n_segments = with_empty_runs(segment, SLOTS, all, &step.n_single_token);
        step.segment = fixture_copy(&r, all, sizeof all);
        step.pos = pos;
        step.slot = slot;
        again = fixture_twice(&r, a.out);
        if (test_below(2))
            settle(&r, &a, &step);
        else
            fixture_send(&r);
        attend_twice(&r, &a, again, step);
        for (uint32_t i = 0; i < SLOTS; i++)
            for (uint32_t l = 0; l < (whole ? 4 : 30); l++) {
                uint32_t row = segment[i].first_token + test_below(segment[i].n_tokens);
                uint32_t head = test_below(n_heads), e = test_below(d);
                double size, want = ref_attend(&a, &segment[i], row, head, e, &size);

                near_steps(at(a.out, row, head * d + e), want, 8, r.act, size);
                if (stores) check_stored(&a, &segment[i], row, e);
            }
        fixture_close(&r);
    }
}

/* A device divides keys by the number of sequences and their lengths. */
static void
decode_sees_all_keys_with_any_number_of_sequences(void **state)
{
    enum { MOST = 90 };
    static const uint32_t count[] = { 1, 1, 2, 5, 17, MOST };

    (void)state;
    for (uint32_t n = 0; n < 3 * ARRAY_LEN(count); n++) {
        uint32_t seqs = count[n % ARRAY_LEN(count)], far = 4000 / seqs + 20;
        uint32_t n_kv = between(1, 3), n_heads = n_kv * between(1, 10);
        uint32_t d = fixture_cuda() ? 64u << test_below(4) : 12, width = n_heads * d;
        struct segment segment[MOST] = { { 0 } };
        struct fixture r;
        struct paged p;
        struct attend a = { .n_heads = n_heads, .n_kv_heads = n_kv, .head_dim = d, .scale = 0.2f };
        struct step_tokens step = { .n_tokens = seqs, .n_segments = seqs, .n_single_token = seqs };
        struct tensor again;
        bool stores;
        float *sinks, *bias;
        int32_t *pos;
        uint32_t *slot;

        open_any(&r);
        fixture_paged(&r, &p, some_kv(&r), seqs, far, 16u << test_below(3), n_kv, d);
        a.kv = p.view;
        a.causal = test_below(2);
        stores = a.causal && test_below(2);
        if (stores) own_keys(&r, &a, seqs, 1);
        a.q = fixture_tensor(&r, r.act, seqs, width, width, 1);
        a.out = fixture_output(&r, seqs, width, width);
        sinks = fixture_tensor(&r, DT_F32, 1, n_heads, n_heads, 1).data;
        a.bias_reach = between(1, 150);
        bias =
            fixture_tensor(&r, DT_F32, n_heads, 2 * a.bias_reach + 1, 2 * a.bias_reach + 1, 1).data;
        if (test_below(3) == 0) a.window = between(1, 150);
        if (a.window && test_below(2)) a.kept = between(1, 700);
        if (test_below(3) == 0) a.softcap = 2;
        if (test_below(3) == 0) a.sinks = sinks;
        if (test_below(3) == 0) a.bias = bias;
        pos = fixture_bytes(&r, seqs * sizeof *pos);
        slot = fixture_bytes(&r, seqs * sizeof *slot);
        for (uint32_t i = 0; i < seqs; i++) {
            uint32_t keys = test_below(4) ? between(1, far) : between(1, 40);

            segment[i] = (struct segment){ i, i, 1, (int32_t)keys - 1, keys };
            if (!a.causal && test_below(4) == 0) segment[i].kv_len = keys = 0;
            fixture_fill_kv(&p, i, 0, keys - stores);
            if (i && test_below(8) == 0) segment[i].slot = SLOT_NONE;
            HOST(pos)[i] = segment[i].first_pos;
            HOST(slot)[i] = segment[i].slot;
        }
        step.segment = fixture_copy(&r, segment, seqs * sizeof *segment);
        step.pos = pos;
        step.slot = slot;
        again = fixture_twice(&r, a.out);
        if (test_below(2))
            settle(&r, &a, &step);
        else
            fixture_send(&r);
        attend_twice(&r, &a, again, step);
        for (uint32_t l = 0; l < 60; l++) {
            uint32_t i = test_below(seqs), head = test_below(n_heads), e = test_below(d);
            double size, got = at(a.out, i, head * d + e), want;

            if (segment[i].slot == SLOT_NONE) {
                assert_true(isnan(got)); /* as before */
                continue;
            }
            want = ref_attend(&a, &segment[i], i, head, e, &size);
            near_steps(got, want, 8, r.act, size);
            if (stores) check_stored(&a, &segment[i], i, e);
        }
        fixture_close(&r);
    }
}

/* Beams of many searches, each with its own encoder input; some segments are empty, as in a
 * graph. */
static void
beams_see_all_encoder_keys_with_any_number_of_searches(void **state)
{
    enum { MOST = 70 };
    static const uint32_t count[] = { 1, 2, 5, 17, MOST };

    (void)state;
    for (uint32_t n = 0; n < 3 * ARRAY_LEN(count); n++) {
        uint32_t seqs = count[n % ARRAY_LEN(count)], far = 3000 / seqs + 20, rows = 0;
        uint32_t group = test_below(4) ? 1 : 2, n_kv = between(1, 3), n_heads = n_kv * group;
        uint32_t d = fixture_cuda() ? 64u << test_below(2) : 12, width = n_heads * d;
        struct segment segment[MOST] = { { 0 } };
        struct fixture r;
        struct paged p;
        struct attend a = { .n_heads = n_heads, .n_kv_heads = n_kv, .head_dim = d, .scale = 0.2f };
        struct step_tokens step = { .n_segments = seqs, .longest = 8 };
        float *sinks;
        int32_t *pos;
        uint32_t *slot;

        for (uint32_t i = 0; i < seqs; i++) {
            uint32_t keys = test_below(4) ? between(1, far) : test_below(40);

            segment[i] = (struct segment){ i, rows, i && test_below(8) == 0 ? 0 : between(1, 8), 3,
                                           keys };
            if (segment[i].n_tokens == 0) segment[i].slot = SLOT_NONE;
            rows += segment[i].n_tokens;
        }
        step.n_tokens = rows;
        open_any(&r);
        fixture_paged(&r, &p, some_kv(&r), seqs, far + 40, 16u << test_below(3), n_kv, d);
        a.kv = p.view;
        a.q = fixture_tensor(&r, r.act, rows, width, width + 8, 1);
        a.out = fixture_output(&r, rows, width, width + 8);
        sinks = fixture_tensor(&r, DT_F32, 1, n_heads, n_heads, 1).data;
        if (test_below(3) == 0) a.softcap = 2;
        if (test_below(3) == 0) a.sinks = sinks;
        pos = fixture_bytes(&r, rows * sizeof *pos);
        slot = fixture_bytes(&r, rows * sizeof *slot);
        for (uint32_t i = 0; i < seqs; i++) {
            fixture_fill_kv(&p, i, 0, segment[i].kv_len);
            for (uint32_t j = 0; j < segment[i].n_tokens; j++) {
                HOST(pos)[segment[i].first_token + j] = 3 + (int32_t)j;
                HOST(slot)[segment[i].first_token + j] = i;
            }
        }
        step.segment = fixture_copy(&r, segment, seqs * sizeof *segment);
        step.pos = pos;
        step.slot = slot;
        if (test_below(2))
            settle(&r, &a, &step);
        else
            fixture_send(&r);
        assert_int_equal(r.op->attend(r.lane, &a, step), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < seqs; i++)
            for (uint32_t l = 0; l < 3 * segment[i].n_tokens; l++) {
                uint32_t row = segment[i].first_token + l % segment[i].n_tokens;
                uint32_t head = test_below(n_heads), e = test_below(d);
                double size, want = ref_attend(&a, &segment[i], row, head, e, &size);

                near_steps(at(a.out, row, head * d + e), want, 8, r.act, size);
            }
        fixture_close(&r);
    }
}

/* Two sequences in turn in the same blocks, step by step without reading results; checks the
 * second. */
static void
decode_reads_kv_stored_by_earlier_steps(void **state)
{
    enum { MOST = 3, STEPS = 70, ALL = 2 * STEPS };

    (void)state;
    for (int n = 0; n < fixture_rounds(6); n++) {
        uint32_t seqs = between(1, MOST), n_kv = between(1, 3), n_heads = n_kv * between(1, 3);
        uint32_t d = fixture_cuda() ? 64u << test_below(2) : 12, width = n_heads * d;
        struct segment segment[ALL][MOST] = { { { 0 } } };
        struct attend a[ALL];
        struct step_tokens step[ALL];
        struct tensor q, k, v, out;
        struct fixture r;
        struct paged p;

        open_any(&r);
        fixture_paged(&r, &p, test_below(4) ? r.act : some_kv(&r), seqs, STEPS,
                      16u << test_below(3), n_kv, d);
        q = fixture_tensor(&r, r.act, ALL * seqs, width, width, 1);
        k = fixture_tensor(&r, r.act, ALL * seqs, n_kv * d, n_kv * d, 1);
        v = fixture_tensor(&r, r.act, ALL * seqs, n_kv * d, n_kv * d, 1);
        out = fixture_output(&r, ALL * seqs, width, width);
        for (uint32_t i = 0; i < ALL; i++) {
            int32_t *pos = fixture_bytes(&r, seqs * sizeof *pos),
                    *token = fixture_copy(&r, &(int32_t[MOST]){ 0 }, sizeof *token * MOST);
            uint32_t *slot = fixture_bytes(&r, seqs * sizeof *slot), at = i % STEPS;

            for (uint32_t s = 0; s < seqs; s++) {
                HOST(pos)[s] = (int32_t)at;
                HOST(slot)[s] = s;
                segment[i][s] = (struct segment){ s, s, 1, (int32_t)at, at + 1 };
            }
            step[i] =
                (struct step_tokens){ .n_tokens = seqs,
                                      .n_segments = seqs,
                                      .n_single_token = seqs,
                                      .token = token,
                                      .pos = pos,
                                      .slot = slot,
                                      .segment = fixture_copy(&r, segment[i], sizeof segment[i]) };
            a[i] = (struct attend){ .out = tensor_rows(out, i * seqs, seqs),
                                    .q = tensor_rows(q, i * seqs, seqs),
                                    .k = tensor_rows(k, i * seqs, seqs),
                                    .v = tensor_rows(v, i * seqs, seqs),
                                    .kv = p.view,
                                    .inputs_ready = true,
                                    .n_heads = n_heads,
                                    .n_kv_heads = n_kv,
                                    .head_dim = d,
                                    .causal = true,
                                    .scale = 0.2f };
        }
        fixture_send(&r);
        for (uint32_t i = 0; i < ALL; i++) {
            assert_int_equal(r.op->step.resolve_tokens(r.lane, step[i], step[i].token), 0);
            assert_int_equal(r.op->attend(r.lane, &a[i], step[i]), 0);
        }
        fixture_wait(&r);
        for (uint32_t l = 0; l < 200; l++) {
            uint32_t i = STEPS + test_below(STEPS), s = test_below(seqs),
                     head = test_below(n_heads);
            uint32_t e = test_below(d);
            double size, want = ref_attend(&a[i], &segment[i][s], s, head, e, &size);

            near_steps(at(a[i].out, s, head * d + e), want, 8, r.act, size);
            check_stored(&a[i], &segment[i][s], s, e);
        }
        fixture_close(&r);
    }
}

/* Compares a GPU's conversions with fp.h: all 256 codes, the midpoint to the next code, slightly
 * less and more, and values without a code. */
static void
every_fp8_value_is_stored_and_read_as_in_fp_h(void **state)
{
    enum { CODES = 256, ROWS = 6 };
    static const float others[] = { INFINITY, -INFINITY, 449, -464, 465, 1e30f, -1e-30f, 0x1p-10f };

    (void)state;
    for (int round = 0; round < 3; round++) {
        struct segment segment[ROWS];
        struct fixture r;
        struct paged p;
        struct tensor q, k, v;
        struct attend a = {
            .n_heads = 1, .n_kv_heads = 1, .head_dim = CODES, .scale = 1, .causal = true
        };
        struct rope_store s = { .n_heads = 1, .n_kv_heads = 1, .head_dim = CODES };
        struct step_tokens step = { .n_tokens = ROWS, .n_segments = ROWS, .n_single_token = ROWS };
        int32_t *pos;
        uint32_t *slot;

        open_any(&r);
        fixture_paged(&r, &p, DT_E4M3, ROWS, 1, 16, 1, CODES);
        q = fixture_tensor(&r, r.act, ROWS, CODES, CODES, 0);
        k = fixture_tensor(&r, r.act, ROWS, CODES, CODES, 1);
        v = fixture_tensor(&r, r.act, ROWS, CODES, CODES, 1);
        pos = fixture_bytes(&r, ROWS * sizeof *pos);
        slot = fixture_bytes(&r, ROWS * sizeof *slot);
        for (uint32_t i = 0; i < ROWS; i++) {
            HOST(pos)[i] = 0;
            HOST(slot)[i] = i;
            segment[i] = (struct segment){ i, i, 1, 0, 1 };
        }
        for (uint32_t b = 0; b < CODES; b++) {
            float f = float_of_e4m3((uint8_t)b),
                  next = float_of_e4m3((uint8_t)(b % 128 == 127 ? b : b + 1));
            float middle = f + (next - f) / 2;

            set(k, 0, b, f);
            set(k, 1, b, middle);
            set(k, 2, b, middle * (1 - 0x1p-7f));
            set(k, 3, b, middle * (1 + 0x1p-7f));
            set(k, 4, b, others[b % ARRAY_LEN(others)]);
            for (uint32_t i = 0; i < ROWS; i++) set(v, i, b, isnan(f) ? 0 : f);
        }
        s.k = k, s.v = v, s.kv = p.view;
        a.q = q, a.kv = p.view, a.out = fixture_output(&r, ROWS, CODES, CODES);
        step.pos = pos, step.slot = slot, step.segment = fixture_copy(&r, segment, sizeof segment);
        fixture_send(&r);
        assert_int_equal(r.op->rope_store(r.lane, &s, step), 0);
        assert_int_equal(r.op->attend(r.lane, &a, step), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t e = 0; e < CODES; e++) {
                float x = (float)at(k, i, e), want = float_of_e4m3(e4m3_of_float(x));
                float got = (float)ref_kv(&p.view, 0, i, 0, 0, e);

                if (bits_of_float(got) != bits_of_float(want) && !(isnan(got) && isnan(want)))
                    fail_msg("%.9g is kept as %.9g, not %.9g", (double)x, (double)got,
                             (double)want);
            }
        /* one key, which is a number: the result is its value */
        for (uint32_t e = 0; e < CODES; e++) assert_true(at(a.out, 5, e) == at(v, 5, e));
        fixture_close(&r);
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(rope_store_normalizes_rotates_and_stores),
        fixture_test(attend_is_softmax_over_the_visible_keys),
        fixture_test(decode_reads_kv_stored_by_earlier_steps),
        fixture_test(decode_sees_all_keys_with_any_number_of_sequences),
        fixture_test(beams_see_all_encoder_keys_with_any_number_of_searches),
        fixture_test(every_fp8_value_is_stored_and_read_as_in_fp_h),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
