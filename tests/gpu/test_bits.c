/* test_bits.c - rule 1 of gpu/README.md for every op: the bits of a row depend on that row and its
 * history only. On the CPU always: scalar and AVX2 agree; threads and lanes do not matter. On a GPU
 * in invariant mode, which this program sets.
 */
#include "tests/gpu/fixture.h"
#include "tests/test.h"

/* How the same work is done: instruction set, threads, rows at once (0: all). */
struct manner {
    const char *isa;
    uint32_t threads, at_once;
};
static const struct manner cpu_manner[] = {
    { "scalar", 1, 0 }, { "auto", 1, 0 }, { "auto", 2, 0 },
    { "auto", 3, 0 },   { "auto", 4, 1 }, { "scalar", 2, 1 },
};
/* 0 twice: equal between runs. */
static const struct manner cuda_manner[] = { { NULL, 0, 0 }, { NULL, 0, 0 },  { NULL, 0, 1 },
                                             { NULL, 0, 5 }, { NULL, 0, 16 }, { NULL, 0, 17 } };

static bool
whole(void)
{
    return fixture_cuda() && test_below(2);
}

/* An op under test: queues rows [first, first + n). */
typedef void (*op_on_rows)(struct fixture *r, const struct tensor *in, struct tensor out,
                           uint32_t first, uint32_t n);

/* Checks that all variants give the same bits as the first. in[] are read only; the output has that
 * type. */
static void
same_in_every_manner(const char *name, op_on_rows op, const struct tensor *in, enum dtype type,
                     uint32_t rows, uint32_t cols)
{
    const struct manner *manner = fixture_cuda() ? cuda_manner : cpu_manner;
    struct tensor want = NO_TENSOR;
    struct fixture keep;

    fixture_open(&keep, "scalar", 1);
    for (size_t m = 0; m < ARRAY_LEN(cpu_manner); m++) {
        struct fixture r;
        struct tensor out;
        uint32_t step = manner[m].at_once ? manner[m].at_once : rows;

        fixture_open(&r, manner[m].isa, manner[m].threads);
        out = fixture_empty(&keep, type, rows, cols, cols + (uint32_t)(fixture_cuda() ? 0 : m));
        fixture_send(&r);
        for (uint32_t i = 0; i < rows; i += step) op(&r, in, out, i, MIN(step, rows - i));
        fixture_wait(&r);
        fixture_close(&r);
        if (m == 0) {
            want = out;
        } else if (!same_bits(want, out)) {
            fail_msg("%s, %u rows of %u %s: %s with %u threads, %u at once, differs", name, rows,
                     cols, dtype_name(out.dtype), manner[m].isa ? manner[m].isa : "a GPU",
                     manner[m].threads, step);
        }
    }
    fixture_close(&keep);
}

static void
do_matmul(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
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
        bool tiles = whole();
        uint32_t rows = 1 + test_below(20), k = 1 + test_below(n % 2 ? 40 : 700);
        uint32_t out = 1 + test_below(150), pad = tiles ? 0 : 3;
        enum dtype t = type[n % 3];
        struct fixture r;

        if (tiles) { /* larger than one small tile; and the row of a whole model */
            rows = 1 + test_below(400);
            k = 64 * (1 + test_below(64));
            out = 64 * (1 + test_below(20));
        }
        fixture_open(&r, "scalar", 1);
        if (fixture_cuda()) t = r.act;
        same_in_every_manner(
            "matmul", do_matmul,
            (struct tensor[]){ fixture_tensor(&r, r.act, rows, k, k + pad, 1),
                               fixture_tensor(&r, t, out, k, k + test_below(3 * pad + 1), 1),
                               fixture_tensor(&r, t, 1, out, out, 1) },
            r.act, rows, out);
        fixture_close(&r);
    }
}

static void
do_rms(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(r->op->rms_norm(r->lane, tensor_rows(out, first, n),
                                     tensor_rows(in[0], first, n), in[1], 1e-6f, 1),
                     0);
}

static void
do_layer(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(r->op->residual(r->lane, &(struct residual){ .x = tensor_rows(in[3], first, n),
                                                                  .y = tensor_rows(out, first, n),
                                                                  .y_norm = in[1],
                                                                  .y_bias = in[2],
                                                                  .eps = 1e-5f,
                                                                  .norm = RESIDUAL_LAYER }),
                     0);
}

static void
norms_give_a_row_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 200; n += 1 + test_below(30)) {
        uint32_t d = whole() ? 64 * (1 + n % 60) : n;
        struct fixture r;
        struct tensor in[4];

        fixture_open(&r, "scalar", 1);
        in[0] = fixture_tensor(&r, r.act, 300, d, d, 5);
        in[1] = fixture_tensor(&r, fixture_cuda() ? r.act : DT_BF16, 1, d, d, 1);
        in[2] = fixture_tensor(&r, DT_F32, 1, d, d, 1);
        in[3] = fixture_tensor(&r, DT_F32, 300, d, d, 5);
        same_in_every_manner("rms_norm", do_rms, in, r.act, 300, d);
        same_in_every_manner("layer_norm", do_layer, in, r.act, 300, d);
        fixture_close(&r);
    }
}

static enum act which_act;

static void
do_act(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(
        r->op->act(r->lane, tensor_rows(out, first, n), tensor_rows(in[0], first, n), which_act),
        0);
}

static void
do_gate(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(
        r->op->gate(r->lane, tensor_rows(out, first, n), tensor_rows(in[0], first, n), which_act),
        0);
}

/* scale and add work in place: they start from a copy. */
static void
do_scale(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    struct tensor y = tensor_rows(out, first, n);

    assert_true(n <= 8);
    assert_int_equal(r->op->gather_rows(r->lane, y, tensor_rows(in[0], first, n), in[1].data), 0);
    assert_int_equal(r->op->scale(r->lane, y, 1.7f, 30), 0);
    assert_int_equal(r->op->add(r->lane, y, tensor_rows(in[0], first, n)), 0);
}

/* Float patterns of every magnitude and sign, special values included. */
static void
activations_have_the_same_bits_in_scalar_and_avx2_code(void **state)
{
    enum { COLS = 1 << 15 };
    static const uint32_t place[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    struct fixture r;
    struct tensor x, pair;

    (void)state;
    fixture_open(&r, "scalar", 1);
    x = fixture_output(&r, 8, COLS, COLS);
    for (uint32_t i = 0; i < 8 * COLS; i++) {
        uint32_t u = i * 16411u; /* odd: reaches every high pattern */

        memcpy((char *)HOST(x.data) + dtype_bytes(x.dtype, i), &u, dtype_bytes(x.dtype, 1));
    }
    pair = fixture_tensor(&r, r.act, 40, 2 * 333, 700, 3);
    for (which_act = ACT_RELU; which_act <= ACT_GELU_TANH; which_act++) {
        same_in_every_manner("act", do_act, &x, r.act, 8, COLS);
        same_in_every_manner("gate", do_gate, &pair, r.act, 40, 333);
    }
    same_in_every_manner(
        "scale", do_scale,
        (struct tensor[]){ x, tensor_2d(fixture_copy(&r, place, sizeof place), DT_I32, 1, 8) },
        r.act, 8, COLS);
    fixture_close(&r);
}

/* ---- fused ops: the bits of the separate ops ---- */

static bool fused; /* the fused op, or the separate ones */
static bool with_norm;
static enum residual_norm which_norm;

/* out: the changed x, then y. in: x, the addend, the norm or bias of each. */
static void
do_residual(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first,
            uint32_t n)
{
    uint32_t d = in[0].dim[1];
    struct tensor x = tensor_cols(tensor_rows(out, first, n), 0, d);
    struct tensor y = tensor_cols(tensor_rows(out, first, n), d, d);
    struct residual a = { .x = x,
                          .in = tensor_rows(in[1], first, n),
                          .in_norm = with_norm ? in[2] : NO_TENSOR,
                          .y_norm = in[3],
                          .y_bias = which_norm == RESIDUAL_RMS ? NO_TENSOR : in[2],
                          .eps = 1e-6f,
                          .plus = 1,
                          .norm = which_norm };

    y.dtype = r->act; /* in the space of an fp32 row */
    y.stride *= (uint32_t)(4 / dtype_bytes(r->act, 1));
    a.y = y;
    assert_int_equal(r->op->gather_rows(r->lane, x, tensor_rows(in[0], first, n), in[4].data), 0);
    if (fused) {
        assert_int_equal(r->op->residual(r->lane, &a), 0);
        return;
    }
    if (with_norm) assert_int_equal(r->op->rms_norm(r->lane, y, a.in, in[2], 1e-6f, 1), 0);
    assert_int_equal(r->op->add(r->lane, x, with_norm ? y : a.in), 0);
    if (which_norm == RESIDUAL_RMS)
        assert_int_equal(r->op->rms_norm(r->lane, y, x, in[3], 1e-6f, 1), 0);
    else
        assert_int_equal(r->op->residual(r->lane, &(struct residual){ .x = x,
                                                                      .y = y,
                                                                      .y_norm = in[3],
                                                                      .y_bias = in[2],
                                                                      .eps = 1e-6f,
                                                                      .norm = which_norm }),
                         0);
}

static void
do_gate_matmul(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first,
               uint32_t n)
{
    uint32_t f = out.dim[1];
    struct tensor x = tensor_rows(in[0], first, n), y = tensor_rows(out, first, n);
    struct tensor both = fixture_cuda() ? tensor_rows(in[2], first, n)
                                        : fixture_output(r, n, 2 * f, 2 * f);

    if (fused) {
        assert_int_equal(r->op->gate_matmul(r->lane, y, both, x, in[1], which_act), 0);
        return;
    }
    assert_int_equal(r->op->matmul(r->lane, both, x, in[1], NO_TENSOR, 0), 0);
    assert_int_equal(r->op->gate(r->lane, y, both, which_act), 0);
}

static void
do_act_matmul(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first,
              uint32_t n)
{
    struct tensor x = tensor_rows(in[0], first, n), y = tensor_rows(out, first, n);

    if (fused) {
        assert_int_equal(r->op->act_matmul(r->lane, y, x, in[1], in[3], which_act), 0);
        return;
    }
    assert_int_equal(r->op->matmul(r->lane, y, x, in[1], in[3], 0), 0);
    assert_int_equal(r->op->act(r->lane, y, y, which_act), 0);
}

/* Checks all variants, and the fused op against separate ops where nothing is rounded in
 * between. */
static void
same_fused(const char *name, op_on_rows op, const struct tensor *in, enum dtype type, uint32_t rows,
           uint32_t cols)
{
    struct tensor out[2];
    struct fixture r;

    fixture_open(&r, "auto", 2);
    for (int i = 0; i < 2; i++) {
        fused = i == 1;
        out[i] = fixture_empty(&r, type, rows, cols, cols);
        fixture_send(&r);
        op(&r, in, out[i], 0, rows);
        fixture_wait(&r);
    }
    if (r.act == DT_F32 && !same_bits(out[0], out[1]))
        fail_msg("%s differs from the ops one by one", name);
    fixture_close(&r);
    same_in_every_manner(name, op, in, type, rows, cols);
}

static void
fused_ops_have_the_bits_of_the_separate_ops(void **state)
{
    (void)state;
    for (uint32_t d = 1; d < 300; d += 1 + test_below(60)) {
        static const uint32_t in_order[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
        uint32_t rows = 1 + test_below(9), k = whole() ? 64 * (1 + d % 40) : d;
        uint32_t out = whole() ? 64 * (1 + d % 7) : d + 3;
        struct fixture r;
        struct tensor in[5];

        fixture_open(&r, "scalar", 1);
        in[0] = fixture_tensor(&r, DT_F32, rows, d, d + 2, 5);
        in[1] = fixture_tensor(&r, r.act, rows, d, d + test_below(9), 2);
        in[2] = fixture_tensor(&r, fixture_cuda() ? r.act : DT_BF16, 1, d, d, 1);
        in[3] = fixture_tensor(&r, DT_F32, 1, d, d, 1);
        in[4] = tensor_2d(fixture_copy(&r, in_order, sizeof in_order), DT_I32, 1, 9);
        with_norm = false;
        same_fused("residual", do_residual, in, DT_F32, rows, 2 * d);
        with_norm = true;
        same_fused("residual of a norm", do_residual, in, DT_F32, rows, 2 * d);
        with_norm = false;
        which_norm = RESIDUAL_LAYER;
        same_fused("residual and layer norm", do_residual, in, DT_F32, rows, 2 * d);
        which_norm = RESIDUAL_POST;
        same_fused("residual and post norm", do_residual, in, DT_F32, rows, 2 * d);
        which_norm = RESIDUAL_RMS;
        in[0] = fixture_tensor(&r, r.act, rows, k, k + (k == d ? 2 : 0), 1);
        in[1] = fixture_tensor(&r,
                               fixture_cuda() ? r.act
                               : d % 2        ? DT_BF16
                                              : DT_F32,
                               2 * out, k, k, 1);
        in[2] = fixture_output(&r, rows, 2 * out, 2 * out);
        in[3] = d % 5 ? fixture_tensor(&r, DT_F32, 1, 2 * out, 2 * out, 1) : NO_TENSOR;
        which_act = d % 2 ? ACT_SILU : ACT_GELU_TANH;
        same_fused("gate_matmul", do_gate_matmul, in, r.act, rows, out);
        which_act = d % 3 ? ACT_RELU : ACT_GELU;
        same_fused("act_matmul", do_act_matmul, in, r.act, rows, 2 * out);
        fixture_close(&r);
    }
}

static void
do_embed(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    assert_int_equal(r->op->embed(r->lane, tensor_rows(out, first, n), in[0],
                                  (const int32_t *)in[1].data + first, 1.3f),
                     0);
}

static void
do_fill(struct fixture *r, const struct tensor *in, struct tensor out, uint32_t first, uint32_t n)
{
    (void)in, (void)n;
    if (first == 0) assert_int_equal(r->op->mem.fill_random(r->lane, out, 9, 0, 0, 1), 0);
}

static void
fill_random_of_a_part_equals_the_whole_matrix(void **state)
{
    enum { ROWS = 37, COLS = 113, ROW = 5, COL = 9 };
    struct fixture r;
    struct tensor all, part;

    (void)state;
    fixture_open(&r, "auto", 2);
    all = fixture_empty(&r, DT_F32, ROWS, COLS, COLS);
    part = fixture_empty(&r, DT_F32, ROWS - ROW, COLS - COL, COLS);
    fixture_send(&r);
    assert_int_equal(r.op->mem.fill_random(r.lane, all, 7, 0, 0, 1), 0);
    assert_int_equal(r.op->mem.fill_random(r.lane, part, 7, ROW * COLS + COL, COLS, 1), 0);
    fixture_wait(&r);
    assert_true(same_bits(tensor_cols(tensor_rows(all, ROW, ROWS - ROW), COL, COLS - COL), part));
    fixture_close(&r);
}

static void
embed_and_fill_random_have_the_same_bits_everywhere(void **state)
{
    struct fixture r;
    struct tensor table;
    int32_t token[64];

    (void)state;
    fixture_open(&r, "scalar", 1);
    table = fixture_tensor(&r, fixture_cuda() ? r.act : DT_F16, 50, 77, 80, 1);
    for (int i = 0; i < 64; i++) token[i] = (int32_t)test_below(50);
    same_in_every_manner(
        "embed", do_embed,
        (struct tensor[]){ table, tensor_2d(fixture_copy(&r, token, sizeof token), DT_I32, 1, 64) },
        DT_F32, 64, 77);
    same_in_every_manner("fill_random", do_fill, NULL, DT_F32, 64, 1777);
    fixture_close(&r);
}

/* ---- attention: rows of a sequence for any chunks and block layout ---- */

enum { SLOTS = 3, HEADS = 6, KV_HEADS = 2, MAX_LENGTH = 700 };
static uint32_t length = 210, dim = 40; /* of a sequence, of a head */

struct sequences {
    struct tensor q[SLOTS], k[SLOTS], v[SLOTS], cos_sin, norm;
    float *sinks, *bias;
    uint32_t window, kept;
    float softcap;
    enum dtype kv;
};

/* One step: rows of several slots, with earlier rows already in the cache. */
static void
step(struct fixture *r, const struct sequences *s, struct paged *p, const struct segment *segment,
     uint32_t n_segments, struct tensor *out)
{
    uint32_t n = segment[n_segments - 1].first_token + segment[n_segments - 1].n_tokens,
             qc = HEADS * dim, kc = KV_HEADS * dim;
    size_t each = dtype_bytes(r->act, 1);
    struct tensor q = fixture_output(r, n, qc, qc), k = fixture_output(r, n, kc, kc),
                  v = fixture_output(r, n, kc, kc), o = fixture_output(r, n, qc, qc);
    int32_t *pos = fixture_bytes(r, n * sizeof *pos);
    uint32_t *slot = fixture_bytes(r, n * sizeof *slot);
    struct step_tokens rows = { .n_tokens = n,
                                .n_segments = n_segments,
                                .pos = pos,
                                .slot = slot,
                                .segment = fixture_copy(r, segment, n_segments * sizeof *segment) };
    struct rope_store rope = { .q = q,
                               .k = k,
                               .v = v,
                               .q_norm = s->norm,
                               .k_norm = s->norm,
                               .norm_eps = 1e-6f,
                               .cos_sin = s->cos_sin,
                               .n_heads = HEADS,
                               .n_kv_heads = KV_HEADS,
                               .head_dim = dim,
                               .kv = p->view };
    struct attend a = { .out = o,
                        .q = q,
                        .kv = p->view,
                        .n_heads = HEADS,
                        .n_kv_heads = KV_HEADS,
                        .head_dim = dim,
                        .window = s->window,
                        .kept = s->kept,
                        .causal = true,
                        .scale = 0.3f,
                        .softcap = s->softcap,
                        .sinks = s->sinks,
                        .bias = s->bias,
                        .bias_reach = 70 };

    for (uint32_t i = 0; i < n_segments; i++)
        for (uint32_t j = 0; j < segment[i].n_tokens; j++) {
            uint32_t row = segment[i].first_token + j, from = (uint32_t)segment[i].first_pos + j;
            uint32_t w = segment[i].slot;

            HOST(pos)[row] = (int32_t)from;
            HOST(slot)[row] = w;
            memcpy(HOST(tensor_rows(q, row, 1).data), HOST(tensor_rows(s->q[w], from, 1).data),
                   qc * each);
            memcpy(HOST(tensor_rows(k, row, 1).data), HOST(tensor_rows(s->k[w], from, 1).data),
                   kc * each);
            memcpy(HOST(tensor_rows(v, row, 1).data), HOST(tensor_rows(s->v[w], from, 1).data),
                   kc * each);
        }
    /* The bits do not depend on n_single_token. */
    while (rows.n_single_token < n_segments && segment[rows.n_single_token].n_tokens == 1)
        rows.n_single_token++;
    rows.n_single_token = test_below(rows.n_single_token + 1);
    fixture_send(r);
    assert_int_equal(r->op->rope_store(r->lane, &rope, rows), 0);
    assert_int_equal(r->op->attend(r->lane, &a, rows), 0);
    fixture_wait(r);
    for (uint32_t i = 0; i < n_segments; i++)
        memcpy(HOST(tensor_rows(out[segment[i].slot], (uint32_t)segment[i].first_pos, 1).data),
               HOST(tensor_rows(o, segment[i].first_token, 1).data),
               segment[i].n_tokens * qc * each);
}

/* Whole sequences through a new cache, in chunks of at most `chunk` rows (0: random), slots in one
 * batch. Blocks before the window that are not kept are removed, as the KV manager does. */
static void
run_sequences(const struct sequences *s, const char *isa, uint32_t threads, uint32_t tpb,
              uint32_t chunk, struct tensor *out)
{
    uint32_t done[SLOTS] = { 0 };
    struct fixture r;
    struct paged p;

    fixture_open(&r, isa, threads);
    fixture_paged(&r, &p, s->kv, SLOTS, length, tpb, KV_HEADS, dim);
    for (;;) {
        struct segment segment[SLOTS];
        uint32_t n = 0, rows = 0;

        for (uint32_t i = 0; i < SLOTS; i++) {
            uint32_t take = chunk ? chunk : test_below(33);

            take = MIN(take, length - done[i]);
            if (!take) continue;
            segment[n++] = (struct segment){ i, rows, take, (int32_t)done[i], done[i] + take };
            rows += take;
            done[i] += take;
        }
        if (n) step(&r, s, &p, segment, n, out);
        if (done[0] + done[1] + done[2] == SLOTS * length) break;
        for (uint32_t i = 0; s->window && i < SLOTS; i++)
            for (uint32_t e = CEIL_DIV(s->kept, tpb); (e + 1) * tpb + s->window <= done[i] + 1; e++)
                HOST(p.table)[i * p.n_entries + e] = SLICE_NONE;
    }
    fixture_close(&r);
}

static void
attention_bits_ignore_chunks_block_size_isa_and_threads(void **state)
{
    static const struct {
        const char *isa;
        uint32_t threads, tpb, chunk;
    } way[] = {
        { "auto", 1, 64, MAX_LENGTH },
        { "auto", 2, 4, MAX_LENGTH },
        { "scalar", 1, 64, MAX_LENGTH },
        { "scalar", 3, 16, 0 },
        { "auto", 4, 16, 1 },
        { "auto", 3, 64, 0 },
        { "auto", 1, 4, 64 },
    };

    static const uint32_t cuda_dim[] = { 128, 64, 64, 256, 40, 128 };

    (void)state;
    if (fixture_cuda()) length = MAX_LENGTH;
    for (int variant = 0; variant < 6; variant++) {
        static const enum dtype cache[] = { DT_F32, DT_BF16, DT_E4M3 };
        struct sequences s = { .kv = cache[variant % 3] };
        struct tensor out[ARRAY_LEN(way)][SLOTS];
        uint32_t tpb = 16u << test_below(3);
        struct fixture r;
        float *table;

        fixture_open(&r, "scalar", 1);
        if (fixture_cuda()) dim = cuda_dim[variant];
        if (fixture_cuda() && s.kv != DT_E4M3) s.kv = r.act;
        for (int i = 0; i < SLOTS; i++) {
            s.q[i] = fixture_tensor(&r, r.act, length, HEADS * dim, HEADS * dim, 1);
            s.k[i] = fixture_tensor(&r, r.act, length, KV_HEADS * dim, KV_HEADS * dim, 1);
            s.v[i] = fixture_tensor(&r, r.act, length, KV_HEADS * dim, KV_HEADS * dim, 1);
        }
        s.norm = fixture_tensor(&r, DT_F32, 1, dim, dim, 1);
        s.cos_sin = fixture_tensor(&r, DT_F32, length, dim, dim, 0.7f);
        table = fixture_tensor(&r, DT_F32, HEADS, 141, 141, 1).data;
        s.window = variant >= 2 ? 1 + test_below(100) : 0;
        s.kept = variant >= 4 ? 1 + test_below(length / 2) : 0;
        s.sinks = variant >= 3 ? table : NULL;
        s.softcap = variant == 4 ? 3 : 0;
        s.bias = variant == 5 ? table : NULL;
        for (size_t w = 0; w < ARRAY_LEN(way); w++) {
            for (int i = 0; i < SLOTS; i++)
                out[w][i] = fixture_output(&r, length, HEADS * dim, HEADS * dim);
            run_sequences(&s, way[w].isa, way[w].threads, fixture_cuda() ? tpb : way[w].tpb,
                          way[w].chunk ? MIN(way[w].chunk, length) : 0, out[w]);
            for (int i = 0; i < SLOTS; i++)
                if (!same_bits(out[0][i], out[w][i]))
                    fail_msg("variant %d, %s, slot %d: %s, %u threads, %u tokens a block, chunk %u",
                             variant, dtype_name(r.act), i, way[w].isa, way[w].threads, way[w].tpb,
                             way[w].chunk);
        }
        fixture_close(&r);
    }
}

/* Encoder rows: two inputs in one step or one each, in any order. */
static void
encoder_bits_ignore_the_other_inputs_of_the_batch(void **state)
{
    enum { A = 75, B = 130 };
    static const char *const isa[] = { "scalar", "auto", "auto" };
    uint32_t q_cols, k_cols;
    struct tensor q, k, v, want = NO_TENSOR, out;
    struct fixture keep;

    (void)state;
    fixture_open(&keep, "scalar", 1);
    if (fixture_cuda()) dim = 64;
    q_cols = HEADS * dim, k_cols = KV_HEADS * dim;
    q = fixture_tensor(&keep, keep.act, A + B, q_cols, q_cols, 1);
    k = fixture_tensor(&keep, keep.act, A + B, k_cols, k_cols, 1);
    v = fixture_tensor(&keep, keep.act, A + B, k_cols, k_cols, 1);
    for (uint32_t m = 0; m < 3; m++) {
        bool alone = m == 1;
        struct segment segment[2] = { { 0, 0, A, 0, A }, { 1, A, B, 0, B } };
        uint32_t zero[A + B] = { 0 }, *zeros;
        struct fixture r;

        fixture_open(&r, isa[m], m + 1);
        zeros = fixture_copy(&r, zero, sizeof zero);
        out = fixture_output(&keep, A + B, q_cols, q_cols);
        for (uint32_t i = 0; i < (alone ? 2u : 1u); i++) {
            uint32_t first = i * A, n = alone ? segment[i].n_tokens : A + B;
            struct segment here = { i, 0, n, 0, n };
            struct attend a = { .out = tensor_rows(out, first, n),
                                .q = tensor_rows(q, first, n),
                                .k = tensor_rows(k, first, n),
                                .v = tensor_rows(v, first, n),
                                .n_heads = HEADS,
                                .n_kv_heads = KV_HEADS,
                                .head_dim = dim,
                                .scale = 0.2f };
            struct step_tokens rows = { .n_tokens = n,
                                        .n_segments = alone ? 1 : 2,
                                        .pos = (const int32_t *)zeros,
                                        .slot = zeros,
                                        .segment = alone ? fixture_copy(&r, &here, sizeof here)
                                                         : fixture_copy(&r, segment,
                                                                        sizeof segment) };

            fixture_send(&r);
            assert_int_equal(r.op->attend(r.lane, &a, rows), 0);
            fixture_wait(&r);
        }
        fixture_close(&r);
        if (m == 0) want = out;
        assert_true(same_bits(want, out));
    }
    fixture_close(&keep);
}

static void
two_concurrent_lanes_give_the_same_bits_as_one(void **state)
{
    enum { ROWS = 24, K = 300, OUT = 700, TIMES = 40 };
    struct fixture r;
    struct lane *other;
    struct tensor x, w, want, a, b;
    struct err e;

    (void)state;
    fixture_open(&r, "auto", 2);
    assert_int_equal(
        r.op->lane.open(r.gpu, fixture_cuda() ? gpu_facts(r.gpu).units : 2, &other, &e), 0);
    x = fixture_tensor(&r, r.act, ROWS, K, K, 1);
    w = fixture_tensor(&r, fixture_cuda() ? r.act : DT_BF16, OUT, K, K, 1);
    want = fixture_output(&r, ROWS, OUT, OUT);
    a = fixture_output(&r, ROWS, OUT, OUT);
    b = fixture_output(&r, ROWS, OUT, OUT);
    fixture_send(&r);
    assert_int_equal(r.op->matmul(r.lane, want, x, w, NO_TENSOR, 0), 0);
    fixture_wait(&r);
    for (uint64_t i = 1; i <= TIMES; i++) {
        assert_int_equal(r.op->matmul(r.lane, a, x, w, NO_TENSOR, 0), 0);
        assert_int_equal(r.op->matmul(other, b, x, w, NO_TENSOR, 0), 0);
        assert_int_equal(r.op->lane.mark(other, i), 0);
        assert_int_equal(r.op->lane.after(r.lane, other, i), 0);
        fixture_wait(&r);
        assert_true(same_bits(want, a));
        assert_true(same_bits(want, b));
    }
    r.op->lane.close(other);
    fixture_close(&r);
}

static void
bits_stay_when_lanes_change_partition_between_ops(void **state)
{
    enum { TIMES = 60 };
    /* The last three are for a GPU's library; one is large. */
    static const struct {
        uint32_t rows, k, out;
    } shape[] = { { 24, 300, 700 }, { 24, 512, 1024 }, { 300, 512, 1536 }, { 70, 2048, 4096 } };
    uint32_t units = 4;
    struct fixture r;
    struct lane *lane[2];
    struct tensor x[4], w[4], want[4], y[2][4];
    struct gpu_parts parts;
    size_t n_shapes;
    struct err e;

    (void)state;
    fixture_open(&r, "auto", units);
    parts = gpu_facts(r.gpu).parts;
    if (!parts.grain) {
        fixture_close(&r);
        skip();
    }
    n_shapes = fixture_cuda() ? ARRAY_LEN(shape) : 1;
    if (fixture_cuda()) units = gpu_facts(r.gpu).units;
    lane[0] = r.lane;
    assert_int_equal(r.op->lane.open(r.gpu, units, &lane[1], &e), 0);
    for (size_t s = 0; s < n_shapes; s++) {
        uint32_t rows = shape[s].rows, k = shape[s].k, out = shape[s].out;

        x[s] = fixture_tensor(&r, r.act, rows, k, k, 1);
        w[s] = fixture_tensor(&r, fixture_cuda() ? r.act : DT_BF16, out, k, k, 1);
        want[s] = fixture_output(&r, rows, out, out);
        for (int i = 0; i < 2; i++) y[i][s] = fixture_output(&r, rows, out, out);
    }
    fixture_send(&r);
    for (size_t s = 0; s < n_shapes; s++)
        assert_int_equal(r.op->matmul(r.lane, want[s], x[s], w[s], NO_TENSOR, 0), 0);
    fixture_wait(&r);
    for (uint64_t t = 1; t <= TIMES; t++) {
        uint32_t first = parts.least +
                         parts.grain *
                             (uint32_t)(t % ((units - 2 * parts.least) / parts.grain + 1));

        assert_int_equal(r.op->lane.part(lane[0], 0, first), 0);
        assert_int_equal(r.op->lane.part(lane[1], first, units - first), 0);
        for (int i = 0; i < 2; i++)
            for (size_t s = 0; s < n_shapes; s++)
                assert_int_equal(r.op->matmul(lane[i], y[i][s], x[s], w[s], NO_TENSOR, 0), 0);
        assert_int_equal(r.op->lane.mark(lane[1], t), 0);
        assert_int_equal(r.op->lane.after(r.lane, lane[1], t), 0);
        fixture_wait(&r);
        for (int i = 0; i < 2; i++)
            for (size_t s = 0; s < n_shapes; s++)
                if (!same_bits(want[s], y[i][s]))
                    fail_msg("%s, shape %zu, part %d of %u and %u", dtype_name(r.act), s, i, first,
                             units - first);
    }
    assert_int_equal(r.op->lane.part(lane[0], 0, units), 0);
    r.op->lane.close(lane[1]);
    fixture_close(&r);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(matmul_gives_a_row_the_same_bits_in_any_batch),
        fixture_test(norms_give_a_row_the_same_bits_in_any_batch),
        fixture_test(activations_have_the_same_bits_in_scalar_and_avx2_code),
        fixture_test(fused_ops_have_the_bits_of_the_separate_ops),
        fixture_test(embed_and_fill_random_have_the_same_bits_everywhere),
        fixture_test(fill_random_of_a_part_equals_the_whole_matrix),
        fixture_test(attention_bits_ignore_chunks_block_size_isa_and_threads),
        fixture_test(encoder_bits_ignore_the_other_inputs_of_the_batch),
        fixture_test(two_concurrent_lanes_give_the_same_bits_as_one),
        fixture_test(bits_stay_when_lanes_change_partition_between_ops),
    };

    fixture_args(argc, argv);
    fixture_invariant();
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
