/* test_whole.c - bits of a row at the shapes of whole models, on a GPU in invariant mode.
 *
 * test_bits has every op at shapes that a CPU can check; at thousands of rows and columns a library
 * may choose other kernels. Data stays on the device: operands are filled there; the same rows are
 * computed in one piece, in chunks, in a batch and alone, and checksums compare the bits.
 */
#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include <stdio.h>

enum { ROWS = 3001 };
static const uint32_t chunk[] = { 2048, 1000, 257, 256, 129, 128, 100, 64, 33, 17, 16, 8, 5, 1 };

struct shape {
    const char *name;
    uint32_t out, k;
};

static struct tensor
filled(struct fixture *r, enum dtype t, uint32_t rows, uint32_t cols, uint64_t seed, float std)
{
    struct tensor x = fixture_device(r, t, rows, cols);

    assert_int_equal(r->op->mem.fill_random(r->lane, x, seed, 0, 0, std), 0);
    return x;
}

/* The rows [first, first + n) of y, as one number. */
static uint64_t
sum_of(struct fixture *r, uint64_t *sum, struct tensor y, uint32_t first, uint32_t n)
{
    struct tensor t = tensor_rows(y, first, n);
    size_t bytes = dtype_bytes(y.dtype, (size_t)n * y.stride);

    assert_int_equal(r->op->mem.checksum(r->lane, sum, t.data, bytes), 0);
    fixture_wait(r);
    return HOST(sum)[0];
}

typedef void (*on_rows)(struct fixture *r, const struct tensor *in, struct tensor y, uint32_t first,
                        uint32_t n);

/* in[0]'s rows, all at once, then chunk by chunk; of the smallest chunks the first few and one
 * that starts in the middle. */
static void
same_in_chunks(struct fixture *r, const char *what, on_rows op, const struct tensor *in,
               struct tensor want, struct tensor got)
{
    uint64_t *sum = fixture_bytes(r, sizeof *sum);

    op(r, in, want, 0, ROWS);
    for (size_t c = 0; c < ARRAY_LEN(chunk); c++) {
        uint32_t most = MIN(CEIL_DIV((uint32_t)ROWS, chunk[c]), 6u), step = chunk[c];

        for (uint32_t i = 0; i < most; i++) {
            uint32_t first = i * step, n = MIN(step, ROWS - first);

            if (i == 5) first = ROWS - n;
            op(r, in, got, first, n);
            if (sum_of(r, sum, got, first, n) == sum_of(r, sum, want, first, n)) continue;
            fail_msg("%s, %s: %u rows from %u on differ from the same among %u", what,
                     dtype_name(r->act), n, first, ROWS);
        }
    }
}

static void
do_matmul(struct fixture *r, const struct tensor *in, struct tensor y, uint32_t first, uint32_t n)
{
    assert_int_equal(r->op->matmul(r->lane, tensor_rows(y, first, n), tensor_rows(in[0], first, n),
                                   in[1], NO_TENSOR, 0),
                     0);
}

static void
do_gate_matmul(struct fixture *r, const struct tensor *in, struct tensor y, uint32_t first,
               uint32_t n)
{
    assert_int_equal(r->op->gate_matmul(r->lane, tensor_rows(y, first, n),
                                        tensor_rows(in[2], first, n), tensor_rows(in[0], first, n),
                                        in[1], ACT_SILU),
                     0);
}

static void
do_act_matmul(struct fixture *r, const struct tensor *in, struct tensor y, uint32_t first,
              uint32_t n)
{
    assert_int_equal(r->op->act_matmul(r->lane, tensor_rows(y, first, n),
                                       tensor_rows(in[0], first, n), in[1], NO_TENSOR, ACT_RELU),
                     0);
}

static void
matmul_bits_at_model_shapes_ignore_chunks(void **state)
{
    static const struct shape shape[] = {
        { "8B qkv", 6144, 4096 },    { "8B out", 4096, 4096 },   { "8B down", 4096, 14336 },
        { "T5 qkv", 3072, 1024 },    { "T5 out", 1024, 1024 },   { "T5 up", 4096, 1024 },
        { "T5 down", 1024, 4096 },   { "T5 cross", 2048, 1024 }, { "T5 head", 32128, 1024 },
        { "27B qkv", 8192, 5376 },   { "27B out", 5376, 4096 },  { "27B down", 5376, 21504 },
        { "8B head", 128256, 4096 },
    };

    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(shape); s++) {
        struct fixture r;
        struct tensor in[2];
        bool head = shape[s].out > 30000;

        fixture_open(&r, NULL, 0);
        in[0] = filled(&r, r.act, ROWS, shape[s].k, 1, 1);
        in[1] = filled(&r, r.act, shape[s].out, shape[s].k, 2, 0.02f);
        for (int fp32 = head; fp32 < 2; fp32++) {
            enum dtype t = fp32 ? DT_F32 : r.act;

            same_in_chunks(&r, shape[s].name, do_matmul, in,
                           fixture_device(&r, t, ROWS, shape[s].out),
                           fixture_device(&r, t, ROWS, shape[s].out));
            if (r.act == DT_F32) break;
        }
        fixture_close(&r);
    }
}

static void
matmuls_with_activations_of_whole_models_give_a_row_the_same_bits_in_any_chunk(void **state)
{
    static const struct shape shape[] = { { "8B gate", 14336, 4096 }, { "27B gate", 21504, 5376 } };

    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(shape); s++) {
        struct fixture r;
        struct tensor in[3];

        fixture_open(&r, NULL, 0);
        in[0] = filled(&r, r.act, ROWS, shape[s].k, 1, 1);
        in[1] = filled(&r, r.act, 2 * shape[s].out, shape[s].k, 2, 0.02f);
        in[2] = fixture_device(&r, r.act, ROWS, 2 * shape[s].out);
        same_in_chunks(&r, shape[s].name, do_gate_matmul, in,
                       fixture_device(&r, r.act, ROWS, shape[s].out),
                       fixture_device(&r, r.act, ROWS, shape[s].out));
        in[1].dim[0] = shape[s].out;
        same_in_chunks(&r, shape[s].name, do_act_matmul, in,
                       fixture_device(&r, r.act, ROWS, shape[s].out),
                       fixture_device(&r, r.act, ROWS, shape[s].out));
        fixture_close(&r);
    }
}

/* y: the changed x in fp32, then its norm, in the space of an fp32 row. */
static void
do_residual(struct fixture *r, const struct tensor *in, struct tensor y, uint32_t first, uint32_t n)
{
    uint32_t d = in[0].dim[1];
    struct tensor x = tensor_cols(tensor_rows(y, first, n), 0, d);
    struct residual a = { .x = x,
                          .in = tensor_rows(in[0], first, n),
                          .in_norm = in[3].data ? in[2] : NO_TENSOR,
                          .y = tensor_cols(tensor_rows(y, first, n), d, d),
                          .y_norm = in[2],
                          .eps = 1e-5f };

    a.y.dtype = r->act;
    a.y.stride *= (uint32_t)(4 / dtype_bytes(r->act, 1));
    assert_int_equal(r->op->mem.copy(r->lane, tensor_rows(y, first, n).data,
                                     tensor_rows(in[1], first, n).data, (size_t)n * y.stride * 4),
                     0);
    assert_int_equal(r->op->residual(r->lane, &a), 0);
}

static void
do_rms(struct fixture *r, const struct tensor *in, struct tensor y, uint32_t first, uint32_t n)
{
    assert_int_equal(r->op->rms_norm(r->lane, tensor_rows(y, first, n),
                                     tensor_rows(in[1], first, n), in[2], 1e-5f, 1),
                     0);
}

static void
norm_bits_at_model_shapes_ignore_chunks(void **state)
{
    static const uint32_t width[] = { 1024, 4096, 5376 };

    (void)state;
    for (size_t w = 0; w < ARRAY_LEN(width); w++)
        for (int norm = 0; norm < 2; norm++) {
            uint32_t d = width[w];
            struct fixture r;
            struct tensor in[4] = { 0 };
            char name[32];

            fixture_open(&r, NULL, 0);
            in[0] = filled(&r, r.act, ROWS, d, 1, 1);
            in[1] = filled(&r, DT_F32, ROWS, 2 * d, 2, 3);
            in[2] = filled(&r, r.act, 1, d, 3, 1);
            if (norm) in[3] = in[2];
            snprintf(name, sizeof name, "residual of %u", d);
            same_in_chunks(&r, name, do_residual, in, fixture_device(&r, DT_F32, ROWS, 2 * d),
                           fixture_device(&r, DT_F32, ROWS, 2 * d));
            in[1] = filled(&r, DT_F32, ROWS, d, 2, 3);
            snprintf(name, sizeof name, "rms_norm of %u", d);
            same_in_chunks(&r, name, do_rms, in, fixture_device(&r, r.act, ROWS, d),
                           fixture_device(&r, r.act, ROWS, d));
            fixture_close(&r);
        }
}

/* Log-probabilities of a row among 64, and among fewer. */
static void
sampling_bits_at_full_vocabularies_ignore_the_batch(void **state)
{
    static const uint32_t vocab[] = { 32128, 128256, 262208 }, batch[] = { 1, 2, 9, 33, 64 };
    enum { N = 64, TOPS = 8 };

    (void)state;
    for (size_t v = 0; v < ARRAY_LEN(vocab); v++) {
        struct sample_row row[N];
        struct fixture r;
        struct tensor logits, copy;
        struct sample_row *rows;
        struct top *top, want[N][TOPS];
        int32_t *token, wanted[N];
        float *logprob, wanted_logprob[N];

        fixture_open(&r, NULL, 0);
        for (uint32_t i = 0; i < N; i++)
            row[i] = (struct sample_row){ .slot = SLOT_NONE,
                                          .top_p = i % 3 ? 1 : 0.9f,
                                          .temperature = i % 4 ? 0 : 1,
                                          .repetition = 1,
                                          .force = -1,
                                          .target = -1,
                                          .n_top = TOPS,
                                          .first_top = TOPS * i,
                                          .seed = i,
                                          .want_logprob = true };
        logits = filled(&r, DT_F32, N, vocab[v], 1, 3);
        copy = fixture_device(&r, DT_F32, N, vocab[v]);
        rows = fixture_copy(&r, row, sizeof row);
        token = fixture_bytes(&r, N * sizeof *token);
        logprob = fixture_bytes(&r, N * sizeof *logprob);
        top = fixture_bytes(&r, N * TOPS * sizeof *top);
        fixture_send(&r);
        for (size_t c = ARRAY_LEN(batch); c-- > 0;)
            for (uint32_t first = 0; first < N; first += batch[c]) {
                uint32_t n = MIN(batch[c], N - first);
                struct sample s = { .logits = tensor_rows(copy, first, n),
                                    .row = rows + first,
                                    .n = n,
                                    .token = token + first,
                                    .logprob = logprob + first,
                                    .top = top };

                assert_int_equal(r.op->mem.copy(r.lane, s.logits.data,
                                                tensor_rows(logits, first, n).data,
                                                (size_t)n * vocab[v] * 4),
                                 0);
                assert_int_equal(r.op->sample(r.lane, &s), 0);
                fixture_wait(&r);
                if (c == ARRAY_LEN(batch) - 1) {
                    memcpy(want, HOST(top), sizeof want);
                    memcpy(wanted, HOST(token), sizeof wanted);
                    memcpy(wanted_logprob, HOST(logprob), sizeof wanted_logprob);
                }
                if (memcmp(want[first], HOST(top) + TOPS * first, n * sizeof want[0]) ||
                    memcmp(wanted + first, HOST(token) + first, n * sizeof *token) ||
                    memcmp(wanted_logprob + first, HOST(logprob) + first, n * sizeof *logprob))
                    fail_msg("vocabulary of %u: rows %u .. %u alone differ from the same among %d",
                             vocab[v], first, first + n, N);
            }
        fixture_close(&r);
    }
}

/* ---- attention: rows of one sequence, the prompt in chunks or row by row, in a batch or alone
 * ---- */

struct heads {
    const char *name;
    uint32_t heads, kv_heads, dim, window;
    bool bias;
};

static struct heads now; /* the case */

/* Tables are sized for the model's longest sequence. */
static void
widen(struct fixture *r, struct paged *p, uint32_t entries)
{
    slice_id *table = fixture_bytes(r,
                                    (size_t)p->n_slots * entries * sizeof *table); /* SLICE_NONE */

    for (uint32_t i = 0; i < p->n_slots; i++)
        memcpy(HOST(table) + (size_t)i * entries, HOST(p->table) + (size_t)i * p->n_entries,
               p->n_entries * sizeof *table);
    p->table = table;
    p->n_entries = entries;
    p->view.table = table;
    p->view.table_stride = entries;
}

/* Rows [first, first + n) of the sequence in slot 0; others: number of other slots, each with one
 * row at its end, before or after. */
static void
attend_rows(struct fixture *r, const struct tensor *in, struct kv_view kv, const uint32_t *which,
            struct tensor y, uint32_t first, uint32_t n, uint32_t others, bool before)
{
    uint32_t cols = now.heads * now.dim, rows = n + others, single = n == 1 || before ? others : 0;
    /* q is the first columns of q, k and v, as in models. */
    struct tensor qkv = fixture_device(r, r->act, rows, cols + 2 * now.kv_heads * now.dim);
    struct tensor q = tensor_cols(qkv, 0, cols), out = fixture_device(r, r->act, rows, cols);
    struct segment segment[64] = { { 0 } }, *segments;
    int32_t *pos = fixture_bytes(r, rows * sizeof *pos);
    uint32_t *slot = fixture_bytes(r, rows * sizeof *slot), at_row = before ? others : 0;
    struct attend a = { .out = out,
                        .q = q,
                        .kv = kv,
                        .n_heads = now.heads,
                        .n_kv_heads = now.kv_heads,
                        .head_dim = now.dim,
                        .window = now.window,
                        .causal = true,
                        .scale = now.bias ? 1 : 0.09f,
                        .bias = now.bias ? in[2].data : NULL,
                        .bias_reach = 127 };
    struct step_tokens step = {
        .n_tokens = rows, .n_segments = others + 1, .pos = pos, .slot = slot
    };

    for (uint32_t i = 0; i <= others; i++) {
        bool mine = before ? i == others : i == 0;
        struct segment *it = &segment[i];

        it->slot = mine ? 0 : before ? i + 1 : i;
        it->first_token = mine ? at_row : before ? i : n + i - 1;
        it->n_tokens = mine ? n : 1;
        it->first_pos = mine ? (int32_t)first : (int32_t)(700 + 31 * it->slot);
        it->kv_len = (uint32_t)it->first_pos + it->n_tokens;
        for (uint32_t j = 0; j < it->n_tokens; j++) {
            HOST(pos)[it->first_token + j] = it->first_pos + (int32_t)j;
            HOST(slot)[it->first_token + j] = it->slot;
        }
    }
    if (n == 1) single = others + 1;
    step.n_single_token = single;
    step.segment = segments = fixture_copy(r, segment, (others + 1) * sizeof *segment);
    (void)segments;
    fixture_send(r);
    assert_int_equal(r->op->gather_rows(r->lane, q, in[1], which), 0);
    assert_int_equal(r->op->gather_rows(r->lane, tensor_rows(q, at_row, n), in[0], which + first),
                     0);
    assert_int_equal(r->op->attend(r->lane, &a, step), 0);
    assert_int_equal(r->op->mem.copy(r->lane, tensor_rows(y, first, n).data,
                                     tensor_rows(out, at_row, n).data,
                                     dtype_bytes(r->act, (size_t)n * cols)),
                     0);
}

static void
attention_bits_at_model_shapes_ignore_chunks_and_batch(void **state)
{
    static const struct heads heads[] = {
        { "8B", 32, 8, 128, 0, false },        { "T5", 16, 16, 64, 0, true },
        { "27B full", 32, 16, 128, 0, false }, { "27B window", 32, 16, 128, 1024, false },
        { "256 wide", 8, 4, 256, 0, false },
    };
    enum { SLOTS = 40, TPB = 64, MODEL_LENGTH = 131072 };

    (void)state;
    for (size_t h = 0; h < ARRAY_LEN(heads); h++)
        for (size_t c = 0; c < ARRAY_LEN(chunk); c++) {
            struct fixture r;
            struct paged p;
            struct tensor in[3], want, got;
            uint64_t *sum;
            uint32_t *which;
            uint32_t cols, step = chunk[c], most = MIN(CEIL_DIV((uint32_t)ROWS, step), 8u);

            fixture_open(&r, NULL, 0);
            now = heads[h];
            cols = now.heads * now.dim;
            fixture_paged_device(&r, &p, r.act, SLOTS, ROWS, TPB, now.kv_heads, now.dim);
            assert_int_equal(r.op->mem.fill_random(
                                 r.lane,
                                 tensor_2d(p.view.base, r.act, 2 * SLOTS * CEIL_DIV(ROWS, TPB),
                                           p.view.slice_bytes / (uint32_t)dtype_bytes(r.act, 1)),
                                 5, 0, 0, 1),
                             0);
            widen(&r, &p, MODEL_LENGTH / TPB);
            which = fixture_bytes(&r, (ROWS + SLOTS) * sizeof *which);
            for (uint32_t i = 0; i < ROWS + SLOTS; i++) HOST(which)[i] = i;
            in[0] = filled(&r, r.act, ROWS, cols, 1, 1);
            in[1] = filled(&r, r.act, ROWS + SLOTS, cols, 3, 1);
            in[2] = filled(&r, DT_F32, now.heads, 255, 4, 1);
            want = fixture_device(&r, r.act, ROWS, cols);
            got = fixture_device(&r, r.act, ROWS, cols);
            sum = fixture_bytes(&r, sizeof *sum);
            attend_rows(&r, in, p.view, which, want, 0, ROWS, 0, false);
            for (uint32_t i = 0; i < most; i++) {
                uint32_t first = i == most - 1 ? ROWS - MIN(step, (uint32_t)ROWS) : i * step;
                uint32_t n = MIN(step, ROWS - first), others = i % 3 * 15;

                attend_rows(&r, in, p.view, which, got, first, n, others, i % 2);
                if (sum_of(&r, sum, got, first, n) == sum_of(&r, sum, want, first, n)) continue;
                fail_msg("%s, %s: %u rows from %u on, %u others %s, differ from the same among %u",
                         now.name, dtype_name(r.act), n, first, others, i % 2 ? "before" : "behind",
                         ROWS);
            }
            fixture_close(&r);
        }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(matmul_bits_at_model_shapes_ignore_chunks),
        fixture_test(
            matmuls_with_activations_of_whole_models_give_a_row_the_same_bits_in_any_chunk),
        fixture_test(norm_bits_at_model_shapes_ignore_chunks),
        fixture_test(sampling_bits_at_full_vocabularies_ignore_the_batch),
        fixture_test(attention_bits_at_model_shapes_ignore_chunks_and_batch),
    };

    fixture_args(argc, argv);
    if (!fixture_cuda()) return 77; /* gigabytes of operands */
    fixture_invariant();
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
