/* test_shapes.c - invalid shapes are refused before queueing, with a message that names them. */
#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include "gpu/device.h"

static float *memory; /* 4,096 of them, on the device */
static struct fixture r;

static struct tensor
f32(uint32_t rows, uint32_t cols)
{
    return tensor_2d(memory, DT_F32, rows, cols);
}

static struct tensor
elsewhere(uint32_t rows, uint32_t cols)
{
    return tensor_2d(memory + 2048, DT_F32, rows, cols);
}

static struct tensor
typed(struct tensor t, enum dtype type)
{
    t.dtype = type;
    return t;
}

/* Checks that the call failed and that gpu_why() contains these words. */
static void
refused(int ret, const char *words)
{
    if (ret != -EINVAL) fail_msg("returned %d where \"%s\" was expected", ret, words);
    if (!strstr(gpu_why(r.gpu), words))
        fail_msg("\"%s\" does not say \"%s\"", gpu_why(r.gpu), words);
    memset(&r.gpu->why, 0, sizeof r.gpu->why);
}

static void
matmul_refuses_mismatched_shapes_and_dtypes(void **state)
{
    struct tensor y = elsewhere(3, 5), x = f32(3, 8), w = f32(5, 8), scaled = w;

    (void)state;
    assert_int_equal(r.op->matmul(r.lane, y, x, w, NO_TENSOR, 0), 0);
    assert_int_equal(r.op->matmul(r.lane, elsewhere(0, 5), f32(0, 8), w, NO_TENSOR, 0), 0);
    refused(r.op->matmul(r.lane, y, f32(3, 7), w, NO_TENSOR, 0),
            "x is [3, 7], w is [5, 8]: their columns differ");
    refused(r.op->matmul(r.lane, elsewhere(3, 6), x, w, NO_TENSOR, 0), "y is [3, 6]");
    refused(r.op->matmul(r.lane, elsewhere(2, 5), x, w, NO_TENSOR, 0), "y is [2, 5]");
    refused(r.op->matmul(r.lane, y, x, NO_TENSOR, NO_TENSOR, 0), "w has no data");
    refused(r.op->matmul(r.lane, y, x, w, f32(1, 6), 0), "bias is [1, 6]");
    refused(r.op->matmul(r.lane, y, typed(x, DT_I32), w, NO_TENSOR, 0), "x is i32");
    if (!fixture_cuda())
        refused(r.op->matmul(r.lane, y, typed(x, DT_BF16), w, NO_TENSOR, 0), "x is bf16");
    if (fixture_cuda()) /* rows of the weights' dtype; the result has it too, or fp32 */
        refused(r.op->matmul(r.lane, y, x, typed(w, DT_BF16), NO_TENSOR, 0), "x is fp32");
    if (fixture_cuda())
        refused(r.op->matmul(r.lane, typed(y, DT_F16), typed(x, DT_BF16), typed(w, DT_BF16),
                             NO_TENSOR, 0),
                "y is fp16");
    refused(r.op->matmul(r.lane, y, x, typed(w, DT_I8), NO_TENSOR, 0), "w is i8");
    refused(r.op->matmul(r.lane, f32(3, 5), x, w, NO_TENSOR, 0), "y overlaps x");
    scaled.scale = memory;
    refused(r.op->matmul(r.lane, y, x, scaled, NO_TENSOR, 0), "w has scales");
    x.stride = 7;
    refused(r.op->matmul(r.lane, y, x, w, NO_TENSOR, 0), "its rows overlap");
    x = f32(3, 8);
    x.dim[2] = 2;
    refused(r.op->matmul(r.lane, y, x, w, NO_TENSOR, 0), "expected a matrix");
}

static void
row_ops_refuse_mismatched_rows(void **state)
{
    struct tensor x = f32(4, 10), y = elsewhere(4, 10);
    int32_t token[4] = { 0 };

    (void)state;
    refused(r.op->embed(r.lane, f32(4, 9), x, token, 1), "embed: x is [4, 9]");
    refused(r.op->embed(r.lane, y, x, NULL, 1), "token is NULL");
    refused(r.op->embed(r.lane, y, typed(x, DT_MXFP4), token, 1), "table is mxfp4");
    refused(r.op->rms_norm(r.lane, f32(4, 9), x, NO_TENSOR, 0, 0), "rms_norm: y is [4, 9]");
    refused(r.op->rms_norm(r.lane, y, x, f32(1, 9), 0, 0), "rms_norm: w is [1, 9]");
    refused(r.op->residual(
                r.lane,
                &(struct residual){ .x = x, .y = y, .y_bias = f32(2, 10), .norm = RESIDUAL_LAYER }),
            "y_bias is [2, 10]");
    refused(r.op->add(r.lane, y, f32(3, 10)), "add: x is [3, 10]");
    refused(r.op->residual(r.lane, &(struct residual){ .x = x, .y = f32(4, 9) }),
            "residual: y is [4, 9]");
    refused(r.op->residual(r.lane, &(struct residual){ .x = x, .in = x, .y = y }), "overlaps x");
    refused(r.op->residual(r.lane, &(struct residual){ .x = x, .y = y, .in_norm = f32(1, 10) }),
            "in_norm is set");
    refused(r.op->residual(r.lane, &(struct residual){ .x = x, .y = y, .in_bias = f32(1, 10) }),
            "in_bias is set");
    refused(r.op->residual(r.lane, &(struct residual){ .x = x, .in = y, .in_bias = f32(1, 9) }),
            "in_bias is [1, 9]");
    refused(r.op->residual(r.lane,
                           &(struct residual){
                               .x = x, .in = y, .in_bias = f32(1, 10), .in_norm = f32(1, 10) }),
            "in_bias and in_norm are both set");
    refused(r.op->residual(r.lane, &(struct residual){ .x = x, .y = y, .y_bias = f32(1, 10) }),
            "y_bias with an RMS norm");
    refused(r.op->residual(r.lane, &(struct residual){ .x = x, .y = y, .norm = 3 }),
            "unknown norm 3");
    refused(r.op->act_matmul(r.lane, y, x, f32(8, 9), NO_TENSOR, ACT_RELU), "w is [8, 9]");
    refused(r.op->act_matmul(r.lane, y, x, f32(8, 10), NO_TENSOR, ACT_RELU), "y is [4, 10]");
    refused(r.op->act_matmul(r.lane, y, x, f32(10, 10), f32(1, 9), ACT_RELU), "bias is [1, 9]");
    refused(r.op->act_matmul(r.lane, x, x, f32(10, 10), NO_TENSOR, ACT_RELU), "overlap");
    refused(r.op->gate_matmul(r.lane, y, y, x, f32(8, 9), ACT_SILU), "w is [8, 9]");
    refused(r.op->gate_matmul(r.lane, y, y, x, f32(20, 10), ACT_SILU), "both is [4, 10]");
    refused(r.op->act(r.lane, y, f32(4, 11), ACT_SILU), "act: y is [4, 10]");
    refused(r.op->act(r.lane, y, x, (enum act)9), "unsupported activation 9");
    refused(r.op->gate(r.lane, y, x, ACT_SILU), "gate_up is [4, 10], expected [4, 20]");
    refused(r.op->scale(r.lane, typed(x, DT_I32), 1, 0), "scale: x is i32");
    refused(r.op->scale(r.lane, x, 1, -3), "softcap is -3");
    refused(r.op->gather_rows(r.lane, elsewhere(4, 9), x, (uint32_t[4]){ 0 }),
            "gather_rows: y is [4, 9]");
    refused(r.op->gather_rows(r.lane, y, x, NULL), "which is NULL");
    refused(r.op->mem.fill_random(r.lane, NO_TENSOR, 1, 0, 0, 1), "fill_random: t has no data");
    /* A vector may be a row or a column. */
    assert_int_equal(r.op->rms_norm(r.lane, y, x, f32(1, 10), 0, 0), 0);
    assert_int_equal(r.op->rms_norm(r.lane, y, x, f32(10, 1), 0, 0), 0);
}

static void
copies_refuse_null_addresses_and_overlap(void **state)
{
    struct tables t = { .n = 9 };
    struct table_edit edit = { 0 };
    struct step_tokens rows = { .n_tokens = 1 };
    int32_t last = 0;
    uint32_t seen = 0;
    struct segment segment = { 0 };

    (void)state;
    refused(r.op->mem.put(r.lane, NULL, memory, 4), "put: 4 bytes");
    refused(r.op->mem.get(r.lane, memory, NULL, 4), "get: 4 bytes");
    refused(r.op->mem.copy(r.lane, memory, memory + 1, 8), "overlap");
    assert_int_equal(r.op->mem.copy(r.lane, NULL, NULL, 0), 0);
    refused(r.op->step.update_tables(r.lane, t, &edit, 1), "9 tables");
    t.n = 1;
    refused(r.op->step.update_tables(r.lane, t, &edit, 1), "table 0 is NULL");
    refused(r.op->step.resolve_tokens(r.lane, rows, &last), "resolve_tokens:");
    refused(
        r.op->step.mark_tokens(r.lane, (struct token_history){ .seen = &seen }, rows, &segment, 1),
        "mark_tokens:");
    refused(r.op->lane.after(r.lane, NULL, 1), "lane_after");
}

static void
rope_store_and_attend_refuse_mismatched_heads_and_caches(void **state)
{
    const int32_t pos[4] = { 0, 1, 2, 3 };
    const uint32_t slot[4] = { 0 };
    const slice_id table[4] = { 0, 2, 4, 6 };
    const struct segment segment = { 0, 0, 4, 0, 4 };
    uint32_t *const slots = fixture_copy(&r, slot, sizeof slot);
    struct step_tokens rows = { .n_tokens = 4,
                                .n_segments = 1,
                                .pos = fixture_copy(&r, pos, sizeof pos),
                                .slot = slots,
                                .segment = fixture_copy(&r, &segment, sizeof segment) };
    struct kv_view kv = { .base = memory + 1024,
                          .table = fixture_copy(&r, table, sizeof table),
                          .table_stride = 4,
                          .slice_bytes = 2 * 4 * 16 * 4,
                          .n_parts = 2,
                          .tokens_per_block = 4,
                          .n_kv_heads = 2,
                          .head_dim = 16,
                          .dtype = DT_F32 };
    const struct rope_store good = { .q = f32(4, 64),
                                     .k = elsewhere(4, 32),
                                     .v = elsewhere(4, 32),
                                     .n_heads = 4,
                                     .n_kv_heads = 2,
                                     .head_dim = 16,
                                     .kv = kv };
    const struct attend fine = { .out = f32(4, 64),
                                 .q = elsewhere(4, 64),
                                 .kv = kv,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 16,
                                 .causal = true,
                                 .scale = 1 };
    struct rope_store s = good;
    struct attend a = fine;

    (void)state;
    fixture_send(&r);
    assert_int_equal(r.op->rope_store(r.lane, &s, rows), 0);
    s.n_heads = 3;
    refused(r.op->rope_store(r.lane, &s, rows), "q is [4, 64], expected [4, 48]");
    s = good, s.k = elsewhere(4, 33);
    refused(r.op->rope_store(r.lane, &s, rows), "k is [4, 33]");
    s = good, s.v = NO_TENSOR;
    refused(r.op->rope_store(r.lane, &s, rows), "v has no data");
    s = good, s.cos_sin = f32(10, 18);
    refused(r.op->rope_store(r.lane, &s, rows), "cos_sin rotates 18 elements, heads have 16");
    s = good, s.kv.head_dim = 24;
    refused(r.op->rope_store(r.lane, &s, rows),
            "KV has 2 heads of size 24, the op has 2 of size 16");
    s = good, s.kv.slice_bytes = 510;
    refused(r.op->rope_store(r.lane, &s, rows), "a slice has 510 bytes, needs 512");
    s = good, s.kv.dtype = DT_MXFP4;
    refused(r.op->rope_store(r.lane, &s, rows), "KV is mxfp4");
    s = good, s.kv.tokens_per_block = 3;
    refused(r.op->rope_store(r.lane, &s, rows), "not a power of two");
    s = good, rows.slot = NULL;
    refused(r.op->rope_store(r.lane, &s, rows), "positions or slots are NULL");
    rows.slot = slots;

    assert_int_equal(r.op->attend(r.lane, &a, rows), 0);
    a.n_kv_heads = 3;
    refused(r.op->attend(r.lane, &a, rows), "4 heads (size 16) cannot share 3 KV heads");
    a = fine, a.q = f32(3, 64);
    refused(r.op->attend(r.lane, &a, rows), "q has 3 rows, the step has 4");
    a = fine, a.out = f32(4, 63);
    refused(r.op->attend(r.lane, &a, rows), "out is [4, 63]");
    a = fine, a.kv.table = NULL, a.causal = false;
    refused(r.op->attend(r.lane, &a, rows), "k has no data");
    a = fine, a.k = elsewhere(4, 32);
    refused(r.op->attend(r.lane, &a, rows), "v has no data");
    a = fine, a.softcap = -1;
    refused(r.op->attend(r.lane, &a, rows), "softcap is -1");
    a = fine, a.mask = (const uint32_t *)fine.q.data;
    refused(r.op->attend(r.lane, &a, rows), "mask_words is 0");
    a = fine, rows.n_single_token = rows.n_segments + 1;
    refused(r.op->attend(r.lane, &a, rows), "n_single_token is");
    rows.n_single_token = 0;
    fixture_wait(&r); /* the two valid calls read our arrays */
}

static void
sample_refuses_logits_of_wrong_dtype_or_rows(void **state)
{
    struct sample_row row = { 0 };
    int32_t token;
    uint32_t bits = 0;
    struct sample s = {
        .logits = typed(f32(1, 10), DT_BF16), .row = &row, .n = 1, .token = &token
    };

    (void)state;
    refused(r.op->sample(r.lane, &s), "logits is bf16");
    s.logits = f32(0, 10);
    refused(r.op->sample(r.lane, &s), "logits are [0, 10], too small for 1 rows");
    s.logits = f32(1, 10), s.token = NULL;
    refused(r.op->sample(r.lane, &s), "row or token is NULL");
    s.token = &token;
    s.allowed = &bits;
    refused(r.op->sample(r.lane, &s), "allowed_words is 0");
}

static void
unknown_device_names_and_zero_sizes_are_refused(void **state)
{
    struct gpu_options o = { .device = "cpu", .isa = "sse9" };
    struct err e = { 0 };
    struct gpu *g;
    struct lane *l;
    struct arena a;

    (void)state;
    assert_int_equal(gpu_open(&g, &o, &e), -EINVAL);
    assert_non_null(strstr(e.text, "sse9"));
    o = (struct gpu_options){ .device = "cuda:x" };
    assert_int_equal(gpu_open(&g, &o, &e), -EINVAL);
    assert_non_null(strstr(e.text, "\"cuda:x\" is not cpu, cuda or cuda:N"));
    o.device = "gpu";
    assert_int_equal(gpu_open(&g, &o, &e), -EINVAL);
    /* A missing GPU is reported; the CPU is not used instead. */
    o.device = fixture_cuda() ? "cuda:63" : "cuda:0";
    if (!fixture_cuda() && gpu_open(&g, &o, &e) == 0) { /* there is one here */
        assert_string_equal(gpu_ops(g)->name, "cuda");
        gpu_close(g);
    } else {
        assert_true(!fixture_cuda() || gpu_open(&g, &o, &e) < 0);
        assert_non_null(strstr(e.text, o.device));
    }
    assert_int_equal(r.op->lane.open(r.gpu, 0, &l, &e), -EINVAL);
    assert_non_null(strstr(e.text, "0 units"));
    assert_int_equal(r.op->mem.arena_make(r.gpu, "none", 0, &a, &e), -EINVAL);
    assert_string_equal(r.op->name, fixture_cuda() ? "cuda" : "cpu");
    assert_non_null(strstr(gpu_facts(r.gpu).describe, fixture_cuda() ? "cuda" : "cpu ("));
    assert_true(gpu_facts(r.gpu).units >= 1);
}

static void
lane_part_refuses_invalid_ranges_and_undividable_devices(void **state)
{
    const struct gpu_parts parts = r.gpu->parts;

    (void)state;
    if (parts.grain) {
        uint32_t units = r.lane->units;

        refused(r.op->lane.part(r.lane, 0, 0), "lane_part");
        refused(r.op->lane.part(r.lane, 0, units + 1), "lane_part");
        refused(r.op->lane.part(r.lane, units, 1), "lane_part");
        refused(r.op->lane.part(r.lane, UINT32_MAX, 1), "lane_part");
        assert_int_equal(r.op->lane.part(r.lane, 0, units), 0);
    }
    r.gpu->parts = (struct gpu_parts){ 0 };
    assert_int_equal(gpu_facts(r.gpu).parts.grain, 0);
    assert_int_equal(r.op->lane.part(r.lane, 0, 1), -ENOTSUP);
    assert_non_null(strstr(gpu_why(r.gpu), "cannot be divided"));
    r.gpu->parts = parts;
    memset(&r.gpu->why, 0, sizeof r.gpu->why);
}

static void
slices_keep_the_stride_and_sizes_count_bits(void **state)
{
    struct tensor t = tensor_2d(memory, DT_BF16, 6, 10), c = tensor_cols(t, 4, 3);
    struct tensor s = tensor_rows(c, 2, 3);

    (void)state;
    assert_ptr_equal(c.data, (char *)memory + 8);
    assert_int_equal(c.stride, 10);
    assert_int_equal(c.dim[1], 3);
    assert_ptr_equal(s.data, (char *)memory + 8 + 40);
    assert_int_equal(s.dim[0], 3);
    assert_int_equal(dtype_bytes(DT_F32, 3), 12);
    assert_int_equal(dtype_bytes(DT_F16, 3), 6);
    assert_int_equal(dtype_bytes(DT_E4M3, 3), 3);
    assert_int_equal(dtype_bytes(DT_MXFP4, 32), 16);
    assert_string_equal(dtype_name(DT_BF16), "bf16");
}

static int
open_fixture(void **state)
{
    (void)state;
    fixture_open(&r, "auto", 1);
    memory = fixture_bytes(&r, 4096 * sizeof *memory);
    return 0;
}

static int
close_fixture(void **state)
{
    fixture_close(&r);
    return fixture_end(state);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_refuses_mismatched_shapes_and_dtypes),
        cmocka_unit_test(row_ops_refuse_mismatched_rows),
        cmocka_unit_test(copies_refuse_null_addresses_and_overlap),
        cmocka_unit_test(rope_store_and_attend_refuse_mismatched_heads_and_caches),
        cmocka_unit_test(sample_refuses_logits_of_wrong_dtype_or_rows),
        cmocka_unit_test(unknown_device_names_and_zero_sizes_are_refused),
        cmocka_unit_test(lane_part_refuses_invalid_ranges_and_undividable_devices),
        cmocka_unit_test(slices_keep_the_stride_and_sizes_count_bits),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
