/* test_bits.c - the contract of every op on the CPU device (gpu.h): a row's result depends on that row
 * and its own history alone, bit for bit; scalar and AVX2 agree; threads and lanes do not show.
 */
#include "tests/gpu/rig.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

/* How the same work is done: with which instruction set, threads, and all rows at once or one by one. */
struct manner {
    const char *isa;
    uint32_t threads;
    bool one_by_one;
};
static const struct manner manner[] = {
    { "scalar", 1, false }, { "auto", 1, false }, { "auto", 2, false },
    { "auto", 3, false },   { "auto", 4, true },  { "scalar", 2, true },
};

/* An op under test: queue rows [first, first + n) of it. */
typedef void (*op_on_rows)(struct rig *r, const struct tensor *in, struct tensor out,
                           uint32_t first, uint32_t n);

/* The same bits in every manner, first manner first. in[] are read only. */
static void
same_in_every_manner(const char *name, op_on_rows op, const struct tensor *in, uint32_t rows,
                     uint32_t cols)
{
    struct tensor want = NO_TENSOR;
    struct rig keep;

    rig_open(&keep, "scalar", 1);
    for (size_t m = 0; m < ARRAY_LEN(manner); m++) {
        struct rig r;
        struct tensor out;
        uint32_t step = manner[m].one_by_one ? 1 : rows;

        rig_open(&r, manner[m].isa, manner[m].threads);
        out = rig_output(&keep, rows, cols, cols + (uint32_t)m);
        for (uint32_t i = 0; i < rows; i += step) op(&r, in, out, i, step);
        rig_wait(&r);
        rig_close(&r);
        if (m == 0) {
            want = out;
        } else if (!same_bits(want, out)) {
            fail_msg("%s: %s with %u threads%s differs from scalar with one", name, manner[m].isa,
                     manner[m].threads, manner[m].one_by_one ? ", row by row," : "");
        }
    }
    rig_close(&keep);
}

static void
do_matmul(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(r->op->matmul(r->lane, tensor_rows(out, first, n),
                                   tensor_rows(in[0], first, n), in[1], in[2], 0),
                     0);
}

static void
matmul_gives_a_row_the_same_bits_in_any_batch(void **state)
{
    static const enum dtype type[] = { DT_F32, DT_BF16, DT_F16 };

    (void)state;
    for (int n = 0; n < 24; n++) {
        uint32_t rows = 1 + test_below(20), k = 1 + test_below(n % 2 ? 40 : 700);
        uint32_t out = 1 + test_below(150);
        enum dtype t = type[n % 3];
        struct rig r;

        rig_open(&r, "scalar", 1);
        same_in_every_manner("matmul", do_matmul,
                             (struct tensor[]){ rig_tensor(&r, DT_F32, rows, k, k + 3, 1),
                                                rig_tensor(&r, t, out, k, k + test_below(9), 1),
                                                rig_tensor(&r, t, 1, out, out, 1) },
                             rows, out);
        rig_close(&r);
    }
}

static void
do_rms(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(r->op->rms_norm(r->lane, tensor_rows(out, first, n),
                                     tensor_rows(in[0], first, n), in[1], 1e-6f, 1),
                     0);
}

static void
do_layer(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(r->op->layer_norm(r->lane, tensor_rows(out, first, n),
                                       tensor_rows(in[0], first, n), in[1], in[2], 1e-5f),
                     0);
}

static void
norms_give_a_row_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    for (uint32_t d = 1; d < 200; d += 1 + test_below(30)) {
        struct rig r;
        struct tensor in[3];

        rig_open(&r, "scalar", 1);
        in[0] = rig_tensor(&r, DT_F32, 300, d, d, 5);
        in[1] = rig_tensor(&r, DT_BF16, 1, d, d, 1);
        in[2] = rig_tensor(&r, DT_F32, 1, d, d, 1);
        same_in_every_manner("rms_norm", do_rms, in, 300, d);
        same_in_every_manner("layer_norm", do_layer, in, 300, d);
        rig_close(&r);
    }
}

static enum act which_act;

static void
do_act(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(
        r->op->act(r->lane, tensor_rows(out, first, n), tensor_rows(in[0], first, n), which_act),
        0);
}

static void
do_gate(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(
        r->op->gate(r->lane, tensor_rows(out, first, n), tensor_rows(in[0], first, n), which_act),
        0);
}

/* scale and add work in place: they start from a copy. */
static void
do_scale(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    static const uint32_t place[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    struct tensor y = tensor_rows(out, first, n);

    assert_true(n <= 8);
    assert_int_equal(r->op->rows(r->lane, y, tensor_rows(in[0], first, n), place), 0);
    assert_int_equal(r->op->scale(r->lane, y, 1.7f, 30), 0);
    assert_int_equal(r->op->add(r->lane, y, tensor_rows(in[0], first, n)), 0);
}

/* A sweep over float patterns of every size and sign, specials included. */
static void
activations_have_the_same_bits_scalar_and_avx2_over_all_magnitudes(void **state)
{
    enum { COLS = 1 << 15 };
    struct rig r;
    struct tensor x, pair;

    (void)state;
    rig_open(&r, "scalar", 1);
    x = rig_output(&r, 8, COLS, COLS);
    for (uint32_t i = 0; i < 8 * COLS; i++) {
        uint32_t u = i * 16411u; /* odd: every high pattern comes by */

        memcpy((float *)x.data + i, &u, 4);
    }
    pair = rig_tensor(&r, DT_F32, 40, 2 * 333, 700, 3);
    for (which_act = ACT_RELU; which_act <= ACT_GELU_TANH; which_act++) {
        same_in_every_manner("act", do_act, &x, 8, COLS);
        same_in_every_manner("gate", do_gate, &pair, 40, 333);
    }
    same_in_every_manner("scale", do_scale, &x, 8, COLS);
    rig_close(&r);
}

/* ---- two ops in one: the bits of the ops one by one ---- */

static const uint32_t in_order[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
static bool fused; /* one op, or what it stands for */
static bool with_norm;

/* out: x as it became, then y beside it. in: x, what is added, the norms of both. */
static void
do_residual(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    uint32_t d = in[0].dim[1];
    struct tensor x = tensor_cols(tensor_rows(out, first, n), 0, d);
    struct tensor y = tensor_cols(tensor_rows(out, first, n), d, d);
    struct residual a = { .x = x,
                          .in = tensor_rows(in[1], first, n),
                          .in_norm = with_norm ? in[2] : NO_TENSOR,
                          .y = y,
                          .y_norm = in[3],
                          .eps = 1e-6f,
                          .plus = 1 };

    assert_int_equal(r->op->rows(r->lane, x, tensor_rows(in[0], first, n), in_order), 0);
    if (fused) {
        assert_int_equal(r->op->residual(r->lane, &a), 0);
        return;
    }
    if (with_norm) assert_int_equal(r->op->rms_norm(r->lane, y, a.in, in[2], 1e-6f, 1), 0);
    assert_int_equal(r->op->add(r->lane, x, with_norm ? y : a.in), 0);
    assert_int_equal(r->op->rms_norm(r->lane, y, x, in[3], 1e-6f, 1), 0);
}

static void
do_gate_matmul(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first,
               uint32_t n)
{
    uint32_t f = out.dim[1];
    struct tensor x = tensor_rows(in[0], first, n), y = tensor_rows(out, first, n);
    struct tensor both = rig_output(r, n, 2 * f, 2 * f);

    if (fused) {
        assert_int_equal(r->op->gate_matmul(r->lane, y, both, x, in[1], which_act), 0);
        return;
    }
    assert_int_equal(r->op->matmul(r->lane, both, x, in[1], NO_TENSOR, 0), 0);
    assert_int_equal(r->op->gate(r->lane, y, both, which_act), 0);
}

/* The same in every manner, and the one op as the several. */
static void
same_fused(const char *name, op_on_rows op, const struct tensor *in, uint32_t rows, uint32_t cols)
{
    struct tensor out[2];
    struct rig r;

    rig_open(&r, "auto", 2);
    for (int i = 0; i < 2; i++) {
        fused = i == 1;
        out[i] = rig_output(&r, rows, cols, cols);
        op(&r, in, out[i], 0, rows);
        rig_wait(&r);
    }
    if (!same_bits(out[0], out[1])) fail_msg("%s differs from the ops one by one", name);
    rig_close(&r);
    same_in_every_manner(name, op, in, rows, cols);
}

static void
fused_ops_have_the_bits_of_the_ops_one_by_one(void **state)
{
    (void)state;
    for (uint32_t d = 1; d < 300; d += 1 + test_below(60)) {
        uint32_t rows = 1 + test_below(9);
        struct rig r;
        struct tensor in[4];

        rig_open(&r, "scalar", 1);
        in[0] = rig_tensor(&r, DT_F32, rows, d, d + 2, 5);
        in[1] = rig_tensor(&r, DT_F32, rows, d, d + test_below(9), 2);
        in[2] = rig_tensor(&r, DT_BF16, 1, d, d, 1);
        in[3] = rig_tensor(&r, DT_F32, 1, d, d, 1);
        with_norm = false;
        same_fused("residual", do_residual, in, rows, 2 * d);
        with_norm = true;
        same_fused("residual of a norm", do_residual, in, rows, 2 * d);
        in[1] = rig_tensor(&r, d % 2 ? DT_BF16 : DT_F32, 2 * (d + 3), d, d, 1);
        which_act = d % 2 ? ACT_SILU : ACT_GELU_TANH;
        same_fused("gate_matmul", do_gate_matmul, in, rows, d + 3);
        rig_close(&r);
    }
}

/* ---- bytes ---- */

/* gpu.h's formula, word by word. */
static uint64_t
checksum_of(const uint8_t *p, size_t bytes)
{
    uint64_t sum = 0;

    for (size_t i = 0; i * 8 < bytes; i++) {
        uint64_t z = 0;

        for (size_t k = 0; k < 8 && i * 8 + k < bytes; k++) z |= (uint64_t)p[i * 8 + k] << 8 * k;
        z += 0x9e3779b97f4a7c15u * (i + 1);
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        sum += z ^ z >> 31;
    }
    return sum;
}

static void
checksums_do_not_depend_on_threads_and_notice_every_byte(void **state)
{
    static const size_t size[] = { 0, 1, 8, 9, 4095, 4096, (3 << 20) + 5 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(size); i++)
        for (uint32_t threads = 1; threads <= 4; threads++) {
            struct rig r;
            uint64_t *sum;
            uint8_t *p;

            rig_open(&r, "auto", threads);
            p = rig_bytes(&r, size[i] + 16);
            sum = rig_bytes(&r, 2 * sizeof *sum);
            for (size_t k = 0; k < size[i]; k++) p[k] = (uint8_t)test_below(256);
            assert_int_equal(r.op->checksum(r.lane, sum, p, size[i]), 0);
            rig_wait(&r);
            assert_true(sum[0] == checksum_of(p, size[i]));
            if (size[i]) {
                p[test_below((uint32_t)size[i])] ^= 1;
                assert_int_equal(r.op->checksum(r.lane, sum + 1, p, size[i]), 0);
                rig_wait(&r);
                assert_true(sum[0] != sum[1]);
            }
            rig_close(&r);
        }
}

static void
blocks_are_copied_each_in_one_piece(void **state)
{
    enum { BLOCKS = 40, BYTES = 48 << 10 };
    struct rig r;
    struct block_copy *copy;
    char *from, *to;

    (void)state;
    rig_open(&r, "auto", 3);
    from = rig_bytes(&r, BLOCKS * BYTES);
    to = rig_bytes(&r, BLOCKS * BYTES);
    copy = rig_bytes(&r, BLOCKS * sizeof *copy);
    for (size_t i = 0; i < BLOCKS * BYTES; i++) from[i] = (char)test_below(256);
    for (int i = 0; i < BLOCKS; i++) /* backwards */
        copy[i] = (struct block_copy){ to + (size_t)(BLOCKS - 1 - i) * BYTES,
                                       from + (size_t)i * BYTES };
    assert_int_equal(r.op->copy_blocks(r.lane, copy, BLOCKS, BYTES), 0);
    rig_wait(&r);
    for (int i = 0; i < BLOCKS; i++) assert_memory_equal(copy[i].to, copy[i].from, BYTES);
    rig_close(&r);
}

static int32_t embed_token[64];

static void
do_embed(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(
        r->op->embed(r->lane, tensor_rows(out, first, n), in[0], embed_token + first, 1.3f), 0);
}

static void
do_fill(struct rig *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    (void)in, (void)n;
    if (first == 0) assert_int_equal(r->op->fill_random(r->lane, out, 9, 1), 0);
}

static void
embed_and_fill_random_have_the_same_bits_everywhere(void **state)
{
    struct rig r;
    struct tensor table;

    (void)state;
    rig_open(&r, "scalar", 1);
    table = rig_tensor(&r, DT_F16, 50, 77, 80, 1);
    for (int i = 0; i < 64; i++) embed_token[i] = (int32_t)test_below(50);
    same_in_every_manner("embed", do_embed, &table, 64, 77);
    same_in_every_manner("fill_random", do_fill, NULL, 64, 1777);
    rig_close(&r);
}

/* ---- attention: a sequence's rows, however its prompt was cut and its blocks are laid out ---- */

enum { SEATS = 3, LENGTH = 210, HEADS = 6, KV_HEADS = 2, DIM = 40, STEPS = LENGTH };

struct sequences {
    struct tensor q[SEATS], k[SEATS], v[SEATS], cos_sin, norm;
    float *sinks, *bias;
    uint32_t window;
    float softcap;
    enum dtype kv;
};

/* One step: rows of several seats, with the ones before already in the cache. */
static void
step(struct rig *r, const struct sequences *s, struct paged *p, const struct run *run,
     uint32_t n_runs, struct tensor *out)
{
    uint32_t n = run[n_runs - 1].first_row + run[n_runs - 1].n_rows, qc = HEADS * DIM,
             kc = KV_HEADS * DIM;
    struct tensor q = rig_output(r, n, qc, qc), k = rig_output(r, n, kc, kc),
                  v = rig_output(r, n, kc, kc), o = rig_output(r, n, qc, qc);
    int32_t *pos = rig_bytes(r, n * sizeof *pos);
    uint32_t *seat = rig_bytes(r, n * sizeof *seat);
    struct run *runs = memcpy(rig_bytes(r, n_runs * sizeof *run), run, n_runs * sizeof *run);
    struct rows rows = { .n_rows = n, .n_runs = n_runs, .pos = pos, .seat = seat, .run = runs };
    struct rope_store rope = { .q = q,
                               .k = k,
                               .v = v,
                               .q_norm = s->norm,
                               .k_norm = s->norm,
                               .norm_eps = 1e-6f,
                               .cos_sin = s->cos_sin,
                               .n_heads = HEADS,
                               .n_kv_heads = KV_HEADS,
                               .head_dim = DIM,
                               .kv = p->view };
    struct attend a = { .out = o,
                        .q = q,
                        .kv = p->view,
                        .n_heads = HEADS,
                        .n_kv_heads = KV_HEADS,
                        .head_dim = DIM,
                        .window = s->window,
                        .causal = true,
                        .scale = 0.3f,
                        .softcap = s->softcap,
                        .sinks = s->sinks,
                        .bias = s->bias,
                        .bias_reach = 70 };

    for (uint32_t i = 0; i < n_runs; i++)
        for (uint32_t j = 0; j < run[i].n_rows; j++) {
            uint32_t row = run[i].first_row + j, from = (uint32_t)run[i].first_pos + j;
            uint32_t w = run[i].seat;

            pos[row] = (int32_t)from;
            seat[row] = w;
            memcpy((float *)q.data + row * qc, (float *)s->q[w].data + from * qc, qc * 4);
            memcpy((float *)k.data + row * kc, (float *)s->k[w].data + from * kc, kc * 4);
            memcpy((float *)v.data + row * kc, (float *)s->v[w].data + from * kc, kc * 4);
        }
    assert_int_equal(r->op->rope_store(r->lane, &rope, rows), 0);
    assert_int_equal(r->op->attend(r->lane, &a, rows), 0);
    rig_wait(r);
    for (uint32_t i = 0; i < n_runs; i++)
        memcpy((float *)out[run[i].seat].data + (uint32_t)run[i].first_pos * qc,
               (float *)o.data + run[i].first_row * qc, run[i].n_rows * qc * 4);
}

/* Whole sequences through a fresh cache, cut into chunks of at most chunk rows (0: random), seats side
 * by side. What slid out of the window loses its block, as the KV manager would do it. */
static void
run_sequences(const struct sequences *s, const char *isa, uint32_t threads, uint32_t tpb,
              uint32_t chunk, struct tensor *out)
{
    uint32_t done[SEATS] = { 0 };
    struct rig r;
    struct paged p;

    rig_open(&r, isa, threads);
    rig_paged(&r, &p, s->kv, SEATS, LENGTH, tpb, KV_HEADS, DIM);
    for (;;) {
        struct run run[SEATS];
        uint32_t n = 0, rows = 0;

        for (uint32_t i = 0; i < SEATS; i++) {
            uint32_t take = chunk ? chunk : test_below(33);

            take = MIN(take, LENGTH - done[i]);
            if (!take) continue;
            run[n++] = (struct run){ i, rows, take, (int32_t)done[i], done[i] + take };
            rows += take;
            done[i] += take;
        }
        if (n) step(&r, s, &p, run, n, out);
        if (done[0] + done[1] + done[2] == SEATS * LENGTH) break;
        for (uint32_t i = 0; s->window && i < SEATS; i++)
            for (uint32_t e = 0; (e + 1) * tpb + s->window <= done[i] + 1; e++)
                p.table[i * p.n_entries + e] = SLICE_NONE;
    }
    rig_close(&r);
}

static void
attention_rows_have_the_same_bits_for_any_chunk_block_size_isa_and_threads(void **state)
{
    static const struct {
        const char *isa;
        uint32_t threads, tpb, chunk;
    } way[] = {
        { "auto", 1, 64, LENGTH }, { "auto", 2, 4, LENGTH }, { "scalar", 1, 64, LENGTH },
        { "scalar", 3, 16, 0 },    { "auto", 4, 16, 1 },     { "auto", 3, 64, 0 },
        { "auto", 1, 4, 64 },
    };

    (void)state;
    for (int variant = 0; variant < 6; variant++) {
        struct sequences s = { .kv = variant % 2 ? DT_BF16 : DT_F32 };
        struct tensor out[ARRAY_LEN(way)][SEATS];
        struct rig r;
        float *table;

        rig_open(&r, "scalar", 1);
        for (int i = 0; i < SEATS; i++) {
            s.q[i] = rig_tensor(&r, DT_F32, LENGTH, HEADS * DIM, HEADS * DIM, 1);
            s.k[i] = rig_tensor(&r, DT_F32, LENGTH, KV_HEADS * DIM, KV_HEADS * DIM, 1);
            s.v[i] = rig_tensor(&r, DT_F32, LENGTH, KV_HEADS * DIM, KV_HEADS * DIM, 1);
        }
        s.norm = rig_tensor(&r, DT_F32, 1, DIM, DIM, 1);
        s.cos_sin = rig_tensor(&r, DT_F32, LENGTH, DIM, DIM, 0.7f);
        table = rig_tensor(&r, DT_F32, HEADS, 141, 141, 1).data;
        s.window = variant >= 2 ? 1 + test_below(100) : 0;
        s.sinks = variant >= 3 ? table : NULL;
        s.softcap = variant == 4 ? 3 : 0;
        s.bias = variant == 5 ? table : NULL;
        for (size_t w = 0; w < ARRAY_LEN(way); w++) {
            for (int i = 0; i < SEATS; i++)
                out[w][i] = rig_output(&r, LENGTH, HEADS * DIM, HEADS * DIM);
            run_sequences(&s, way[w].isa, way[w].threads, way[w].tpb, way[w].chunk, out[w]);
            for (int i = 0; i < SEATS; i++)
                if (!same_bits(out[0][i], out[w][i]))
                    fail_msg("variant %d, seat %d: %s, %u threads, %u tokens a block, chunk %u",
                             variant, i, way[w].isa, way[w].threads, way[w].tpb, way[w].chunk);
        }
        rig_close(&r);
    }
}

/* Encoder rows: two sources in one step or one each, whatever their place. */
static void
encoder_rows_have_the_same_bits_whichever_sources_ride_along(void **state)
{
    enum { A = 75, B = 130, QC = HEADS * DIM, KC = KV_HEADS * DIM };
    static const char *const isa[] = { "scalar", "auto", "auto" };
    struct tensor q, k, v, want = NO_TENSOR, out;
    struct rig keep;

    (void)state;
    rig_open(&keep, "scalar", 1);
    q = rig_tensor(&keep, DT_F32, A + B, QC, QC, 1);
    k = rig_tensor(&keep, DT_F32, A + B, KC, KC, 1);
    v = rig_tensor(&keep, DT_F32, A + B, KC, KC, 1);
    for (uint32_t m = 0; m < 3; m++) {
        bool alone = m == 1;
        struct run run[2] = { { 0, 0, A, 0, A }, { 1, A, B, 0, B } };
        int32_t pos[A + B] = { 0 };
        uint32_t seat[A + B] = { 0 };
        struct rig r;

        rig_open(&r, isa[m], m + 1);
        out = rig_output(&keep, A + B, QC, QC);
        for (uint32_t i = 0; i < (alone ? 2u : 1u); i++) {
            uint32_t first = i * A, n = alone ? run[i].n_rows : A + B;
            struct run here = { i, 0, n, 0, n };
            struct attend a = { .out = tensor_rows(out, first, n),
                                .q = tensor_rows(q, first, n),
                                .k = tensor_rows(k, first, n),
                                .v = tensor_rows(v, first, n),
                                .n_heads = HEADS,
                                .n_kv_heads = KV_HEADS,
                                .head_dim = DIM,
                                .scale = 0.2f };
            struct rows rows = { .n_rows = n,
                                 .n_runs = alone ? 1 : 2,
                                 .pos = pos,
                                 .seat = seat,
                                 .run = alone ? &here : run };

            assert_int_equal(r.op->attend(r.lane, &a, rows), 0);
            rig_wait(&r);
        }
        rig_close(&r);
        if (m == 0) want = out;
        assert_true(same_bits(want, out));
    }
    rig_close(&keep);
}

static void
two_lanes_at_once_give_the_same_bits_as_one(void **state)
{
    enum { ROWS = 24, K = 300, OUT = 700, TIMES = 40 };
    struct rig r;
    struct lane *other;
    struct tensor x, w, want, a, b;
    struct err e;

    (void)state;
    rig_open(&r, "auto", 2);
    assert_int_equal(r.op->lane_open(r.gpu, 2, &other, &e), 0);
    x = rig_tensor(&r, DT_F32, ROWS, K, K, 1);
    w = rig_tensor(&r, DT_BF16, OUT, K, K, 1);
    want = rig_output(&r, ROWS, OUT, OUT);
    a = rig_output(&r, ROWS, OUT, OUT);
    b = rig_output(&r, ROWS, OUT, OUT);
    assert_int_equal(r.op->matmul(r.lane, want, x, w, NO_TENSOR, 0), 0);
    rig_wait(&r);
    for (uint64_t i = 1; i <= TIMES; i++) {
        assert_int_equal(r.op->matmul(r.lane, a, x, w, NO_TENSOR, 0), 0);
        assert_int_equal(r.op->matmul(other, b, x, w, NO_TENSOR, 0), 0);
        assert_int_equal(r.op->lane_mark(other, i), 0);
        assert_int_equal(r.op->lane_after(r.lane, other, i), 0);
        rig_wait(&r);
        assert_true(same_bits(want, a));
        assert_true(same_bits(want, b));
    }
    r.op->lane_close(other);
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
        cmocka_unit_test(matmul_gives_a_row_the_same_bits_in_any_batch),
        cmocka_unit_test(norms_give_a_row_the_same_bits_in_any_batch),
        cmocka_unit_test(activations_have_the_same_bits_scalar_and_avx2_over_all_magnitudes),
        cmocka_unit_test(fused_ops_have_the_bits_of_the_ops_one_by_one),
        cmocka_unit_test(checksums_do_not_depend_on_threads_and_notice_every_byte),
        cmocka_unit_test(blocks_are_copied_each_in_one_piece),
        cmocka_unit_test(embed_and_fill_random_have_the_same_bits_everywhere),
        cmocka_unit_test(
            attention_rows_have_the_same_bits_for_any_chunk_block_size_isa_and_threads),
        cmocka_unit_test(encoder_rows_have_the_same_bits_whichever_sources_ride_along),
        cmocka_unit_test(two_lanes_at_once_give_the_same_bits_as_one),
    };

    return cmocka_run_group_tests(tests, seed, NULL);
}
