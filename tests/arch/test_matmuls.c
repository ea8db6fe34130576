/* test_matmuls.c - the list of a model's matmuls and their measured row counts. */
#include "tests/test.h"
#include "worker/arch/registry.h"
#include "worker/model/model.h"

#include <stdio.h>

struct shape {
    uint32_t n, k;
    bool head;
};

static void
has(const char *name, const struct shape *want, uint32_t n)
{
    struct gpu_options o = { .device = "cpu", .isa = "auto" };
    struct model_source s = { .dtype = DT_COUNT, .weights_fd = -1 };
    const char *srcdir = getenv("srcdir");
    struct matmul list[MAX_MATMULS];
    struct gpu *gpu;
    struct model *m = NULL;
    struct err e;
    char dir[256];

    snprintf(dir, sizeof dir, "%s/tests/data/golden/%s", srcdir ? srcdir : ".", name);
    s.dir = dir;
    assert_int_equal(gpu_open(&gpu, &o, &e), 0);
    if (model_open(&m, &s, gpu, arch_families, &e) < 0) fail_msg("%s", e.text);
    assert_int_equal(model_matmuls(m, list), n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(list[i].w.dim[0], want[i].n);
        assert_int_equal(list[i].w.dim[1], want[i].k);
        assert_int_equal(list[i].head, want[i].head);
        assert_non_null(list[i].w.data);
    }
    model_close(m);
    gpu_close(gpu);
}

static void
llama_has_five_matmul_shapes(void **state)
{
    static const struct shape want[] = {
        { 320, 64, true }, { 192, 64 }, { 64, 64 }, { 352, 64 }, { 64, 176 },
    };

    (void)state;
    has("llama2", want, ARRAY_LEN(want));
}

static void
gemma3n_has_no_matmul_with_its_per_layer_input_table(void **state)
{
    static const struct shape want[] = {
        { 320, 64, true }, { 128, 64 }, { 192, 64 }, { 64, 64 }, { 256, 64 },
        { 64, 128 },       { 64, 96 },  { 4, 64 },   { 16, 4 },  { 4, 4 },
        { 8, 64 },         { 64, 8 },   { 16, 64 },  { 64, 16 },
    };

    (void)state;
    has("gemma3n", want, ARRAY_LEN(want));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_has_five_matmul_shapes),
        cmocka_unit_test(gemma3n_has_no_matmul_with_its_per_layer_input_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
